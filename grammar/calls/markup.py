"""Tool calls in the textual forms of other models: rules and parsers.

Some forms write each argument as an element of markup, with strings bare and other values as JSON
text. A parser raises `InvalidValueError` for a malformed call. It does not check arguments.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from dlm.grammar.calls.gemma import Answer, ToolCall
from dlm.grammar.errors import InvalidGrammarError, InvalidValueError
from dlm.grammar.regex.automaton import Automaton, TooLargeError, automaton_of
from dlm.grammar.regex.nodes import (
    EMPTY,
    NOTHING,
    Literal,
    Node,
    Terminal,
    alternation,
    concatenation,
)
from dlm.grammar.rules.analysis import free_of
from dlm.grammar.schema.dialect import Dialect
from dlm.grammar.schema.evaluate import decoded
from dlm.grammar.schema.facets import KINDS, Objects
from dlm.grammar.schema.formula import Formula
from dlm.grammar.schema.writer import FormWriter, Writer, as_object

_KEY = re.compile(r"""[^<>"'\s]+""")
_FREE_KEY = "[A-Za-z_][A-Za-z0-9_.-]*"
_BARE = ("string",)
_REST = tuple(kind for kind in KINDS if kind != "string")


@dataclass(frozen=True)
class Elements(Dialect):
    """Syntax of an object as elements: `before`, key, `between`, value, `end`.

    `between` is a text for each group of types; a line feed in it stands for any whitespace. With
    `lines`, a value may be on lines of its own, and line feeds around it are not part of it.
    """

    before: str = ""
    between: tuple[tuple[tuple[str, ...], str], ...] = ()
    end: str = ""
    lines: bool = False

    def mark(self, text: str) -> Node:
        if text == "{}":  # two line breaks in a call without arguments
            return concatenation(self.space, self.space)
        return EMPTY if text == ":" else self.space

    def key(self, name: str) -> Node:
        if not _KEY.fullmatch(name):
            raise InvalidGrammarError("schema", f"{name!r:.80} cannot be a name in this markup")
        return Literal(self.before + name)

    def free_key(self, keys: Automaton) -> Node:
        return concatenation(
            self.before, Terminal(keys.intersection(automaton_of(_FREE_KEY, True)))
        )

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
        options = []
        for kinds, between in self.between:
            opened = concatenation(*self._spaced(between))
            if kinds == _BARE:
                options += [
                    concatenation(opened, bare, self.end) for bare in self._bare(writer, formula)
                ]
            elif (json := writer.value(formula, kinds)) != NOTHING:
                options.append(concatenation(opened, self.space, json, self.space, self.end))
        return alternation(*options) if options else NOTHING

    def _spaced(self, text: str) -> Iterator[Node]:
        for i, part in enumerate(text.split("\n")):
            if i:
                yield self.space
            yield Literal(part)

    def _bare(self, writer: Writer, formula: Formula) -> Iterator[Node]:
        for shape in writer.shapes(formula, _BARE):
            try:
                if (texts := writer.texts(shape)) is None:
                    continue
                automaton, low, high = texts
                automaton = automaton.intersection(free_of([self.end]))
                first, last = self._edges(automaton)
                forms = [("", automaton, "")]
                if self.lines:  # a line feed at an end is not part of the value
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


def _alike(before: str, between: str, end: str, lines: bool = False) -> Elements:
    return Elements(
        before=before, between=((_BARE, between), (_REST, between)), end=end, lines=lines
    )


def _deepseek(name: str) -> Elements:
    name = f"\uff5cDSML\uff5c{name}"
    between = (_BARE, '" string="true">'), (_REST, '" string="false">')
    return Elements(before=f'<{name} name="', between=between, end=f"</{name}>")


STYLES = {  # by their names in xgrammar's structural tags
    "qwen_xml": _alike("<parameter=", ">", "</parameter>", lines=True),
    "minimax_xml": _alike('<parameter name="', '">', "</parameter>"),
    "deepseek_xml": _deepseek("parameter"),
    "deepseek_v4_1_xml": _deepseek(" parameter"),
    "glm_xml": _alike("<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>"),
    "kimi_k3_xml": Elements(
        before='<|open|>argument key="',
        between=tuple(((kind,), f'" type="{kind}"<|sep|>') for kind in KINDS),
        end="<|close|>argument<|sep|>",
    ),
}


Accepts = Callable[[str, str, Any], bool]  # (tool, argument, value): whether the value fits

_FUNCTION = re.compile(r"([^>\s]+)>")
_PARAMETER = re.compile(r"\s*<parameter=([^>\s]+)>")
_PARAMETER_END = "</parameter>"
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
