"""One canvas's logits, as a constraint on the host may ask about them."""

import math

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from dlm.grammar import Candidates

_NEAR = 1e-3  # of the best candidate's probability: what is less likely is none


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
        mass, top = odds.sum() / total, odds.max()
        near = (odds >= top * _NEAR).nonzero()[:, 0]  # cheaper than to sort a vocabulary
        shares, order = (odds[near] / total).topk(min(count, len(near)))
        pairs = zip(near[order].tolist(), shares.tolist(), strict=True)
        ranked = [(token, math.log(share)) for token, share in pairs if share > 0]
        if not ranked and allowed.any():  # all of it underflows
            ranked = [(self.best(position, allowed), -math.inf)]
        return Candidates(ranked=ranked, mass=float(mass))

    @staticmethod
    def _bits(row: Float[Tensor, "V"], allowed: np.ndarray) -> Bool[Tensor, "V"]:
        bits = np.unpackbits(allowed.view(np.uint8), bitorder="little")[: len(row)]
        return torch.from_numpy(bits.view(bool)).to(row.device)
