"""Tool calls in the textual forms of Qwen, Hermes and Llama: rules and parsers.

Diffusion models were made from models that write calls in these forms. A parser raises
`InvalidValueError` for a malformed call. It does not check arguments.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from dlm.grammar.calls.gemma import Answer, ToolCall
from dlm.grammar.errors import InvalidGrammarError, InvalidValueError
from dlm.grammar.regex.automaton import Automaton, TooLargeError, automaton_of, free_of
from dlm.grammar.regex.nodes import (
    EMPTY,
    NOTHING,
    Literal,
    Node,
    Terminal,
    alternation,
    concatenation,
)
from dlm.grammar.schema.dialect import Dialect
from dlm.grammar.schema.evaluate import decoded
from dlm.grammar.schema.facets import KINDS, Objects
from dlm.grammar.schema.formula import Formula
from dlm.grammar.schema.writer import FormWriter, Writer, as_object

_KEY = re.compile(r"""[^<>"'\s]+""")
_FREE_KEY = "[A-Za-z_][A-Za-z0-9_.-]*"
_JSON_KINDS = tuple(kind for kind in KINDS if kind != "string")
_PARAMETER_END = "</parameter>"


@dataclass(frozen=True)
class Elements(Dialect):
    """Syntax of an object as elements `<parameter=KEY>value</parameter>`, as Qwen writes calls.

    Strings are bare, and other values are JSON text. A value may be on lines of its own; line feeds
    around it are not part of it.
    """

    def mark(self, text: str) -> Node:
        if text == "{}":  # two line breaks in a call without arguments
            return concatenation(self.space, self.space)
        return EMPTY if text == ":" else self.space

    def key(self, name: str) -> Node:
        if not _KEY.fullmatch(name):
            raise InvalidGrammarError("schema", f"{name!r:.80} cannot be a name in this markup")
        return Literal(f"<parameter={name}>")

    def free_key(self, keys: Automaton) -> Node:
        key = Terminal(keys.intersection(automaton_of(_FREE_KEY, True)))
        return concatenation("<parameter=", key, ">")

    def form(self, writer: Writer, formula: Formula) -> Node:
        """Return the arguments that fit `formula`.

        Raises `InvalidGrammarError` if whole objects are listed by `enum` or `const`.
        """
        options = []
        for shape in writer.shapes(formula, ("object",)):
            if shape.values is not None or not isinstance(shape.facets, Objects):
                reason = "enum and const of whole arguments cannot be written in this markup"
                raise InvalidGrammarError("schema", reason)
            options.append(writer.members(shape.facets, partial(self._value, writer), self))
        return alternation(*options) if options else NOTHING

    def _value(self, writer: Writer, formula: Formula) -> Node:
        options = [concatenation(bare, _PARAMETER_END) for bare in self._bare(writer, formula)]
        if (json := writer.value(formula, _JSON_KINDS)) != NOTHING:
            options.append(concatenation(self.space, json, self.space, _PARAMETER_END))
        return alternation(*options) if options else NOTHING

    def _bare(self, writer: Writer, formula: Formula) -> Iterator[Node]:
        for shape in writer.shapes(formula, ("string",)):
            try:
                if (texts := writer.texts(shape)) is None:
                    continue
                automaton, low, high = texts
                automaton = automaton.intersection(free_of([_PARAMETER_END]))
                first, last = self._edges(automaton)
                # A line feed at an end is not part of the value.
                forms = [("\n", automaton, "\n"), ("\n", last, ""), ("", first, "\n")]
                forms.append(("", first.intersection(last), ""))
            except TooLargeError as error:
                raise InvalidGrammarError("schema", f"a string is too large: {error}") from error
            for before, inner, after in forms:
                if not inner.is_empty:
                    yield concatenation(before, Terminal(inner, low, high), after)

    def _edges(self, automaton: Automaton) -> tuple[Automaton, Automaton]:
        """Return the texts that do not begin, and those that do not end, with a line feed."""
        any_text = r"[\s\S]*"
        begins, ends = (automaton_of(p, True) for p in (rf"\n{any_text}", rf"{any_text}\n"))
        return automaton.difference(begins), automaton.difference(ends)


STYLES = {"qwen_xml": Elements()}  # by their names in xgrammar's structural tags


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
    `arguments` writes. `read` parses the text of an answer.
    """

    opening: str
    arguments: FormWriter
    write: Callable[[str, Node], Node]
    read: Callable[[str, Accepts], Answer]


def _hermes(name: str, arguments: Node) -> Node:
    begun = concatenation(_JSON.space, _JSON.mark("{"), '"name"', _JSON.mark(":"))
    call = _named(name, "arguments", arguments)
    return concatenation(begun, call, _JSON.space, "</tool_call>")


def _named(name: str, key: str, arguments: Node) -> Node:
    """Return the rest of an object with a name and arguments."""
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
    """Return the text and the calls of an answer.

    `call` parses one call after its `opening`, and returns it with the index of its end.
    """
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
    """Parse an object with a `name` and `arguments`; the opening contains its beginning `begun`."""
    body = begun + text[at:]
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
    """Return the value of a parameter, and the index after its end tag.

    Strings are bare, other values are JSON: `accepts` decides between them. Strings within JSON may
    contain the end tag.
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
