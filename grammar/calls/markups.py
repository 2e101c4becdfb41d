"""Forms of calls, by name: the rules that write a call, and the reader of an answer with calls.

A call of Gemma's or Mistral's forms begins with a control token, one of the others with text.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from functools import partial
from typing import Any

from dlm.grammar.calls.gemma import GemmaReader, gemma_call
from dlm.grammar.calls.json_calls import JsonReader, JsonSyntax
from dlm.grammar.calls.reader import CallReader
from dlm.grammar.calls.token_text import ARGUMENTS_MARK, OPEN_MARK
from dlm.grammar.calls.xml_calls import GLM_CALL, QWEN_CALL, Accepts, CallSyntax, XmlReader
from dlm.grammar.regex.nodes import EMPTY, Node, Repetition, SpecialToken, concatenation
from dlm.grammar.schema.dialects import Dialect
from dlm.grammar.schema.elements import Elements
from dlm.grammar.schema.writer import FormWriter, as_object
from dlm.grammar.vocabulary.pieces import (
    CallMarkers,
    GemmaMarkers,
    MistralListMarkers,
    MistralMarkers,
    TokenPieces,
)

_JSON = Dialect()
_TAG, _OBJECT = "<tool_call>", '{"name": '


@dataclass(frozen=True, slots=True)
class AnswerReading:
    """Form of an answer that is to be read, and what to look for in it."""

    vocabulary: TokenPieces | None = None  # None: it is text, not tokens
    accepts: Accepts = lambda tool, argument, value, text: True
    anywhere: bool = True  # whether calls begin anywhere; otherwise one begins the answer, or none
    target: Sequence[str | int] = ()  # a call's index and a path in its arguments, to be found


@dataclass(frozen=True, slots=True)
class Markup:
    """One form of calls.

    A call begins with `opening`, or, where that is empty, with a control token; neither occurs
    elsewhere in an answer. `write` returns a whole call, given the tool's name, the node of its
    arguments, which `arguments` writes, and the vocabulary's `markers`. In a list, one opening
    comes before all calls: `enclose` returns the whole of it, given what stands in its brackets.
    """

    opening: str
    arguments: FormWriter
    write: Callable[[str, Node, Any], Node]
    reader: Callable[[AnswerReading], CallReader]
    markers: type[CallMarkers] | None = None  # its control tokens
    exact: bool = True  # whether values are read as rules write them, without the schema's help
    tags: tuple[str, ...] = ()  # other texts that every call has
    enclose: Callable[[Node, Any], Node] | None = None  # None: calls are in no list

    @property
    def space(self) -> Node:
        """White space around calls, which may be empty."""
        return _JSON.space if self.opening else EMPTY

    def calls(self, call: Node, several: bool, markers: Any) -> Node:
        """Return the node of a call, or of `several`, given that of one."""
        between = _JSON.mark(",") if self.enclose else self.space
        if several:
            call = concatenation(call, Repetition(concatenation(between, call)))
        return self.enclose(call, markers) if self.enclose else call


def _hermes(name: str, arguments: Node, markers: None) -> Node:
    call = _object(name, arguments, markers)
    return concatenation(_TAG, _JSON.space, call, _JSON.space, "</tool_call>")


def _object(name: str, arguments: Node, markers: Any) -> Node:
    """Return an object with a name and arguments."""
    beginning = concatenation(_JSON.mark("{"), '"name"', _JSON.mark(":"))
    return concatenation(beginning, _named(name, "arguments", arguments))


def _llama(name: str, arguments: Node, markers: None) -> Node:
    return concatenation(_OBJECT, _named(name, "parameters", arguments))


def _named(name: str, key: str, arguments: Node) -> Node:
    """Return the end of an object with a name and arguments, from the name on."""
    comma, colon = _JSON.mark(","), _JSON.mark(":")
    return concatenation(f'"{name}"', comma, f'"{key}"', colon, arguments, _JSON.mark("}"))


def _tagged(syntax: CallSyntax, name: str, arguments: Node, markers: None) -> Node:
    end, *others = syntax.ends
    parts = [f"{syntax.opening}{name}{syntax.named}", arguments, end]
    for other in others:
        parts += [_JSON.space, other]
    return concatenation(*parts)


def _mistral(name: str, arguments: Node, markers: MistralMarkers) -> Node:
    opened, separated = (SpecialToken(frozenset((id,))) for id in (markers.open, markers.arguments))
    return concatenation(opened, name, separated, arguments)


def _mistral_list(calls: Node, markers: MistralListMarkers) -> Node:
    opened = SpecialToken(frozenset((markers.open,)))
    return concatenation(opened, _JSON.space, _JSON.mark("["), calls, _JSON.mark("]"))


def _json_reader(syntax: JsonSyntax, form: AnswerReading) -> JsonReader:
    markers = form.vocabulary and form.vocabulary.call
    marks = {}
    if isinstance(markers, MistralMarkers | MistralListMarkers):
        marks = dict(zip(astuple(markers), (OPEN_MARK, ARGUMENTS_MARK), strict=False))
    return JsonReader(syntax, form.vocabulary, marks, form.anywhere, form.target)


def _gemma_reader(form: AnswerReading) -> GemmaReader:
    if form.vocabulary is None:
        raise TypeError("calls in Gemma's form are tokens, not text")
    return GemmaReader(form.vocabulary, form.target)


def _xml_reader(syntax: CallSyntax, form: AnswerReading) -> XmlReader:
    return XmlReader(syntax, form.vocabulary, form.accepts, form.anywhere)


def _in_tags(syntax: CallSyntax) -> Markup:
    """Return the form of calls in tags of a syntax."""
    return Markup(
        syntax.opening,
        Elements(syntax=syntax.elements).form,
        partial(_tagged, syntax),
        partial(_xml_reader, syntax),
        exact=False,
        tags=tuple(filter(None, syntax.tags)),
    )


_HERMES = JsonSyntax(
    opening=_TAG,
    head=re.compile(r'\s*\{\s*"name"\s*:\s*"([\w.-]+)"\s*,\s*"arguments"\s*:\s*'),
    tail=re.compile(r"\s*\}\s*</tool_call>"),
    shape="an object of a name and arguments",
    end="</tool_call>",
)
_LLAMA = JsonSyntax(
    opening=_OBJECT,
    head=re.compile(r'\s*"([\w.-]+)"\s*,\s*"parameters"\s*:\s*'),
    tail=re.compile(r"\s*\}"),
    shape="an object of a name and parameters",
    end="its last bracket",
)
_MISTRAL = JsonSyntax(
    opening=OPEN_MARK,
    head=re.compile(rf"\s*([\w.-]+){ARGUMENTS_MARK}\s*"),
    tail=re.compile(""),
    shape="a name, [ARGS] and arguments",
)
_MISTRAL_LIST = JsonSyntax(
    opening=OPEN_MARK,
    head=re.compile(
        rf'(?:(?<={OPEN_MARK})\s*\[|(?<=,))\s*\{{\s*"name"\s*:\s*"([\w.-]+)"\s*,'
        r'\s*"arguments"\s*:\s*'
    ),
    tail=re.compile(r'(?:\s*,\s*"id"\s*:\s*"\w*")?\s*\}\s*[],]'),  # templates show an id
    shape="a list of objects of a name and arguments",
    end="a bracket at the end of the list",
)

MARKUPS = {
    "gemma4": Markup("", as_object, gemma_call, _gemma_reader, GemmaMarkers),
    "hermes": Markup(_TAG, as_object, _hermes, partial(_json_reader, _HERMES)),
    "qwen3_coder": _in_tags(QWEN_CALL),
    "glm": _in_tags(GLM_CALL),
    "llama": Markup(_OBJECT, as_object, _llama, partial(_json_reader, _LLAMA)),
    "mistral": Markup("", as_object, _mistral, partial(_json_reader, _MISTRAL), MistralMarkers),
    "mistral_list": Markup(
        "",
        as_object,
        _object,
        partial(_json_reader, _MISTRAL_LIST),
        MistralListMarkers,
        enclose=_mistral_list,
    ),
}
OTHER_NAMES = {"qwen3": "hermes"}  # of the same forms
