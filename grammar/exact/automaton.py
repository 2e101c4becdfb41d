"""A deterministic automaton over tokens: every text of a grammar that a vocabulary can spell.

Tokens with the same transitions in all states form a class, so that nothing here has the size of
states times vocabulary. Knows no scores and no canvas.

Shapes: `S` states, `C` classes, `E` transitions, `V` tokens.
"""

from dataclasses import dataclass
from functools import cached_property
from sys import maxsize

import numpy as np
from jaxtyping import Int32, Int64
from torch import Tensor

START, END = 0, 1  # states: of the empty text, and behind the stop token
REFUSED = 0  # the class of tokens that no state takes
NOWHERE = -1
_PLACED = 6  # times what classes take, at most: what they take again where the model is
_TRANSITION = 5 * 8  # bytes, at most


@dataclass(frozen=True, kw_only=True, eq=False)
class TokenAutomaton:
    """From each of its states there is a way to `END`.

    The last class, `tail`, has no token: it stands for the padding behind a stop, and leads from
    `END` to `END`.
    """

    classes: Int32[Tensor, " V"]  # the class of each token
    to: Int32[np.ndarray, "S C"]  # the state that a class leads to; `NOWHERE` where it is refused
    distance: Int64[np.ndarray, " S"]  # the fewest tokens to `END`, the stop counted

    @property
    def tail(self) -> int:
        return self.to.shape[1] - 1

    @property
    def nbytes(self) -> int:
        """What it takes in memory at most, as soon as it is used."""
        own = self.classes.nbytes + self.to.nbytes + self.distance.nbytes
        transitions = int((self.to != NOWHERE).sum())
        return own + _PLACED * self.classes.nbytes + _TRANSITION * transitions

    def after(self, state: int, token: int) -> int:
        """The state behind `token`, or `NOWHERE`."""
        return int(self.to[state, self._of[token]])

    @cached_property
    def longest(self) -> int:
        """The most tokens that a text takes, the stop counted; `maxsize`: any number."""
        t, steps = self.transitions, 0
        here = np.arange(len(self.to)) == START
        while here.any():
            if steps > len(self.to):
                return maxsize
            there = np.zeros_like(here)
            there[t.target[here[t.source]]] = True
            there[END] = False
            here, steps = there, steps + 1
        return steps

    @cached_property
    def _of(self) -> np.ndarray:
        return self.classes.numpy()

    @cached_property
    def transitions(self) -> "Transitions":
        source, label = np.nonzero(self.to != NOWHERE)
        target = self.to[source, label].astype(np.int64)
        order = np.lexsort((label, target, source))
        return Transitions.of(source[order], target[order], label[order], len(self.to))


@dataclass(frozen=True, kw_only=True, eq=False)
class Transitions:
    """All that leads from state to state: `E` transitions, sorted by pairs of states.

    `P` pairs of a source and a target, sorted by source.
    """

    label: Int64[np.ndarray, " E"]  # classes
    pair: Int64[np.ndarray, " E"]  # which pair each transition belongs to
    first: Int64[np.ndarray, " P"]  # the first transition of each pair
    source: Int64[np.ndarray, " P"]
    target: Int64[np.ndarray, " P"]
    leaving: Int64[np.ndarray, " S1"]  # where the pairs of each source begin; the last: all end

    @classmethod
    def of(
        cls, source: np.ndarray, target: np.ndarray, label: np.ndarray, states: int
    ) -> "Transitions":
        """Of `E` transitions, sorted by source, then by target."""
        new = np.ones(len(source), dtype=bool)
        new[1:] = (source[1:] != source[:-1]) | (target[1:] != target[:-1])
        first = np.flatnonzero(new)
        return cls(
            label=label,
            pair=np.cumsum(new) - 1,
            first=first,
            source=source[first],
            target=target[first],
            leaving=np.searchsorted(source[first], np.arange(states + 1)),
        )


def distances(to: Int32[np.ndarray, "S C"]) -> Int64[np.ndarray, " S"]:
    """The fewest tokens from each state to `END`; -1: there is no way."""
    source, label = np.nonzero(to != NOWHERE)
    pairs = np.unique(source * len(to) + to[source, label])
    source, target = pairs // len(to), pairs % len(to)
    found = np.full(len(to), -1, dtype=np.int64)
    found[END] = steps = 0
    while True:
        near = source[(found[target] == steps) & (found[source] < 0)]
        if not len(near):
            return found
        steps += 1
        found[near] = steps
