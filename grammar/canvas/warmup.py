"""The warm-up of a grammar: its caches are filled before its first request, in small steps.

The terminals are explored first. Then simple texts of the grammar are read, since states and masks
are built when a text reaches them.
"""

from collections import deque
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

import numpy as np

from dlm.grammar.canvas.frontier import Frontier
from dlm.grammar.canvas.warmup_texts import TextPart, WarmupTexts
from dlm.grammar.constraint import Candidates
from dlm.grammar.errors import GrammarError, Unfinished
from dlm.grammar.parse.compiled import Compiled
from dlm.grammar.parse.exploration import Exploration

_MOST_WORK = 200_000  # units of a whole warm-up: 1 to 2 s
_EXPLORING = 40_000  # units spent on terminals at most, before texts are read
_STATES, _MASKS = 6144, 512  # the warm-up is done if more of either are known
_READ, _CANVAS = 1024, 16  # tokens read of a text, and at a time
_KNOWN = 4  # known symbols read for a unit of work
_BUDGET = 1 << 30  # tokens: large enough for any text


class _Refused(Exception):  # noqa: N818  # a signal, not an error
    """The grammar refuses the rest of a text, for example a repeated key."""


@dataclass(frozen=True, slots=True)
class _Wanted:
    """Scores of a model that predicts one text, and no other."""

    argmax: list[int]

    def best(self, position: int, allowed: np.ndarray) -> int:
        raise _Refused

    def candidates(self, position: int, allowed: np.ndarray, count: int) -> Candidates:
        raise _Refused


class Warmup:
    """The warm-up of one grammar. It changes caches only."""

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
        """Do `work` units of work, or as much as is left.

        The last state or mask may exceed it. Most states are 10 units; a very ambiguous one is
        10,000. A mask is 50, and more for a new terminal: one unit for every `NODES_READ` trie
        nodes that are read at once, and for every 100 below 32 first bytes if it is bounded.
        """
        compiled, meter = self.compiled, self.compiled.meter
        begun, most = meter.spent, min(work, self._left)
        try:
            while not self.done and (left := begun + most - meter.spent) > 0:
                with meter.limited(left):
                    self._advance(left)
                enough = len(compiled.parser.states) > _STATES or compiled.masks.count > _MASKS
                self.done = enough or not (self._texts or self._reading)
        except Unfinished:
            pass  # the next call continues
        except GrammarError:
            self.done = True  # a request for this grammar will raise it again
        self._left -= meter.spent - begun
        self.done = self.done or self._left <= 0

    @cached_property
    def _exploration(self) -> Exploration:
        """The exploration of terminals. It visits all edges, so `go_on` creates it, as work."""
        return self.compiled.exploration()

    def _advance(self, work: int) -> None:
        """Do a small part of the work. If it raises `Unfinished`, only caches have changed."""
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
    """The reading of one text: byte by byte, since tokens may end anywhere, then by its tokens."""

    def __init__(self, compiled: Compiled, text: TextPart):
        self._compiled, self._state = compiled, compiled.parser.start
        self._symbols = deque([*text.tokens, *(bytes([byte]) for byte in text.text)])
        self._tokens = deque(text.spelled(compiled.vocabulary)[:_READ])
        self._frontier: Frontier | None = None  # made later, since that is work
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
        """Read a token; or read a byte and compute the mask after it."""
        compiled, parser = self._compiled, self._compiled.parser
        if isinstance(symbol, int):
            state = compiled.steps.after(self._state, symbol)
        else:
            state = parser.after_byte(self._state, symbol[0])
            if state is not None and not parser.forced(state):
                compiled.state_masks.mask(state)
        self._symbols.popleft()
        if state is None:
            self._symbols.clear()
        else:
            self._state = state

    def _guide(self, work: int) -> None:
        """Read a few tokens as a canvas."""
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
