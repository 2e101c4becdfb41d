"""Calls in the forms of other models, which are text: their rules, and the way back.

A reader raises `InvalidValueError` for a malformed call. It does not check arguments.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from dlm.grammar.calls.elements import STYLES
from dlm.grammar.calls.tool_call import Answer, ToolCall
from dlm.grammar.errors import InvalidValueError
from dlm.grammar.rules.nodes import Node, concatenation
from dlm.grammar.schema.check import decoded
from dlm.grammar.schema.dialect import Dialect
from dlm.grammar.schema.writer import Form, as_object

Accepts = Callable[[str, str, Any], bool]  # of a tool, whether an argument may have a value

_FUNCTION = re.compile(r"([^>\s]+)>")
_PARAMETER = re.compile(r"\s*<parameter=([^>\s]+)>")
_PARAMETER_END = "</parameter>"
_END = re.compile(r"\s*</function>\s*</tool_call>")
_SPACE = re.compile(r"\s*")
_JSON = Dialect()


@dataclass(frozen=True, slots=True)
class Markup:
    """One form. A call begins with `opening`, which is nowhere else in an answer.

    `write` makes the rest of a call of a tool's name and its arguments, which are written in the
    form `arguments`. `read` takes a text.
    """

    opening: str
    arguments: Form
    write: Callable[[str, Node], Node]
    read: Callable[[str, Accepts], Answer]


def _hermes(name: str, arguments: Node) -> Node:
    begun = concatenation(_JSON.space, _JSON.mark("{"), '"name"', _JSON.mark(":"))
    call = _named(name, "arguments", arguments)
    return concatenation(begun, call, _JSON.space, "</tool_call>")


def _named(name: str, key: str, arguments: Node) -> Node:
    """The rest of an object with a name and arguments."""
    comma, colon = _JSON.mark(","), _JSON.mark(":")
    return concatenation(f'"{name}"', comma, f'"{key}"', colon, arguments, _JSON.mark("}"))


def _qwen_coder(name: str, arguments: Node) -> Node:
    return concatenation(f"{name}>", arguments, "</function>", _JSON.space, "</tool_call>")


def _error(text: str, at: int, reason: str) -> InvalidValueError:
    return InvalidValueError(f"a tool call is malformed at character {at}: {reason}")


def _read(
    opening: str,
    call: Callable[[str, int, Accepts], tuple[ToolCall, int]],
    text: str,
    accepts: Accepts,
) -> Answer:
    """`call` reads one call from behind its `opening`, and says where it ends."""
    content, calls, at = [], [], 0
    while (found := text.find(opening, at)) >= 0:
        content.append(text[at:found])
        read, at = call(text, found + len(opening), accepts)
        calls.append(read)
    content.append(text[at:])
    return Answer("".join(content) or None, tuple(calls))


def _json_call(
    begun: str, arguments: str, closing: str, text: str, at: int, accepts: Accepts
) -> tuple[ToolCall, int]:
    """An object with a `name` and `arguments`, of which `begun` was in the opening."""
    body = begun + text[at:]
    start = _skip(body, 0)
    try:
        value, end = decoded(body, start)
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


def _xml_call(text: str, at: int, accepts: Accepts) -> tuple[ToolCall, int]:
    if not (named := _FUNCTION.match(text, at)):
        raise _error(text, at, "a function's name is missing")
    name, at = named[1], named.end()
    arguments = {}
    while found := _PARAMETER.match(text, at):
        accepted = partial(accepts, name, found[1])
        arguments[found[1]], at = _xml_value(text, found.end(), accepted)
    if not (ended := _END.match(text, at)):
        raise _error(text, at, "</function> and </tool_call> are missing")
    return ToolCall(name, arguments), ended.end()


def _xml_value(text: str, at: int, accepts: Callable[[Any], bool]) -> tuple[Any, int]:
    """Strings are bare, the rest is JSON: the schema says which it is. And where its mark ends.

    Strings within JSON may hold that mark.
    """
    try:
        value, end = decoded(text, _skip(text, at))
    except (ValueError, RecursionError):
        value, end = "", at
    end = _skip(text, end)
    if isinstance(value, str) or not text.startswith(_PARAMETER_END, end) or not accepts(value):
        if (end := text.find(_PARAMETER_END, at)) < 0:
            raise _error(text, at, f"{_PARAMETER_END} is missing")
        value = text[at:end].removeprefix("\n").removesuffix("\n")
    return value, end + len(_PARAMETER_END)


def _skip(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at


_TAG, _OBJECT = "<tool_call>", '{"name": '
_HERMES = Markup(
    _TAG,
    as_object,
    _hermes,
    partial(_read, _TAG, partial(_json_call, "", "arguments", "</tool_call>")),
)
MARKUPS = {
    "hermes": _HERMES,
    "qwen3": _HERMES,
    "qwen3_coder": Markup(
        f"{_TAG}\n<function=",
        STYLES["qwen_xml"].form,
        _qwen_coder,
        partial(_read, f"{_TAG}\n<function=", _xml_call),
    ),
    "llama": Markup(
        _OBJECT,
        as_object,
        lambda name, arguments: _named(name, "parameters", arguments),
        partial(_read, _OBJECT, partial(_json_call, _OBJECT, "parameters", "")),
    ),
}
