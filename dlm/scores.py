"""One canvas's logits, as a constraint on the host may ask about them."""

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor


class Scores:
    """`logits [L, V]` stay where they are; the argmax comes to the host, the rest on demand."""

    def __init__(self, logits: Float[Tensor, "L V"], argmax: list[int]):
        self._logits = logits
        self.argmax = argmax

    def best(self, position: int, allowed: np.ndarray) -> int:
        """The likeliest token at `position` whose bit is set in `allowed [words]`."""
        row = self._logits[position]
        bits = np.unpackbits(allowed.view(np.uint8), bitorder="little")[: len(row)]
        forbidden = torch.from_numpy(bits == 0).to(row.device)
        return int(row.masked_fill(forbidden, -torch.inf).argmax())
