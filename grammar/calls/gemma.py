"""Gemma 4's own form of calls: rules and a parser.

In `call:NAME{key:value,...}` between markers, keys are bare, and the token `<|"|>` quotes strings;
there are no escapes and no spaces. A key ends at the first colon that a value follows
(`schema.dialects.is_bare`). A marker is a token; text that looks like one is text. `GemmaReader`
turns calls into JSON, token by token; a finished call is what its pieces add up to. A parser raises
`InvalidValueError` for a malformed call. It does not check arguments, and knows no tools.
"""

import codecs
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from dlm.grammar.calls.answer import Answer, CallDelta, ToolCall
from dlm.grammar.errors import InvalidValueError
from dlm.grammar.regex.nodes import Node, SpecialToken, concatenation
from dlm.grammar.schema.dialects import BARE_VALUE
from dlm.grammar.vocabulary.pieces import GemmaMarkers, TokenPieces

_SCALAR = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|true|false|null")
_WORDS = "|".join(
    word[:end] for word in ("true", "false", "null") for end in range(1, len(word) + 1)
)
# The beginning of a number or of a word of JSON.
_BEGUN_SCALAR = re.compile(rf"(?:-?[0-9]*(?:\.[0-9]*)?(?:[eE][+-]?[0-9]*)?|{_WORDS})")
_CALL = "call:"
_NAME = re.compile(r"[\w.-]+")
_CLOSING = {"{": "}", "[": "]"}


def gemma_call(name: str, arguments: Node, markers: GemmaMarkers) -> Node:
    """Return a call of the tool `name`."""
    opened, closed = (SpecialToken(frozenset((id,))) for id in (markers.open, markers.close))
    return concatenation(opened, f"{_CALL}{name}", arguments, closed)


@dataclass(slots=True)
class _Container:
    """An object or an array that is being read."""

    bracket: str  # "{" or "["
    step: str | int | None  # the current key or index; None: no key has been read


@dataclass(slots=True)
class _Call:
    """A call that is being read, or has been."""

    name: str | None = None  # None until it is complete
    text: str = ""  # the part of the name, of a key, or of a number or word that has been read
    pieces: list[str] = field(default_factory=list)  # JSON text of the arguments
    containers: list[_Container] = field(default_factory=list)
    # Characters, each with its token, after a colon that may end the key; None: no such colon.
    after_colon: list[tuple[str, int]] | None = None


class GemmaReader:
    """Incremental parser of an answer, with its calls."""

    def __init__(self, vocabulary: TokenPieces, target: Sequence[str | int] = ()):
        """Start at the first token.

        `target` is a call's index and a path in its arguments; `span` becomes the part's tokens.
        """
        if not isinstance(vocabulary.call, GemmaMarkers):
            raise ValueError("this vocabulary has no tokens of Gemma's calls")
        self._vocabulary, self._markers = vocabulary, vocabulary.call
        self.span: tuple[int, int] | None = None
        self._target, self._begun = list(target), 0
        self._token = 0  # index of the token that is being read
        self._last = 0  # index of the token of the last character or marker
        self._content, self._calls = list[str](), list[_Call]()
        self._deltas: list[CallDelta] = []
        self._call = _Call()
        # Takes the next character of a call; None: no call is being read.
        self._state: Callable[[str], None] | None = None
        self._text, self._strict = (
            codecs.getincrementaldecoder("utf-8")(errors) for errors in ("replace", "strict")
        )

    def feed(self, tokens: Sequence[int]) -> list[CallDelta]:
        """Read the next `tokens`; return for each call its name and one piece of arguments, as far
        as these tokens have them. Raises `InvalidValueError` if a call is malformed."""
        self._deltas = []
        for token in tokens:
            control = token in self._vocabulary.control
            self._read(b"" if control else self._vocabulary.pieces[token], control)
            if control:
                self._mark(token)
            self._last = self._token
            self._token += 1
        return self._deltas

    @property
    def count(self) -> int:
        """The number of calls that have begun."""
        return len(self._calls)

    def end(self) -> list[CallDelta]:
        """End the answer here. Raises `InvalidValueError` if that is within a call."""
        self._deltas = []
        self._read(b"", final=True)
        if self._state is not None:
            self._fail("the answer's end")
        return self._deltas

    def answer(self) -> Answer:
        """Return the answer, which ends here. Raises `InvalidValueError` if a call is malformed."""
        self.end()
        calls = tuple(self._finished(call) for call in self._calls)
        return Answer("".join(self._content) or None, calls)

    def _finished(self, call: _Call) -> ToolCall:
        try:
            arguments = json.loads("".join(call.pieces), parse_float=self._float)
        except InvalidValueError:
            raise
        except RecursionError as error:
            raise self._error("values are nested too deeply") from error
        except ValueError as error:
            raise self._error("a number has too many digits") from error
        return ToolCall(call.name or "", arguments)

    def _float(self, text: str) -> float:
        if (number := float(text)) in (float("inf"), float("-inf")):
            raise self._error(f"{text:.40} is too large a number")
        return number

    def _error(self, reason: str) -> InvalidValueError:
        return InvalidValueError(f"a tool call is malformed before token {self._token}: {reason}")

    def _fail(self, obstacle: str) -> NoReturn:
        """Raise an error that names what is missing before `obstacle`."""
        call, missing = self._call, "a value"
        if self._state == self._head:
            is_call = call.text.startswith(_CALL)
            missing = "'{'" if is_call and _NAME.match(call.text, len(_CALL)) else "a tool's name"
            missing = missing if is_call else f"{_CALL!r}"
        elif self._state == self._key and call.after_colon is None and ":" not in call.text:
            missing = "':'" if call.text else "a key"
        elif self._state == self._after:
            missing = "','" if call.containers else "its closing marker"
        reason = f"{missing} is missing before {obstacle}"
        raise self._error("a string does not end" if self._state == self._string else reason)

    def _read(self, piece: bytes, final: bool = False) -> None:
        """Read the bytes of a token; `final`: a character ends with them."""
        if self._state is None:
            self._content.append(self._text.decode(piece, final))
            return
        try:
            text = self._strict.decode(piece, final)
        except UnicodeDecodeError as error:
            raise self._error("its bytes are not UTF-8") from error
        if self._state == self._string:
            self._string(text)
            return
        for character in text:
            self._take(character)

    def _take(self, character: str) -> None:
        """Read a character of a call."""
        if self._state is not None:
            self._state(character)
            self._last = self._token

    def _mark(self, token: int) -> None:
        """Read a control token."""
        call, markers = self._call, self._markers
        if self._state is None:
            if token == markers.open:
                self._call, self._state = _Call(), self._head
                self._calls.append(self._call)
            elif token in (markers.close, markers.quote):
                raise self._error("its beginning is missing")
        elif token == markers.close and self._state == self._after and not call.containers:
            self._state = None
        elif token != markers.quote:
            self._fail("a control token")
        elif self._state == self._string:
            self._emit('"')
            self._end(self._token)
        else:
            if self._state == self._key and call.after_colon == []:
                self._end_key()
            if self._state != self._value:
                self._fail("a string")
            self._begin()
            self._emit('"')
            self._state = self._string

    def _emit(self, arguments: str) -> None:
        if not arguments:
            return
        self._call.pieces.append(arguments)
        index, last = len(self._calls) - 1, self._deltas[-1] if self._deltas else None
        if last and (last.index, last.name) == (index, None):
            last.arguments += arguments
        else:
            self._deltas.append(CallDelta(index, None, arguments))

    def _head(self, character: str) -> None:
        call = self._call
        if character != "{":
            call.text += character
            return
        name = call.text.removeprefix(_CALL)
        if not call.text.startswith(_CALL) or not _NAME.fullmatch(name):
            self._fail(repr(character))
        call.name = name
        self._deltas.append(CallDelta(len(self._calls) - 1, name, ""))
        self._value(character)

    def _key(self, character: str) -> None:
        call = self._call
        if call.after_colon is not None:
            self._after_colon(call.after_colon, character)
        elif character == ":":
            call.after_colon = []
        elif character != "}" or call.text:
            call.text += character
        elif call.containers[-1].step is None:
            self._close(character)
        else:
            self._fail(repr(character))

    def _after_colon(self, after: list[tuple[str, int]], character: str) -> None:
        """Decide by the text after a colon whether the colon ends the key (`is_bare`)."""
        call = self._call
        after.append((character, self._token))
        text = "".join(letter for letter, _ in after)
        if BARE_VALUE.match(text):
            self._end_key()
            for letter, self._token in after:
                self._take(letter)
        elif not _BEGUN_SCALAR.fullmatch(text):
            call.text, call.after_colon = f"{call.text}:{text[:-1]}", None
            self._key(character)

    def _end_key(self) -> None:
        call = self._call
        call.containers[-1].step = call.text
        self._emit(f"{json.dumps(call.text, ensure_ascii=False)}: ")
        call.text, call.after_colon, self._state = "", None, self._value

    def _value(self, character: str) -> None:
        call = self._call
        if character == "]" and call.containers[-1:] == [_Container("[", 0)]:
            self._close(character)
        elif character in ",]}":
            self._fail(repr(character))
        else:
            self._begin()
            call.text = ""
            if character in "{[":
                call.containers.append(_Container(character, 0 if character == "[" else None))
                self._emit(character)
                self._state = self._key if character == "{" else self._value
            else:
                self._state = self._scalar
                self._scalar(character)

    def _scalar(self, character: str) -> None:
        call = self._call
        if character not in ",]}":
            call.text += character
            self._emit(character)
            return
        if not _SCALAR.fullmatch(call.text):
            self._fail(f"{call.text!r:.40}")
        call.text = ""
        self._end(self._last)
        self._after(character)

    def _string(self, text: str) -> None:
        """Read several characters within a string at once."""
        self._emit(json.dumps(text, ensure_ascii=False)[1:-1])

    def _after(self, character: str) -> None:
        """Read a character after a value."""
        containers = self._call.containers
        if not containers:
            self._fail(repr(character))
        innermost = containers[-1]
        if character == _CLOSING[innermost.bracket]:
            self._close(character)
        elif character != ",":
            self._fail(repr(character))
        else:
            self._emit(", ")
            if isinstance(innermost.step, int):
                innermost.step += 1
            self._state = self._key if innermost.bracket == "{" else self._value

    def _close(self, character: str) -> None:
        self._call.containers.pop()
        self._emit(character)
        self._end(self._token)

    def _begin(self) -> None:
        """Note where a value begins."""
        if self._target and self._path() == self._target:
            self._begun = self._token

    def _end(self, last: int) -> None:
        """Expect what follows a value whose last token has the index `last`."""
        self._state = self._after
        if self._target and self._path() == self._target:
            self.span = self._begun, last

    def _path(self) -> list[str | int | None]:
        return [len(self._calls) - 1, *(container.step for container in self._call.containers)]
