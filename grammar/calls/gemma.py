"""Calls in Gemma 4's own form, `call:NAME{key:value,...}` between markers: one as rules, and how
they are read from an answer's tokens.

Keys are bare, and the token `<|"|>` quotes strings; nothing is escaped, nothing is spaced. A marker
is a token, and text that reads like one is text. Knows no tools and no schemas.
"""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dlm.grammar.calls.tool_call import Answer, ToolCall
from dlm.grammar.errors import InvalidValueError
from dlm.grammar.markers import CallMarkers
from dlm.grammar.rules.nodes import Node, SpecialToken, concatenation

if TYPE_CHECKING:
    from dlm.grammar.excerpt import Excerpt
    from dlm.grammar.vocabulary import Vocabulary

_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?", re.ASCII)
_WORDS = {"true": True, "false": False, "null": None}
_NAME = re.compile(r"[\w.-]+")
_KEY = re.compile(r"[\w.$-]+")


def gemma_call(name: str, arguments: Node, markers: CallMarkers) -> Node:
    """A call of that tool."""
    opened, closed = (SpecialToken(frozenset((id,))) for id in (markers.open, markers.close))
    return concatenation(opened, f"call:{name}", arguments, closed)


def read_calls(tokens: Sequence[int], vocabulary: "Vocabulary | Excerpt") -> Answer:
    """Raises `InvalidValueError` where a call is malformed."""
    if vocabulary.call is None:
        return Answer(vocabulary.text(tokens) or None, ())
    reader = _Reader(tokens, vocabulary, vocabulary.call)
    try:
        return reader.answer()
    except RecursionError as error:
        raise reader.error("values are nested too deep") from error


class _Reader:
    """Walks along runs of text and the control tokens between them."""

    def __init__(
        self, tokens: Sequence[int], vocabulary: "Vocabulary | Excerpt", markers: CallMarkers
    ):
        self._tokens, self._vocabulary, self._markers = list(tokens), vocabulary, markers
        self._token = 0  # the next one that is not in `_text`
        self._text, self._at = "", 0

    def error(self, reason: str) -> InvalidValueError:
        return InvalidValueError(f"a tool call is malformed before token {self._token}: {reason}")

    def answer(self) -> Answer:
        content, calls = [], []
        while self._token < len(self._tokens):
            content.append(self._run("replace"))
            if self._marked(self._markers.open):
                calls.append(self._call())
            elif self._marked(self._markers.close) or self._marked(self._markers.quote):
                raise self.error("its beginning is missing")
            else:
                self._token += 1  # a control token that has no say here
        return Answer("".join(content) or None, tuple(calls))

    def _run(self, errors: str) -> str:
        """The text up to the next control token."""
        start, control = self._token, self._vocabulary.control
        while self._token < len(self._tokens) and self._tokens[self._token] not in control:
            self._token += 1
        pieces = self._vocabulary.pieces
        run = b"".join(pieces[token] for token in self._tokens[start : self._token])
        try:
            return run.decode("utf-8", errors)
        except UnicodeDecodeError as error:
            raise self.error("its bytes are no UTF-8") from error

    def _marked(self, marker: int) -> bool:
        """Moves behind a control token if it is next."""
        if self._at < len(self._text) or self._tokens[self._token : self._token + 1] != [marker]:
            return False
        self._token += 1
        return True

    def _inside(self, marker: int) -> bool:
        """The same, and takes up the text behind it."""
        if found := self._marked(marker):
            self._text, self._at = self._run("strict"), 0
        return found

    def _next(self, text: str) -> bool:
        found = self._text.startswith(text, self._at)
        self._at += len(text) * found
        return found

    def _expect(self, text: str) -> None:
        if not self._next(text):
            raise self.error(f"{text!r} is missing before {self._text[self._at :]!r:.40}")

    def _match(self, pattern: re.Pattern[str], what: str) -> str:
        if not (found := pattern.match(self._text, self._at)):
            raise self.error(f"{what} is missing before {self._text[self._at :]!r:.40}")
        self._at = found.end()
        return found[0]

    def _call(self) -> ToolCall:
        self._text, self._at = self._run("strict"), 0
        self._expect("call:")
        name = self._match(_NAME, "a tool's name")
        self._expect("{")
        arguments = self._members()
        if not self._marked(self._markers.close):
            raise self.error("its closing marker is missing")
        return ToolCall(name, arguments)

    def _members(self) -> dict[str, Any]:
        members = {}
        if not self._next("}"):
            while True:
                key = self._match(_KEY, "a key")
                self._expect(":")
                members[key] = self._value()
                if self._next("}"):
                    break
                self._expect(",")
        return members

    def _items(self) -> list[Any]:
        items = []
        if not self._next("]"):
            while True:
                items.append(self._value())
                if self._next("]"):
                    break
                self._expect(",")
        return items

    def _value(self) -> Any:
        if self._marked(self._markers.quote):
            text = self._run("strict")
            if not self._inside(self._markers.quote):
                raise self.error("a string does not end")
            return text
        if self._next("{"):
            return self._members()
        if self._next("["):
            return self._items()
        for word, value in _WORDS.items():
            if self._next(word):
                return value
        return self._number()

    def _number(self) -> int | float:
        start = self._at
        text = self._match(_NUMBER, "a value")
        found = _NUMBER.fullmatch(self._text, start, self._at)
        try:
            number = float(text) if found and (found[1] or found[2]) else int(text)
        except ValueError as error:
            raise self.error("a number has too many digits") from error
        if number in (float("inf"), float("-inf")):
            raise self.error(f"{text:.40} is too large a number")
        return number
