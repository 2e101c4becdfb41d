"""Forms of calls, by name: the rules that write a call, and the reader of an answer with calls.

A call of Gemma's or Mistral's form begins with a control token, one of the others with text.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from dlm.grammar.calls.gemma import GemmaReader, gemma_call
from dlm.grammar.calls.json_calls import JsonReader, JsonSyntax
from dlm.grammar.calls.reader import CallReader
from dlm.grammar.calls.token_text import ARGUMENTS_MARK, OPEN_MARK
from dlm.grammar.calls.xml_calls import OPENING, Accepts, XmlReader
from dlm.grammar.regex.nodes import Node, SpecialToken, concatenation
from dlm.grammar.schema.dialects import Dialect
from dlm.grammar.schema.elements import FORMS
from dlm.grammar.schema.writer import FormWriter, as_object
from dlm.grammar.vocabulary.pieces import GemmaMarkers, MistralMarkers, TokenPieces

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
    arguments, which `arguments` writes, and the vocabulary's `markers`.
    """

    opening: str
    arguments: FormWriter
    write: Callable[[str, Node, Any], Node]
    reader: Callable[[AnswerReading], CallReader]
    markers: type[GemmaMarkers] | type[MistralMarkers] | None = None  # its control tokens
    exact: bool = True  # whether values are read as rules write them, without the schema's help


def _hermes(name: str, arguments: Node, markers: None) -> Node:
    beginning = concatenation(_JSON.space, _JSON.mark("{"), '"name"', _JSON.mark(":"))
    call = _named(name, "arguments", arguments)
    return concatenation(_TAG, beginning, call, _JSON.space, "</tool_call>")


def _llama(name: str, arguments: Node, markers: None) -> Node:
    return concatenation(_OBJECT, _named(name, "parameters", arguments))


def _named(name: str, key: str, arguments: Node) -> Node:
    """Return the end of an object with a name and arguments, from the name on."""
    comma, colon = _JSON.mark(","), _JSON.mark(":")
    return concatenation(f'"{name}"', comma, f'"{key}"', colon, arguments, _JSON.mark("}"))


def _qwen_coder(name: str, arguments: Node, markers: None) -> Node:
    end = concatenation("</function>", _JSON.space, "</tool_call>")
    return concatenation(f"{OPENING}{name}>", arguments, end)


def _mistral(name: str, arguments: Node, markers: MistralMarkers) -> Node:
    opened, separated = (SpecialToken(frozenset((id,))) for id in (markers.open, markers.arguments))
    return concatenation(opened, name, separated, arguments)


def _json_reader(syntax: JsonSyntax, form: AnswerReading) -> JsonReader:
    markers = form.vocabulary and form.vocabulary.call
    marks = {}
    if isinstance(markers, MistralMarkers):
        marks = {markers.open: OPEN_MARK, markers.arguments: ARGUMENTS_MARK}
    return JsonReader(syntax, form.vocabulary, marks, form.anywhere, form.target)


def _gemma_reader(form: AnswerReading) -> GemmaReader:
    if form.vocabulary is None:
        raise TypeError("calls in Gemma's form are tokens, not text")
    return GemmaReader(form.vocabulary, form.target)


def _xml_reader(form: AnswerReading) -> XmlReader:
    return XmlReader(form.vocabulary, form.accepts, form.anywhere)


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

MARKUPS = {
    "gemma4": Markup("", as_object, gemma_call, _gemma_reader, GemmaMarkers),
    "hermes": Markup(_TAG, as_object, _hermes, partial(_json_reader, _HERMES)),
    "qwen3_coder": Markup(OPENING, FORMS["qwen_xml"].form, _qwen_coder, _xml_reader, exact=False),
    "llama": Markup(_OBJECT, as_object, _llama, partial(_json_reader, _LLAMA)),
    "mistral": Markup("", as_object, _mistral, partial(_json_reader, _MISTRAL), MistralMarkers),
}
OTHER_NAMES = {"qwen3": "hermes"}  # of the same forms
