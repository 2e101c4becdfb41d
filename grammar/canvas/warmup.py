"""Fills a grammar's caches before its first request, a little at a time.

First its terminals are looked at. Then made-up texts are read, since states and masks are made as
texts reach them: two that go through the grammar in the two styles that JSON is written in, and
further ones that turn off from the first at one place each.
"""

from collections import deque
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

import numpy as np

from dlm.grammar.canvas.frontier import Frontier
from dlm.grammar.canvas.texts import Text, Texts
from dlm.grammar.constraint import Candidates
from dlm.grammar.errors import GrammarError, Unfinished
from dlm.grammar.parse.compiled import Compiled
from dlm.grammar.parse.exploration import Exploration

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
            [Texts(compiled), Texts(compiled, indented=True), Texts(compiled, turns=1)]
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

    def __init__(self, compiled: Compiled, text: Text):
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
            state = parser.behind(self._state, symbol[0])
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
