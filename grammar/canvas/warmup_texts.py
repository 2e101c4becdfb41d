"""Simple texts of a grammar, for its warm-up.

Two texts go through the whole grammar, in compact and in indented JSON, and more differ from the
first in one place each. A model's texts differ from these mostly within strings and numbers, where
states repeat.
"""

import heapq
from collections.abc import Iterator
from functools import cache
from itertools import count, islice

from dlm.grammar.immutable import immutable
from dlm.grammar.parse.compiled import Compiled
from dlm.grammar.parse.earley import Parser
from dlm.grammar.parse.states import State
from dlm.grammar.vocabulary.vocabulary import Vocabulary

_LOOK, _RANGE = 3, 2  # units of work for a state, and for each range of bytes there
_WAYS = 2  # continuations computed for a state: one to take, one to return to
_DEEP = 3  # depth of nested objects
_LONGEST = 3072  # bytes of a text after its last control token
_ANY = {b"{", b"[", b'"', b"t", b"n", b"1"}  # first bytes of a value of any type
# Bytes in order of preference; escapes and other alphabets only if nothing else is allowed.
_USUAL = b'a1"0,:[{.-]}' + bytes(byte for byte in range(33, 127) if byte != ord("\\"))


@immutable()
class TextPart:
    """The beginning of a text."""

    tokens: tuple[int, ...] = ()  # up to the last control token
    text: bytes = b""  # after it

    def spelled(self, vocabulary: Vocabulary) -> list[int]:
        return [*self.tokens, *vocabulary.encode(self.text.decode(errors="ignore"))]


class WarmupTexts:
    """Texts that each reach new states, with at most `turns` deviations from the first text.

    The first text takes the most usual continuation that leads to a new state. If there is none,
    and the text may not end, it returns to the last state with another continuation.
    """

    def __init__(self, compiled: Compiled, indented: bool = False, turns: int = 0):
        """`indented`: the texts are JSON with a line for each value."""
        self._compiled, self._indented, self._turns = compiled, indented, turns
        self._seen: set[State] = set()
        self._begun = count(1)  # numbers the texts, which are finished one by one
        self._todo = [(0, 0, compiled.parser.start, TextPart())]  # turns, number, state, text
        self._missed: list[tuple[State, TextPart]] = []  # second choices of the current text

    def __bool__(self) -> bool:
        """Whether there may be more texts."""
        return bool(self._todo)

    def advance(self) -> TextPart | None:
        """Visit one more state. Returns the text up to it if no new state follows, else None.

        Raises `Unfinished`, with nothing changed: then call it again.
        """
        turned, number, state, text = self._todo[0]
        last, known = turned == self._turns, state in self._seen
        new = [] if known else [*islice(self._fresh(state, text), _WAYS if last else None)]
        self._compiled.meter.add(_LOOK + _RANGE * _width(self._compiled.parser, state))
        heapq.heappop(self._todo)
        if known:
            return None
        self._seen.add(state)
        finished = None if new else text
        if last:
            self._missed += new[1:]
            new = new[:1] or self._back(state)
        for i, (at, longer) in enumerate(new):
            place = turned + bool(i), next(self._begun) if i else number
            heapq.heappush(self._todo, (*place, at, longer))
        return finished

    def _fresh(self, state: State, text: TextPart) -> Iterator[tuple[State, TextPart]]:
        """Yield continuations of `text` to new states, one for each."""
        if len(text.text) >= _LONGEST:
            return
        met = {state}
        for at, longer in _continuations(self._compiled, state, text, self._indented):
            if at is not None and at.cost is not None and at not in met and at not in self._seen:
                met.add(at)
                yield at, longer

    def _back(self, state: State) -> list[tuple[State, TextPart]]:
        """Return the last second choice that is still new, if no text may end at `state`."""
        while self._missed and state.cost:
            at, text = self._missed.pop()
            if at not in self._seen:
                return [(at, text)]
        self._missed.clear()
        return []


def _width(parser: Parser, state: State) -> int:
    """Return the number of byte ranges of the state's threads, as a measure of work."""
    return sum(len(parser.scanners[thread.terminal].moves(thread.at)) for thread in state.threads)


def _continuations(
    compiled: Compiled, state: State, text: TextPart, indented: bool
) -> Iterator[tuple[State | None, TextPart]]:
    """Yield continuations of `text` at `state`, usual ones first, with the states after them."""
    parser, written = compiled.parser, text.text
    for byte in _bytes(parser, state, written):
        spaced = _space(written, byte, indented) + byte
        at = parser.after_text(state, spaced)
        if at is None:
            spaced, at = byte, parser.after_text(state, byte)
        yield at, TextPart(text.tokens, written + spaced)
    for space in (b" ", b"\n"):
        if at := parser.after_text(state, space):
            for byte in _bytes(parser, at, space):
                yield parser.after_text(at, byte), TextPart(text.tokens, written + space + byte)
    for token in sorted(parser.named(state)):
        tokens = (*text.spelled(compiled.vocabulary), token)
        yield parser.after(state, token, b""), TextPart(tokens)


def _bytes(parser: Parser, state: State, text: bytes) -> list[bytes]:
    """Return usual bytes that may follow `text`, sorted by preference.

    A name comes before other text, and the end of a word before more of it. Names are in the order
    of the grammar. For a value of any type, an object comes first, or a string if nested deeply.
    """
    ranges = parser.ranges(state)
    usual = {byte for low, high in ranges if (byte := _first(low, high))}
    names = {
        byte: place
        for place, (low, high) in reversed([*enumerate(ranges)])
        if low == high and ((byte := bytes([low])).isalpha() or byte == b"_")
    }
    deep = text.count(b"{") - text.count(b"}") >= _DEEP
    value = (b'"' if deep else b"{") if usual >= _ANY else None
    digits = text[-1:].isdigit()  # an exponent may follow, which is unusual
    word = len(text) > 1 and text[-2:].isalnum()

    return sorted(
        usual,
        key=lambda byte: (
            byte != value,
            digits or byte not in names,
            word and byte.isalnum(),
            names.get(byte, 0),
            _USUAL.index(byte),
        ),
    ) or [bytes([low]) for low, _ in ranges[:1]]


@cache
def _first(low: int, high: int) -> bytes:
    """Return the most usual byte of a range; b"" if none of them is usual."""
    return next((bytes([byte]) for byte in _USUAL if low <= byte <= high), b"")


def _space(text: bytes, byte: bytes, indented: bool) -> bytes:
    """Return the usual white space of JSON between `text` and `byte`."""
    closes, opened = byte in (b"]", b"}"), text.endswith((b"[", b"{"))
    if text.endswith(b":"):
        return b" "
    if not indented:
        return b" " if text.endswith(b",") else b""
    if closes == opened and not text.endswith(b","):
        return b""
    depth = sum(map(text.count, b"[{")) - sum(map(text.count, b"]}")) - closes
    return b"\n" + b"  " * depth
