"""One canvas's logits, as a constraint on the host may ask about them."""

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from dlm.grammar import Candidates


class Scores:
    """`logits [L, V]` stay where they are; the argmax comes to the host, the rest on demand."""

    def __init__(self, logits: Float[Tensor, "L V"], argmax: list[int]):
        self._logits = logits
        self.argmax = argmax

    def best(self, position: int, allowed: np.ndarray) -> int:
        """The likeliest token at `position` whose bit is set in `allowed [words]`."""
        return int(self._allowed(position, allowed).argmax())

    def candidates(self, position: int, allowed: np.ndarray, count: int) -> Candidates:
        """The likeliest `count` tokens of `allowed [words]` at `position`, best first."""
        row = self._allowed(position, allowed)
        total = torch.logsumexp(self._logits[position], -1)
        mass = torch.logsumexp(row, -1) - total
        logits, tokens = row.topk(min(count, len(row)))
        said = torch.cat([logits - total, mass[None]]).tolist()
        ranked = [
            (token, logp)
            for token, logp in zip(tokens.tolist(), said, strict=False)
            if logp > -torch.inf
        ]
        return Candidates(ranked=ranked, mass=float(np.exp(said[-1])))

    def _allowed(self, position: int, allowed: np.ndarray) -> Float[Tensor, "V"]:
        row = self._logits[position]
        bits = np.unpackbits(allowed.view(np.uint8), bitorder="little")[: len(row)]
        forbidden = torch.from_numpy(bits == 0).to(row.device)
        return row.masked_fill(forbidden, -torch.inf)
