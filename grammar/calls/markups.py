"""Textual forms of calls: rules and parsers.

Diffusion models were made from models that write calls in the forms of Qwen, Hermes and Llama. A
parser raises `InvalidValueError` for a malformed call. It does not check arguments, and knows no
tools.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from dlm.grammar.calls.answer import Answer, ToolCall
from dlm.grammar.errors import InvalidValueError
from dlm.grammar.regex.nodes import Node, concatenation
from dlm.grammar.schema.dialects import Dialect
from dlm.grammar.schema.evaluate import decoded
from dlm.grammar.schema.writer import FORMS, PARAMETER_END, FormWriter, as_object

Accepts = Callable[[str, str, Any], bool]  # (tool, argument, value): whether the value fits
_FUNCTION = re.compile(r"([^>\s]+)>")
_PARAMETER = re.compile(r"\s*<parameter=([^>\s]+)>")
_END = re.compile(r"\s*</function>\s*</tool_call>")
_SPACE = re.compile(r"\s*")
_JSON = Dialect()


@dataclass(frozen=True, slots=True)
class Markup:
    """One form of calls. A call begins with `opening`, which occurs nowhere else in an answer.

    `write` returns the rest of a call, given the tool's name and the node of its arguments, which
    `arguments` writes. `call` parses one call after its opening, and returns it with the index of
    its end.
    """

    opening: str
    arguments: FormWriter
    write: Callable[[str, Node], Node]
    call: Callable[[str, int, Accepts], tuple[ToolCall, int]]

    def read(self, text: str, accepts: Accepts) -> Answer:
        """Return the text and the calls of an answer."""
        content, calls, at = [], [], 0
        while (begin := text.find(self.opening, at)) >= 0:
            content.append(text[at:begin])
            read, at = self.call(text, begin + len(self.opening), accepts)
            calls.append(read)
        content.append(text[at:])
        return Answer("".join(content) or None, tuple(calls))


def _hermes(name: str, arguments: Node) -> Node:
    beginning = concatenation(_JSON.space, _JSON.mark("{"), '"name"', _JSON.mark(":"))
    call = _named(name, "arguments", arguments)
    return concatenation(beginning, call, _JSON.space, "</tool_call>")


def _named(name: str, key: str, arguments: Node) -> Node:
    """Return the rest of an object with a name and arguments."""
    comma, colon = _JSON.mark(","), _JSON.mark(":")
    return concatenation(f'"{name}"', comma, f'"{key}"', colon, arguments, _JSON.mark("}"))


def _qwen_coder(name: str, arguments: Node) -> Node:
    return concatenation(f"{name}>", arguments, "</function>", _JSON.space, "</tool_call>")


def _error(text: str, at: int, reason: str) -> InvalidValueError:
    return InvalidValueError(f"a tool call is malformed at character {at}: {reason}")


def _json_call(
    beginning: str, arguments: str, closing: str, text: str, at: int, accepts: Accepts
) -> tuple[ToolCall, int]:
    """Parse an object of a `name` and `arguments`; `beginning` is its part within the opening."""
    body = beginning + text[at:]
    start = _skip(body, 0)
    try:
        value, end = decoded(body, start)
    except (ValueError, RecursionError) as error:
        raise _error(text, at, f"not JSON: {error}") from error
    if not (
        isinstance(value, dict)
        and value.keys() == {"name", arguments}
        and isinstance(value["name"], str)
        and isinstance(value[arguments], dict)
    ):
        raise _error(text, at, f"not an object of a name and {arguments}")
    at += _skip(body, end) - len(beginning) if closing else end - len(beginning)
    if not text.startswith(closing, at):
        raise _error(text, at, f"{closing} is missing")
    return ToolCall(value["name"], value[arguments]), at + len(closing)


def _xml_call(text: str, at: int, accepts: Accepts) -> tuple[ToolCall, int]:
    if not (named := _FUNCTION.match(text, at)):
        raise _error(text, at, "a function's name is missing")
    name, at = named[1], named.end()
    arguments = {}
    while opened := _PARAMETER.match(text, at):
        accepted = partial(accepts, name, opened[1])
        arguments[opened[1]], at = _xml_value(text, opened.end(), accepted)
    if not (ended := _END.match(text, at)):
        raise _error(text, at, "</function> and </tool_call> are missing")
    return ToolCall(name, arguments), ended.end()


def _xml_value(text: str, at: int, accepts: Callable[[Any], bool]) -> tuple[Any, int]:
    """Return the value of a parameter, and the index after its end tag.

    Strings are bare, other values are JSON: `accepts` decides between them. Strings within JSON may
    contain the end tag.
    """
    try:
        value, end = decoded(text, _skip(text, at))
    except (ValueError, RecursionError):
        value, end = "", at
    end = _skip(text, end)
    if isinstance(value, str) or not text.startswith(PARAMETER_END, end) or not accepts(value):
        if (end := text.find(PARAMETER_END, at)) < 0:
            raise _error(text, at, f"{PARAMETER_END} is missing")
        value = text[at:end].removeprefix("\n").removesuffix("\n")
    return value, end + len(PARAMETER_END)


def _skip(text: str, at: int) -> int:
    space = _SPACE.match(text, at)
    return space.end() if space else at


_TAG, _OBJECT = "<tool_call>", '{"name": '
_HERMES = Markup(_TAG, as_object, _hermes, partial(_json_call, "", "arguments", "</tool_call>"))
MARKUPS = {
    "hermes": _HERMES,
    "qwen3": _HERMES,
    "qwen3_coder": Markup(f"{_TAG}\n<function=", FORMS["qwen_xml"].form, _qwen_coder, _xml_call),
    "llama": Markup(
        _OBJECT,
        as_object,
        lambda name, arguments: _named(name, "parameters", arguments),
        partial(_json_call, _OBJECT, "parameters", ""),
    ),
}
