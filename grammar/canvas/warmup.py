"""Fills a grammar's caches before its first request: made-up texts are read, a little at a time.

States and masks are made as texts reach them, and what a model will write differs from the simplest
texts mostly within strings and numbers, where states repeat. Two texts go through a grammar in the
two styles that JSON is written in, and further ones turn off from the first at one place each.
"""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import chain, count

import numpy as np

from dlm.grammar.canvas.frontier import Frontier
from dlm.grammar.constraint import Candidates
from dlm.grammar.errors import GrammarError, Unfinished
from dlm.grammar.masks.bits import tokens_in
from dlm.grammar.parse.compiled import Compiled
from dlm.grammar.parse.parser import Parser
from dlm.grammar.parse.state import State
from dlm.grammar.vocabulary import Vocabulary

_MOST_WORK = 30_000  # units for all of it: about 0.3 s
_STATES, _MASKS = 4096, 512  # enough is known then
_LONGEST, _READ = 1024, 256  # bytes of a text, and tokens of it that are read
_BUDGET = 1 << 30  # tokens: it refuses nothing

# What is written where there is a choice; escapes and other alphabets only where there is none.
_USUAL = b'a1"0,:[{.-]}' + bytes(byte for byte in range(33, 127) if byte != ord("\\"))


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The scores of a model that wants one text."""

    argmax: list[int]

    def best(self, position: int, allowed: np.ndarray) -> int:
        return int(tokens_in(allowed)[0])

    def candidates(self, position: int, allowed: np.ndarray, count: int) -> Candidates:
        return Candidates(ranked=[], mass=0.0)


@dataclass(frozen=True, slots=True)
class _Text:
    tokens: tuple[int, ...] = ()  # up to the last control token
    said: bytes = b""  # behind it

    def spelled(self, vocabulary: Vocabulary) -> list[int]:
        return [*self.tokens, *vocabulary.encode(self.said.decode(errors="ignore"))]


class Warmup:
    """Of one grammar. It changes nothing about what is allowed."""

    def __init__(self, compiled: Compiled):
        self._compiled = compiled
        self._end = compiled.meter.spent + _MOST_WORK
        self._texts = self._all_texts()
        self._text: _Text | None = None  # that is being read
        self.done = False

    def go_on(self, work: int) -> None:
        """Do about so many units of work, if there is as much to do."""
        compiled, meter = self._compiled, self._compiled.meter
        end = meter.spent + work
        try:
            while not self.done and meter.spent < end:
                self._text = self._text or next(self._texts, None)
                enough = len(compiled.parser) > _STATES or compiled.masks.count > _MASKS
                self.done = self._text is None or enough or meter.spent > self._end
                if self._text is not None and not self.done:
                    self._read(self._text, end - meter.spent)
                    self._text = None
        except Unfinished:
            return
        except GrammarError:
            self.done = True  # whoever asks for a text of this grammar will be told

    def _read(self, text: "_Text", work: int) -> None:
        """As the tokenizer writes it, and as a model may, whose tokens can end anywhere."""
        compiled, parser = self._compiled, self._compiled.parser
        tokens = text.spelled(compiled.vocabulary)[:_READ]
        Frontier(compiled, _BUDGET, work=work).guide(_Wanted(tokens))
        state: State | None = parser.start
        for token in text.tokens:
            state = state and compiled.after(state, token)
        for byte in text.said:
            state = state and parser.behind(state, byte)
            if state and not parser.forced(state):
                compiled.mask(state)

    def _all_texts(self) -> "Iterator[_Text]":
        compiled = self._compiled
        ways = _texts(compiled), _texts(compiled, indented=True), _texts(compiled, turns=1)
        return chain(*ways)


def _texts(compiled: Compiled, indented: bool = False, turns: int = 0) -> Iterator[_Text]:
    """Texts that each lead to states of their own, with at most so many `turns` off the first way.

    The first way takes, again and again, what is most usual of all that leads somewhere new.
    """
    seen: set[State] = set()
    begun = count(1)  # numbers the texts: they go to their ends one by one
    todo = [(0, 0, compiled.parser.start, _Text())]
    while todo:
        turned, number, state, text = heapq.heappop(todo)
        if state in seen:
            continue
        seen.add(state)
        ways = _ways(compiled, state, text, indented) if len(text.said) < _LONGEST else {}
        fresh = [(at, longer) for at, longer in ways.items() if at not in seen]
        if not fresh:
            yield text
        for i, (at, longer) in enumerate(fresh[: 1 if turned == turns else None]):
            heapq.heappush(todo, (turned + bool(i), next(begun) if i else number, at, longer))


def _ways(compiled: Compiled, state: State, text: _Text, indented: bool) -> dict[State, _Text]:
    """How `text` may go on at `state`, the usual first: where it leads to, one way to each."""
    parser, said = compiled.parser, text.said
    found: dict[State | None, _Text] = {}
    for byte in _bytes(parser, state, said):
        spaced = _space(said, byte, indented) + byte
        at = _behind(parser, state, spaced)
        if at is None:
            spaced, at = byte, _behind(parser, state, byte)
        found.setdefault(at, _Text(text.tokens, said + spaced))
    for space in (b" ", b"\n"):
        if at := _behind(parser, state, space):
            for byte in _bytes(parser, at, space):
                found.setdefault(_behind(parser, at, byte), _Text(text.tokens, said + space + byte))
    for token in sorted(parser.named(state)):
        tokens = (*text.spelled(compiled.vocabulary), token)
        found.setdefault(parser.after(state, token, b""), _Text(tokens))
    return {at: longer for at, longer in found.items() if at is not None and at.cost is not None}


def _behind(parser: Parser, state: State | None, text: bytes) -> State | None:
    for byte in text:
        state = state and parser.behind(state, byte)
    return state


def _bytes(parser: Parser, state: State, said: bytes) -> list[bytes]:
    """What may follow: a name before other text, but the end of a word before more of it.

    Names come in the order in which the grammar says them.
    """
    ranges = parser.ranges(state)
    usual = {byte for low, high in ranges if (byte := _first(low, high))}
    names = {
        byte: place
        for place, (low, high) in reversed([*enumerate(ranges)])
        if low == high and ((byte := bytes([low])).isalpha() or byte == b"_")
    }
    digits = said[-1:].isdigit()  # an exponent may follow, which is unusual
    word = len(said) > 1 and said[-2:].isalnum()

    return sorted(
        usual,
        key=lambda byte: (
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
