"""One canvas's logits, as a constraint on the host may ask about them."""

import math

import numpy as np
from jaxtyping import Float
from torch import Tensor

from dlm.grammar import Candidates
from dlm.grammar.masks.bits import unpacked

_NEAR = 1e-3  # of the best candidate's probability: what is less likely is none
_REACH = 25.0  # nats below the likeliest token: even a quarter of a million of these are none
_FAR = np.float32(3e38)  # below any logit that is worth a thought


class Logits:
    """`logits [L, V]` stay where they are: the argmax comes to the host, other rows on demand.

    A row has a quarter of a million logits. What is forbidden is subtracted or multiplied away: to
    select by a mask takes ten times as long.
    """

    def __init__(self, logits: Float[Tensor, "L V"], argmax: list[int]):
        self._logits = logits
        self.argmax = argmax

    def best(self, position: int, allowed: np.ndarray) -> int:
        """The likeliest token at `position` whose bit is set in `allowed [words]`."""
        row = self._row(position)
        return int((row - _FAR * unpacked(~allowed)[: len(row)]).argmax())

    def candidates(self, position: int, allowed: np.ndarray, count: int) -> Candidates:
        """The likeliest `count` tokens of `allowed [words]` at `position`, best first."""
        row = self._row(position)
        tokens, odds, total = _odds(row)
        odds *= unpacked(allowed)[: len(row)] if tokens is None else _bits(allowed, tokens)
        top = odds.max()
        if top < np.finfo(np.float32).tiny:  # all of it underflows
            ranked = [(self.best(position, allowed), -math.inf)] if allowed.any() else []
            return Candidates(ranked=ranked, mass=0.0)
        near = np.flatnonzero(odds >= top * _NEAR)  # cheaper than to sort a vocabulary
        order = near[np.argsort(-odds[near], kind="stable")][:count]
        shares = (np.log(odds[order]) - math.log(total)).tolist()
        chosen = (order if tokens is None else tokens[order]).tolist()
        ranked = list(zip(chosen, shares, strict=True))
        return Candidates(ranked=ranked, mass=float(odds.sum() / total))

    def _row(self, position: int) -> np.ndarray:
        return self._logits[position].float().cpu().numpy()


def _bits(words: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    """The bits of some tokens."""
    return words[tokens >> 5] >> (tokens & 31).astype(np.uint32) & 1


def _odds(row: np.ndarray) -> tuple[np.ndarray | None, np.ndarray, float]:
    """Tokens, None for all; their probabilities, but for a factor; the sum of all of these.

    Most models give all but a few tokens next to nothing, and these are all that is looked at.
    """
    top = row.max()
    near = row > top - _REACH
    tokens = None
    if np.count_nonzero(near) < len(row) // 16:
        tokens = np.flatnonzero(near)
        row = row[tokens]
    odds = np.exp(row - top)
    return tokens, odds, float(odds.sum())
