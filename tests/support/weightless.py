"""Models without weights: the logits of a block's positions, drawn by request and position."""

import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from dlm.grammar import Compiled, Matcher

_UNSURE = 0.05  # of a wrong token that is as sure as a right one


class Weightless(Protocol):
    size: int  # of the vocabulary

    def row(self, key: int, position: int, holes: int, written: Sequence[int]) -> np.ndarray:
        """Return logits of a position of the answer `key`, with `holes` masks to its left in its
        block. `written` are the tokens before the first of them."""
        ...


class Noise:
    """Normal logits. A small scale is unsure of everything, a large one is sure of garbage."""

    def __init__(self, size: int, scale: float):
        self.size, self._scale = size, scale

    def row(self, key: int, position: int, holes: int, written: Sequence[int]) -> np.ndarray:
        return _dice("noise", key, position, holes).normal(0, self._scale, self.size)


class Knowing:
    """A model that knows the text of each answer, and is surer of it where fewer holes are to the
    left. Where it is wrong, the right token comes second. If the text so far is another one, it
    goes on with a completion of that."""

    def __init__(
        self,
        compiled: Compiled,
        texts: Mapping[int, Sequence[int]],
        right: float = 0.998,
        slope: float = 0.002,
    ):
        """A position's token is right with probability `right`, less `slope` for each hole."""
        self._compiled, self._texts = compiled, texts
        self._right, self._slope = right, slope
        pieces = compiled.vocabulary.pieces
        self.size, self._spelled = len(pieces), [t for t, piece in enumerate(pieces) if piece]
        self._plans: dict[tuple[int, ...], Sequence[int]] = {}

    def row(self, key: int, position: int, holes: int, written: Sequence[int]) -> np.ndarray:
        dice, plan = _dice("knowing", key, position, holes), self._plan(key, tuple(written))
        stop = self._compiled.vocabulary.stops[0]
        token = right = plan[position] if position < len(plan) else stop
        sure = 1 / (1 + math.exp(holes / 2 - dice.normal(3.5, 1.5)))
        if dice.random() > self._right - self._slope * holes:
            token = int(dice.choice(self._spelled))
            sure = sure if dice.random() < _UNSURE else dice.uniform(0.2, 0.7)
        logits = dice.normal(math.log((1 - sure) / (2 * self.size)), 0.3, self.size)
        logits[right] = math.log((1 - sure) / 2)
        logits[token] = math.log(sure)
        return logits

    def _plan(self, key: int, written: tuple[int, ...]) -> Sequence[int]:
        text = self._texts[key]
        if tuple(text[: len(written)]) == written:
            return text
        if written not in self._plans:
            matcher = Matcher(self._compiled)
            fits = matcher.accept_all(written) == len(written) and not matcher.ended
            completion = matcher.shortest_completion() if fits else None
            self._plans[written] = text if completion is None else [*written, *completion]
        return self._plans[written]


def _dice(*key: object) -> np.random.Generator:
    digest = hashlib.blake2b(repr(key).encode(), digest_size=8).digest()
    return np.random.default_rng(int.from_bytes(digest, "little"))
