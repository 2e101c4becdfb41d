"""Made-up texts of a grammar, as simple as it has them: what a warm-up reads.

What a model will write differs from the simplest texts mostly within strings and numbers, where
states repeat. Knows no masks.
"""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import count, islice

from dlm.grammar.parse.compiled import Compiled
from dlm.grammar.parse.parser import Parser
from dlm.grammar.parse.state import State
from dlm.grammar.vocabulary import Vocabulary

_LOOK, _RANGE = 3, 2  # units for a look at a state, and for each range of bytes there
_WAYS = 2  # that are found from a state: one to take, one to go back to
_DEEP = 3  # objects within each other
_LONGEST = 3072  # bytes of a text behind its last control token

_ANY = {b"{", b"[", b'"', b"t", b"n", b"1"}  # how a value of any type begins

# What is written where there is a choice; escapes and other alphabets only where there is none.
_USUAL = b'a1"0,:[{.-]}' + bytes(byte for byte in range(33, 127) if byte != ord("\\"))


@dataclass(frozen=True, slots=True)
class Text:
    tokens: tuple[int, ...] = ()  # up to the last control token
    said: bytes = b""  # behind it

    def spelled(self, vocabulary: Vocabulary) -> list[int]:
        return [*self.tokens, *vocabulary.encode(self.said.decode(errors="ignore"))]


class Texts:
    """Texts that each lead to states of their own, with at most so many `turns` off the first way.

    The first way takes, again and again, what is most usual of all that leads somewhere new. Where
    nothing does, and no text may end, it goes back to the last state that has another way.
    """

    def __init__(self, compiled: Compiled, indented: bool = False, turns: int = 0):
        """`indented`: in the style of JSON that has a line for each value."""
        self._compiled, self._indented, self._turns = compiled, indented, turns
        self._seen: set[State] = set()
        self._begun = count(1)  # numbers the texts: they go to their ends one by one
        self._todo = [(0, 0, compiled.parser.start, Text())]  # turns, number, where it leads
        self._missed: list[tuple[State, Text]] = []  # the second best ways of the text at hand

    def __bool__(self) -> bool:
        """There may be more of them."""
        return bool(self._todo)

    def advance(self) -> Text | None:
        """Look at one state more; the text up to there, if nothing new is behind it.

        What raises `Unfinished` has changed nothing, and is to be done again.
        """
        turned, number, state, text = self._todo[0]
        last, known = turned == self._turns, state in self._seen
        fresh = [] if known else [*islice(self._fresh(state, text), _WAYS if last else None)]
        self._compiled.meter.add(_LOOK + _RANGE * _width(self._compiled.parser, state))
        heapq.heappop(self._todo)
        if known:
            return None
        self._seen.add(state)
        found = None if fresh else text
        if last:
            self._missed += fresh[1:]
            fresh = fresh[:1] or self._back(state)
        for i, (at, longer) in enumerate(fresh):
            place = turned + bool(i), next(self._begun) if i else number
            heapq.heappush(self._todo, (*place, at, longer))
        return found

    def _fresh(self, state: State, text: Text) -> Iterator[tuple[State, Text]]:
        """The ways on that lead to states which are new, one to each."""
        if len(text.said) >= _LONGEST:
            return
        met = {state}
        for at, longer in _ways(self._compiled, state, text, self._indented):
            if at is not None and at.cost is not None and at not in met and at not in self._seen:
                met.add(at)
                yield at, longer

    def _back(self, state: State) -> list[tuple[State, Text]]:
        """The last way that was not taken, if it is new still, and no text may end at `state`."""
        while self._missed and state.cost:
            at, text = self._missed.pop()
            if at not in self._seen:
                return [(at, text)]
        self._missed.clear()
        return []


def _width(parser: Parser, state: State) -> int:
    """Ranges of bytes that its threads tell apart: what a look at them costs."""
    return sum(len(parser.scanners[thread.terminal].moves(thread.at)) for thread in state.threads)


def _ways(
    compiled: Compiled, state: State, text: Text, indented: bool
) -> Iterator[tuple[State | None, Text]]:
    """How `text` may go on at `state`, the usual first, and where that leads to."""
    parser, said = compiled.parser, text.said
    for byte in _bytes(parser, state, said):
        spaced = _space(said, byte, indented) + byte
        at = _behind(parser, state, spaced)
        if at is None:
            spaced, at = byte, _behind(parser, state, byte)
        yield at, Text(text.tokens, said + spaced)
    for space in (b" ", b"\n"):
        if at := _behind(parser, state, space):
            for byte in _bytes(parser, at, space):
                yield _behind(parser, at, byte), Text(text.tokens, said + space + byte)
    for token in sorted(parser.named(state)):
        tokens = (*text.spelled(compiled.vocabulary), token)
        yield parser.after(state, token, b""), Text(tokens)


def _behind(parser: Parser, state: State | None, text: bytes) -> State | None:
    for byte in text:
        state = state and parser.behind(state, byte)
    return state


def _bytes(parser: Parser, state: State, said: bytes) -> list[bytes]:
    """What may follow: a name before other text, but the end of a word before more of it.

    Names come in the order in which the grammar says them. A value of any type is an object, and
    far within, a string.
    """
    ranges = parser.ranges(state)
    usual = {byte for low, high in ranges if (byte := _first(low, high))}
    names = {
        byte: place
        for place, (low, high) in reversed([*enumerate(ranges)])
        if low == high and ((byte := bytes([low])).isalpha() or byte == b"_")
    }
    deep = said.count(b"{") - said.count(b"}") >= _DEEP
    value = (b'"' if deep else b"{") if usual >= _ANY else None
    digits = said[-1:].isdigit()  # an exponent may follow, which is unusual
    word = len(said) > 1 and said[-2:].isalnum()

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
    """The most usual byte of a range; b"" if none of them is usual."""
    return next((bytes([byte]) for byte in _USUAL if low <= byte <= high), b"")


def _space(said: bytes, byte: bytes, indented: bool) -> bytes:
    """The white space that JSON has between `said` and `byte`."""
    closes, opened = byte in (b"]", b"}"), said.endswith((b"[", b"{"))
    if said.endswith(b":"):
        return b" "
    if not indented:
        return b" " if said.endswith(b",") else b""
    if closes == opened and not said.endswith(b","):
        return b""
    depth = sum(map(said.count, b"[{")) - sum(map(said.count, b"]}")) - closes
    return b"\n" + b"  " * depth
