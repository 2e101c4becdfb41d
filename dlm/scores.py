"""One canvas's logits, as a constraint on the host may ask about them."""

import math

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from dlm.grammar import Candidates


class Scores:
    """`logits [L, V]` stay where they are; the argmax comes to the host, the rest on demand."""

    def __init__(self, logits: Float[Tensor, "L V"], argmax: list[int]):
        self._logits = logits
        self.argmax = argmax

    def best(self, position: int, allowed: np.ndarray) -> int:
        """The likeliest token at `position` whose bit is set in `allowed [words]`."""
        row = self._logits[position]
        return int(row.masked_fill(~self._bits(row, allowed), -torch.inf).argmax())

    def candidates(self, position: int, allowed: np.ndarray, count: int) -> Candidates:
        """The likeliest `count` tokens of `allowed [words]` at `position`, best first."""
        row = self._logits[position].float()
        odds = (row - row.max()).exp_()
        total = odds.sum()
        odds *= self._bits(row, allowed)
        found = [odds.sum()]
        tokens = []
        for _ in range(count):  # cheaper than to sort a vocabulary
            best = odds.argmax()
            tokens.append(best)
            found.append(odds[best].clone())
            odds[best] = 0.0
        mass, *shares = (torch.stack(found) / total).tolist()
        chosen = torch.stack(tokens).tolist()
        ranked = [(t, math.log(p)) for t, p in zip(chosen, shares, strict=True) if p > 0]
        if not ranked and allowed.any():  # all of it underflows
            ranked = [(self.best(position, allowed), -math.inf)]
        return Candidates(ranked=ranked, mass=mass)

    @staticmethod
    def _bits(row: Float[Tensor, "V"], allowed: np.ndarray) -> Bool[Tensor, "V"]:
        bits = np.unpackbits(allowed.view(np.uint8), bitorder="little")[: len(row)]
        return torch.from_numpy(bits.view(bool)).to(row.device)
