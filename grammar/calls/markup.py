"""Tool calls in the forms of other models, which are text: what xgrammar calls them, and readers.

A reader raises `InvalidValueError` for a malformed call. It does not check arguments.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from dlm.grammar.calls.tool_call import Answer, ToolCall
from dlm.grammar.errors import InvalidValueError
from dlm.grammar.schema.parameters import Parameters

_DECODER = json.JSONDecoder(strict=False)  # xgrammar lets control characters into some strings
_FUNCTION = re.compile(r"([^>\s]+)>")
_PARAMETER = re.compile(r"\s*<parameter=([^>\s]+)>(.*?)</parameter>", re.DOTALL)
_END = re.compile(r"\s*</function>\s*</tool_call>")
_SPACE = re.compile(r"\s*")


@dataclass(frozen=True, slots=True)
class Markup:
    """One form. `read` takes a text and the parameters of the tools, by name."""

    model: str  # xgrammar's name of it
    read: Callable[[str, Mapping[str, Parameters]], Answer]


def _error(text: str, at: int, reason: str) -> InvalidValueError:
    return InvalidValueError(f"a tool call is malformed at character {at}: {reason}")


def _read(
    opening: str,
    call: Callable[[str, int, Mapping[str, Parameters]], tuple[ToolCall, int]],
    text: str,
    tools: Mapping[str, Parameters],
) -> Answer:
    """`call` reads one call from behind its `opening`, and says where it ends."""
    content, calls, at = [], [], 0
    while (found := text.find(opening, at)) >= 0:
        content.append(text[at:found])
        read, at = call(text, found + len(opening), tools)
        calls.append(read)
    content.append(text[at:])
    return Answer("".join(content) or None, tuple(calls))


def _json_call(
    begun: str, arguments: str, closing: str, text: str, at: int, tools: Mapping[str, Parameters]
) -> tuple[ToolCall, int]:
    """An object with a `name` and `arguments`, of which `begun` was in the opening."""
    body = begun + text[at:]
    start = _skip(body, 0)
    try:
        value, end = _DECODER.raw_decode(body, start)
    except (ValueError, RecursionError) as error:
        raise _error(text, at, f"no JSON: {error}") from error
    if not (
        isinstance(value, dict)
        and value.keys() == {"name", arguments}
        and isinstance(value["name"], str)
        and isinstance(value[arguments], dict)
    ):
        raise _error(text, at, f"not an object of a name and {arguments}")
    at += _skip(body, end) - len(begun) if closing else end - len(begun)
    if not text.startswith(closing, at):
        raise _error(text, at, f"{closing} is missing")
    return ToolCall(value["name"], value[arguments]), at + len(closing)


def _xml_call(text: str, at: int, tools: Mapping[str, Parameters]) -> tuple[ToolCall, int]:
    if not (named := _FUNCTION.match(text, at)):
        raise _error(text, at, "a function's name is missing")
    name, at = named[1], named.end()
    arguments = {}
    while found := _PARAMETER.match(text, at):
        schema = tools[name].property(found[1]) if name in tools else True
        accepts = partial(tools[name].accepts, schema) if name in tools else bool
        arguments[found[1]] = _xml_value(found[2], accepts)
        at = found.end()
    if not (ended := _END.match(text, at)):
        raise _error(text, at, "</function> and </tool_call> are missing")
    return ToolCall(name, arguments), ended.end()


def _xml_value(text: str, accepts: Callable[[Any], bool]) -> Any:
    """Strings are bare, the rest is JSON: the schema says which it is."""
    try:
        value = _DECODER.decode(text.strip())
    except (ValueError, RecursionError):
        value = ""
    bare = text.removeprefix("\n").removesuffix("\n")
    return bare if isinstance(value, str) or not accepts(value) else value


def _skip(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at


_HERMES = partial(_read, "<tool_call>", partial(_json_call, "", "arguments", "</tool_call>"))
MARKUPS = {
    "hermes": Markup("qwen_3", _HERMES),
    "qwen3": Markup("qwen_3", _HERMES),
    "qwen3_coder": Markup("qwen_3_coder", partial(_read, "<tool_call>\n<function=", _xml_call)),
    "llama": Markup(
        "llama", partial(_read, '{"name": ', partial(_json_call, '{"name": ', "parameters", ""))
    ),
}
