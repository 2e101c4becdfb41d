"""Fills a grammar's caches before its first request, a little at a time.

First its terminals are looked at. Then made-up texts are read, since states and masks are made as
texts reach them: two that go through the grammar in the two styles that JSON is written in, and
further ones that turn off from the first at one place each.

Made-up texts of a grammar, as simple as it has them: what a warm-up reads.

What a model will write differs from the simplest texts mostly within strings and numbers, where
states repeat. Knows no masks.
"""

import heapq
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import count, islice

import numpy as np

from dlm.grammar.canvas.frontier import Frontier
from dlm.grammar.constraint import Candidates
from dlm.grammar.errors import GrammarError, Unfinished
from dlm.grammar.parse.compiled import Compiled
from dlm.grammar.parse.earley import Parser, State
from dlm.grammar.parse.state_masks import Exploration
from dlm.grammar.vocabulary import Vocabulary

_LOOK, _RANGE = 3, 2  # units for a look at a state, and for each range of bytes there
_WAYS = 2  # that are found from a state: one to take, one to go back to
_DEEP = 3  # objects within each other
_LONGEST = 3072  # bytes of a text behind its last control token

_ANY = {b"{", b"[", b'"', b"t", b"n", b"1"}  # how a value of any type begins

# What is written where there is a choice; escapes and other alphabets only where there is none.
_USUAL = b'a1"0,:[{.-]}' + bytes(byte for byte in range(33, 127) if byte != ord("\\"))


@dataclass(frozen=True, slots=True)
class TextPart:
    tokens: tuple[int, ...] = ()  # up to the last control token
    said: bytes = b""  # behind it

    def spelled(self, vocabulary: Vocabulary) -> list[int]:
        return [*self.tokens, *vocabulary.encode(self.said.decode(errors="ignore"))]


class WarmupTexts:
    """Texts that each lead to states of their own, with at most so many `turns` off the first way.

    The first way takes, again and again, what is most usual of all that leads somewhere new. Where
    nothing does, and no text may end, it goes back to the last state that has another way.
    """

    def __init__(self, compiled: Compiled, indented: bool = False, turns: int = 0):
        """`indented`: in the style of JSON that has a line for each value."""
        self._compiled, self._indented, self._turns = compiled, indented, turns
        self._seen: set[State] = set()
        self._begun = count(1)  # numbers the texts: they go to their ends one by one
        self._todo = [(0, 0, compiled.parser.start, TextPart())]  # turns, number, where it leads
        self._missed: list[tuple[State, TextPart]] = []  # the second best ways of the text at hand

    def __bool__(self) -> bool:
        """There may be more of them."""
        return bool(self._todo)

    def advance(self) -> TextPart | None:
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

    def _fresh(self, state: State, text: TextPart) -> Iterator[tuple[State, TextPart]]:
        """The ways on that lead to states which are new, one to each."""
        if len(text.said) >= _LONGEST:
            return
        met = {state}
        for at, longer in _ways(self._compiled, state, text, self._indented):
            if at is not None and at.cost is not None and at not in met and at not in self._seen:
                met.add(at)
                yield at, longer

    def _back(self, state: State) -> list[tuple[State, TextPart]]:
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
    compiled: Compiled, state: State, text: TextPart, indented: bool
) -> Iterator[tuple[State | None, TextPart]]:
    """How `text` may go on at `state`, the usual first, and where that leads to."""
    parser, said = compiled.parser, text.said
    for byte in _bytes(parser, state, said):
        spaced = _space(said, byte, indented) + byte
        at = _behind(parser, state, spaced)
        if at is None:
            spaced, at = byte, _behind(parser, state, byte)
        yield at, TextPart(text.tokens, said + spaced)
    for space in (b" ", b"\n"):
        if at := _behind(parser, state, space):
            for byte in _bytes(parser, at, space):
                yield _behind(parser, at, byte), TextPart(text.tokens, said + space + byte)
    for token in sorted(parser.named(state)):
        tokens = (*text.spelled(compiled.vocabulary), token)
        yield parser.after(state, token, b""), TextPart(tokens)


def _behind(parser: Parser, state: State | None, text: bytes) -> State | None:
    for byte in text:
        state = state and parser.after_byte(state, byte)
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


_MOST_WORK = 200_000  # units for all of it: 1 to 2 s
_EXPLORING = 40_000  # units of it, at most, before texts are read
_STATES, _MASKS = 6144, 512  # enough is known then
_READ, _CANVAS = 1024, 16  # tokens of a text that are read, and at a time
_KNOWN = 4  # symbols that are read for a unit of work where nothing is new
_BUDGET = 1 << 30  # tokens: it refuses nothing


class _Refused(Exception):  # noqa: N818  # it reports
    """The grammar does not go on as a text does: a key of it is there already."""


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The scores of a model that wants one text and knows no other."""

    argmax: list[int]

    def best(self, position: int, allowed: np.ndarray) -> int:
        raise _Refused

    def candidates(self, position: int, allowed: np.ndarray, count: int) -> Candidates:
        raise _Refused


class Warmup:
    """Of one grammar. It changes nothing about what is allowed."""

    def __init__(self, compiled: Compiled):
        self.compiled = compiled
        self._left = _MOST_WORK
        self._explored = 0  # units
        self._texts = deque(
            [
                WarmupTexts(compiled),
                WarmupTexts(compiled, indented=True),
                WarmupTexts(compiled, turns=1),
            ]
        )
        self._reading: _Reading | None = None
        self.done = False

    def go_on(self, work: int) -> None:
        """Do so many units of work, if there is as much to do.

        It takes more by the last piece at most, a state or a mask: a state of which the grammar has
        very many readings is 10,000 units, most are 10; a mask is 50 and, where a terminal is met
        for the first time, one for every 100 nodes of the trie behind 32 first bytes.
        """
        compiled, meter = self.compiled, self.compiled.meter
        begun, most = meter.spent, min(work, self._left)
        try:
            while not self.done and (left := begun + most - meter.spent) > 0:
                meter.begin(left)
                self._advance(left)
                enough = len(compiled.parser) > _STATES or compiled.masks.count > _MASKS
                self.done = enough or not (self._texts or self._reading)
        except Unfinished:
            pass  # what is begun goes on when there is more work to spend
        except GrammarError:
            self.done = True  # whoever asks for a text of this grammar will be told
        finally:
            meter.begin()
        self._left -= meter.spent - begun
        self.done = self.done or self._left <= 0

    @cached_property
    def _exploration(self) -> Exploration:
        """Begun in a step that has time for it: it looks at all edges of the grammar."""
        return self.compiled.exploration()

    def _advance(self, work: int) -> None:
        """A small part of it. What raises `Unfinished` has changed nothing but what is learnt."""
        if self._exploration and self._explored < _EXPLORING:
            begun = self.compiled.meter.spent
            try:
                self._exploration.advance()
            finally:
                self._explored += self.compiled.meter.spent - begun
            return
        if self._reading is not None:
            self._reading.advance(work)
            if self._reading.done:
                self._reading = None
            return
        texts = self._texts[0]
        text = texts.advance()
        if text is not None:
            self._reading = _Reading(self.compiled, text)
        if not texts:
            self._texts.popleft()


class _Reading:
    """Of one text: byte by byte, since a model's tokens may end anywhere, then as it is spelled."""

    def __init__(self, compiled: Compiled, text: TextPart):
        self._compiled, self._state = compiled, compiled.parser.start
        self._symbols = deque([*text.tokens, *(bytes([byte]) for byte in text.said)])
        self._tokens = deque(text.spelled(compiled.vocabulary)[:_READ])
        self._frontier: Frontier | None = None  # its making is work, too
        compiled.meter.add(len(self._symbols) // _KNOWN)

    @property
    def done(self) -> bool:
        return not self._symbols and not self._tokens

    def advance(self, work: int) -> None:
        if self._symbols:
            self._read(self._symbols[0])
        else:
            self._guide(work)

    def _read(self, symbol: int | bytes) -> None:
        """A token, or a byte and the mask behind it."""
        compiled, parser = self._compiled, self._compiled.parser
        if isinstance(symbol, int):
            state = compiled.after(self._state, symbol)
        else:
            state = parser.after_byte(self._state, symbol[0])
            if state is not None and not parser.forced(state):
                compiled.mask(state)
        self._symbols.popleft()
        if state is None:
            self._symbols.clear()
        else:
            self._state = state

    def _guide(self, work: int) -> None:
        """A few tokens, as a canvas."""
        canvas = [*islice(self._tokens, _CANVAS)]
        frontier = self._frontier = self._frontier or Frontier(self._compiled, _BUDGET)
        frontier.work = work
        try:
            frontier.guide(_Wanted(canvas))
            frontier.commit(canvas)
        except _Refused:
            self._tokens.clear()
        else:
            for _ in canvas:
                self._tokens.popleft()
