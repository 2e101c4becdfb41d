"""Tool calls in Gemma 4's own form, `call:NAME{key:value,...}` between markers: rules and parser.

Keys are bare, and the token `<|"|>` quotes strings; there are no escapes and no spaces. A key ends
at the first colon that a value follows (`schema.dialect.is_bare`). A marker is a token; text that
looks like one is text. `Answer` is the result for every form of calls. Knows no tools and no
schemas.
"""

import json
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dlm.grammar.errors import InvalidValueError
from dlm.grammar.regex.nodes import Node, SpecialToken, concatenation
from dlm.grammar.schema.dialect import BARE_VALUE
from dlm.grammar.tokens import CallMarkers, VocabularySlice

if TYPE_CHECKING:
    from dlm.grammar.vocabulary import Vocabulary


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call of a tool."""

    name: str
    arguments: dict[str, Any]

    def to_openai(self, id: str) -> dict[str, Any]:
        """Return the call in the form of OpenAI's chat API, its arguments as JSON text."""
        arguments = json.dumps(self.arguments, ensure_ascii=False)
        function = {"name": self.name, "arguments": arguments}
        return {"id": id, "type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class Answer:
    """A finished answer: its text outside of calls, None if it is empty, and its calls."""

    content: str | None
    tool_calls: tuple[ToolCall, ...]


_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?", re.ASCII)
_WORDS = {"true": True, "false": False, "null": None}
_NAME = re.compile(r"[\w.-]+")


def gemma_call(name: str, arguments: Node, markers: CallMarkers) -> Node:
    """Return a call of the tool `name`."""
    opened, closed = (SpecialToken(frozenset((id,))) for id in (markers.open, markers.close))
    return concatenation(opened, f"call:{name}", arguments, closed)


def read_calls(tokens: Sequence[int], vocabulary: "Vocabulary | VocabularySlice") -> Answer:
    """Return the text and the calls of an answer. Raises `InvalidValueError` if malformed."""
    if vocabulary.call is None:
        return Answer(vocabulary.text(tokens) or None, ())
    reader = _CallReader(tokens, vocabulary, vocabulary.call)
    try:
        return reader.answer()
    except RecursionError as error:
        raise reader.error("values are nested too deeply") from error


def span_of(
    tokens: Sequence[int],
    vocabulary: "Vocabulary | VocabularySlice",
    call: int,
    path: Sequence[str | int],
) -> tuple[int, int] | None:
    """Return the indices of the first and last token of the part at `path` in a call's arguments.

    `call` is the call's index in the answer. None if there is no such part.
    """
    if vocabulary.call is None:
        return None
    reader = _CallReader(tokens, vocabulary, vocabulary.call, wanted=[call, *path])
    with suppress(InvalidValueError, RecursionError):
        reader.answer()
    return reader.span


class _CallReader:
    """Parser of runs of text and the control tokens between them."""

    def __init__(
        self,
        tokens: Sequence[int],
        vocabulary: "Vocabulary | VocabularySlice",
        markers: CallMarkers,
        wanted: Sequence[str | int] = (),
    ):
        """Start at the first token.

        `wanted` is a call's index and a path in its arguments; `span` becomes the part's tokens.
        """
        self._tokens, self._vocabulary, self._markers = list(tokens), vocabulary, markers
        self._token = 0  # index of the next token, which is not in `_text`
        self._text, self._at = "", 0
        self.span: tuple[int, int] | None = None
        self._wanted, self._path = list(wanted), list[str | int]()

    def error(self, reason: str) -> InvalidValueError:
        return InvalidValueError(f"a tool call is malformed before token {self._token}: {reason}")

    def answer(self) -> Answer:
        content, calls = [], []
        while self._token < len(self._tokens):
            content.append(self._run("replace"))
            if self._marked(self._markers.open):
                self._path.append(len(calls))
                calls.append(self._call())
                self._path.pop()
            elif self._marked(self._markers.close) or self._marked(self._markers.quote):
                raise self.error("its beginning is missing")
            else:
                self._token += 1  # a control token without meaning here
        return Answer("".join(content) or None, tuple(calls))

    def _run(self, errors: str) -> str:
        """Return the text up to the next control token, and move to that token."""
        start, control = self._token, self._vocabulary.control
        while self._token < len(self._tokens) and self._tokens[self._token] not in control:
            self._token += 1
        pieces = self._vocabulary.pieces
        run = b"".join(pieces[token] for token in self._tokens[start : self._token])
        try:
            return run.decode("utf-8", errors)
        except UnicodeDecodeError as error:
            raise self.error("its bytes are not UTF-8") from error

    def _marked(self, marker: int) -> bool:
        """Whether the control token `marker` is next; if so, move after it."""
        if self._at < len(self._text) or self._tokens[self._token : self._token + 1] != [marker]:
            return False
        self._token += 1
        return True

    def _inside(self, marker: int) -> bool:
        """Whether the control token `marker` is next; if so, continue with the text after it."""
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

    def _match(self, pattern: re.Pattern[str], name: str) -> str:
        if not (found := pattern.match(self._text, self._at)):
            raise self.error(f"{name} is missing before {self._text[self._at :]!r:.40}")
        self._at = found.end()
        return found[0]

    def _call(self) -> ToolCall:
        self._text, self._at = self._run("strict"), 0
        self._expect("call:")
        name = self._match(_NAME, "a tool's name")
        first = self._reached()
        self._expect("{")
        arguments = self._members()
        self._note(first)
        if not self._marked(self._markers.close):
            raise self.error("its closing marker is missing")
        return ToolCall(name, arguments)

    def _members(self) -> dict[str, Any]:
        members = {}
        if not self._next("}"):
            while True:
                key = self._key()
                members[key] = self._part(key)
                if self._next("}"):
                    break
                self._expect(",")
        return members

    def _key(self) -> str:
        """Return the next key, and move after its colon."""
        text, start = self._text, self._at
        first = end = text.find(":", start)
        while end >= 0 and not self._is_value(end + 1):
            end = text.find(":", end + 1)
        if first < 0:
            missing = "a key" if text[start : start + 1] in ("", "}") else "':'"
            raise self.error(f"{missing} is missing before {text[start:]!r:.40}")
        end = first if end < 0 else end  # no value follows any colon: report the first one
        self._at = end + 1
        return text[start:end]

    def _is_value(self, at: int) -> bool:
        """Whether a value begins at the index `at`, which may be the end of the text."""
        if at < len(self._text):
            return BARE_VALUE.match(self._text, at) is not None
        return self._tokens[self._token : self._token + 1] == [self._markers.quote]

    def _items(self) -> list[Any]:
        items = []
        if not self._next("]"):
            while True:
                items.append(self._part(len(items)))
                if self._next("]"):
                    break
                self._expect(",")
        return items

    def _part(self, step: str | int) -> Any:
        """Return the next value; `step` is the last step of the path to it."""
        first = self._reached()
        self._path.append(step)
        value = self._value()
        self._note(first)
        self._path.pop()
        return value

    def _note(self, first: int) -> None:
        """Set `span` to the tokens since `first` if the current path is the wanted one."""
        if self._path == self._wanted:
            self.span = first, self._reached(last=True)

    def _reached(self, last: bool = False) -> int:
        """Return the index of the next token, or of the `last` one that was read."""
        if not self._wanted:
            return 0
        at, left = self._token, len(self._text[self._at :].encode())
        while left > 0:
            at -= 1
            left -= len(self._vocabulary.pieces[self._tokens[at]])
        return at - 1 if last and left == 0 else at

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
