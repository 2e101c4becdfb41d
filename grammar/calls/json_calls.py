"""Reader of calls whose arguments are JSON: in tags as Hermes writes them, after control tokens as
Mistral does, or bare as Llama does.

A call is its opening, a head with the tool's name, an object of arguments, and a tail. After a tail
that ends with a comma, the next call of a list has no opening. The arguments are passed on as soon
as they arrive; of a repeated key, the last value is the argument. A form's control tokens are
characters here that no text holds. The reader raises `InvalidValueError` for a malformed call. It
does not check arguments, and knows no tools.
"""

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NoReturn

from dlm.grammar.calls.answer import Answer, CallDelta, ToolCall
from dlm.grammar.calls.token_text import SPACE, SURROGATES, TokenText, after_space, malformed, shown
from dlm.grammar.schema.evaluate import decoded
from dlm.grammar.vocabulary.pieces import TokenPieces

_LONGEST_HEAD = 512  # characters: a name has at most 64, the others are white space and syntax
_LONGEST_TAIL = 128
_LONGEST_ESCAPE = 12
_HIGH = r"\\u[dD][89abAB][0-9a-fA-F]{2}"  # an escape with which a pair of surrogates begins
# Characters of a string, and whole escapes.
_WHOLE = re.compile(rf'[^"\\]+|{_HIGH}\\u[0-9a-fA-F]{{4}}|(?!{_HIGH})\\u[0-9a-fA-F]{{4}}|\\[^u]')
_OUTSIDE = re.compile(r'[^"{}\[\]]+')


@dataclass(frozen=True, slots=True)
class JsonSyntax:
    """Syntax of a call around its arguments, an object of JSON."""

    opening: str
    head: re.Pattern[str]  # from the opening to the arguments; its first group is the tool's name
    tail: re.Pattern[str]  # after the arguments
    shape: str  # of a whole call, for errors
    end: str = ""  # the text that ends a call, for errors


@dataclass(slots=True)
class _JsonCall:
    """A call that is being read, or has been; places are characters of the answer."""

    opened: int  # where its opening begins
    name: str = ""
    begin: int = -1  # of its arguments; -1: they have not begun
    end: int = -1  # likewise
    closed: int = -1  # after its tail; -1: it is being read
    depth: int = 0  # of brackets in the arguments so far
    within: bool = False  # whether these end within a string


class JsonReader:
    """Incremental reader of an answer with calls of one syntax."""

    def __init__(
        self,
        syntax: JsonSyntax,
        vocabulary: TokenPieces | None,
        marks: Mapping[int, str],
        anywhere: bool,
        target: Sequence[str | int] = (),
    ):
        """`marks` are the characters for a form's control tokens. Unless calls may begin
        `anywhere`, one begins the answer, or all of it is text. `target` is a call's index and a
        path in its arguments, whose tokens are `span`."""
        self._syntax, self._anywhere, self._target = syntax, anywhere, target
        self._written = TokenText(vocabulary, marks)
        self._at = 0  # index of the first character that has not been read
        self._calls: list[_JsonCall] = []
        self._deltas: list[CallDelta] = []

    def feed(self, tokens: Sequence[int]) -> list[CallDelta]:
        self._written.add(tokens)
        return self._read()

    def feed_text(self, text: str) -> list[CallDelta]:
        """Read the next characters, as `feed` does."""
        self._written.text += text
        return self._read()

    @property
    def count(self) -> int:
        return len(self._calls)

    def end(self) -> list[CallDelta]:
        self._written.end()
        deltas = self._read()
        if self._calls and self._calls[-1].closed < 0:
            self._fail(self._calls[-1])
        return deltas

    def answer(self) -> Answer:
        self.end()
        text, content, at, calls = self._written.text, "", 0, []
        for call in self._calls:
            content = (content + text[at : call.opened]).rstrip()
            at = call.closed
            try:
                arguments, _ = decoded(text, call.begin, repeated=True)
            except (ValueError, RecursionError) as error:
                raise malformed(call.begin, f"not JSON: {error}") from error
            calls.append(ToolCall(call.name, arguments))
        if not calls or text[at:].strip():
            content += text[at:]
        return Answer(shown(content) or None, tuple(calls))

    @property
    def span(self) -> tuple[int, int] | None:
        if not self._target:
            return None
        number, *path = self._target
        if not isinstance(number, int) or number >= len(self._calls):
            return None
        with suppress(ValueError, RecursionError, IndexError):
            return self._written.tokens(
                *_place(self._written.text, self._calls[number].begin, path)
            )
        return None

    def _read(self) -> list[CallDelta]:
        self._deltas = []
        while self._step():
            pass
        return self._deltas

    def _step(self) -> bool:
        """Read the next part of the answer; return whether it is complete."""
        if not self._calls or self._calls[-1].closed >= 0:
            return self._open()
        call, text = self._calls[-1], self._written.text
        if call.begin < 0:
            return self._head(call)
        if call.end < 0:
            return self._arguments(call)
        if tail := self._syntax.tail.match(text, self._at):
            call.closed = self._at = tail.end()
            if tail[0].endswith(","):
                self._calls.append(_JsonCall(self._at))
            return True
        if len(text) - self._at > _LONGEST_TAIL:
            self._fail(call)
        return False

    def _open(self) -> bool:
        text, opening = self._written.text, self._syntax.opening
        opened = text.find(opening, self._at)
        if opened >= 0 and (self._anywhere or self._calls or not text[:opened].strip()):
            self._at = opened + len(opening)
            self._calls.append(_JsonCall(opened))
            return True
        self._at = max(self._at, len(text) - len(opening) + 1)
        return False

    def _head(self, call: _JsonCall) -> bool:
        text = self._written.text
        head = self._syntax.head.match(text, self._at)
        if head is None or head.end() == len(text):
            if len(text) - self._at > _LONGEST_HEAD:
                self._fail(call)
            return False
        if text[head.end()] != "{":
            self._fail(call)
        call.name, call.begin, self._at = head[1], head.end(), head.end()
        self._deltas.append(CallDelta(len(self._calls) - 1, call.name, ""))
        return True

    def _arguments(self, call: _JsonCall) -> bool:
        """Pass on the arguments as far as they have arrived, spaced and escaped as `json.dumps`
        does; no escape is divided."""
        text, begin, pieces = self._written.text, self._at, list[str]()
        while self._at < len(text) and call.end < 0:
            inside = call.within and text[self._at] != '"'
            part = (_WHOLE if inside else _OUTSIDE).match(text, self._at)
            if part is not None:
                pieces.append(self._escaped(part[0]) if inside else _spaced(part[0]))
                self._at = part.end()
            elif inside:
                if len(text) - self._at >= _LONGEST_ESCAPE:
                    self._fail(call)
                break
            else:
                pieces.append(text[self._at])
                self._bracket(call, text[self._at])
        if SURROGATES.search(text, begin, self._at):
            raise malformed(begin, "its arguments hold a control token, or bytes of no text")
        if piece := "".join(pieces):
            self._deltas.append(CallDelta(len(self._calls) - 1, None, piece))
        return call.end >= 0

    def _escaped(self, characters: str) -> str:
        """Return characters of a string with the escapes of `json.dumps`."""
        try:
            return json.dumps(json.loads(f'"{characters}"'), ensure_ascii=False)[1:-1]
        except ValueError as error:
            raise malformed(self._at, f"not JSON: {error}") from error

    def _bracket(self, call: _JsonCall, character: str) -> None:
        """Read a bracket, or a quote around a string."""
        self._at += 1
        if character == '"':
            call.within = not call.within
        else:
            call.depth += 1 if character in "{[" else -1
            if not call.depth:
                call.end = self._at

    def _fail(self, call: _JsonCall) -> NoReturn:
        """Raise an error that names what is missing."""
        reason = f"{self._syntax.end} is missing"
        if call.begin < 0:
            reason = f"not {self._syntax.shape}"
        elif call.end < 0:
            reason = "not JSON: its arguments do not end"
        raise malformed(self._at, reason)


def _spaced(text: str) -> str:
    """Return JSON text outside of strings and brackets with the blanks of `json.dumps`."""
    return SPACE.sub("", text).replace(",", ", ").replace(":", ": ")


def _place(text: str, at: int, path: Sequence[str | int]) -> tuple[int, int]:
    """Return the begin and the end of the part at `path` of the JSON value that begins at
    `text[at]`. Raises `ValueError` if there is none."""
    for step in path:
        at = _member(text, at, step)
    return at, decoded(text, at, repeated=True)[1]


def _member(text: str, at: int, step: str | int) -> int:
    """Return where the member `step` of an object or an array begins; of several, the last."""
    in_object, index, begin = text[at] == "{", 0, -1
    at = after_space(text, at + 1)
    while text[at] not in "}]":
        key: str | int = index
        if in_object:
            key, at = decoded(text, at)
            at = after_space(text, after_space(text, at) + 1)
        if key == step:
            begin = at
        at = after_space(text, decoded(text, at, repeated=True)[1])
        if text[at] == ",":
            at = after_space(text, at + 1)
        index += 1
    if begin < 0:
        raise ValueError(f"there is no {step!r:.40}")
    return begin
