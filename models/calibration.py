"""Largest activations of a model that is measured, and the input scales that follow from them."""

import torch
from torch import Tensor

from dlm.kernels.nvfp4 import LARGEST


class LargestActivations:
    """Largest activation before each matrix, by a name."""

    def __init__(self):
        self._largest: dict[str, Tensor] = {}

    def note(self, name: str, activations: Tensor) -> None:
        """Take activations into account."""
        now = activations.abs().amax().float().cpu()
        self._largest[name] = torch.maximum(self._largest.get(name, now), now)

    def scales(self) -> dict[str, Tensor]:
        """Return the largest activations, divided by the largest number in NVFP4."""
        return {name: amax / LARGEST for name, amax in self._largest.items()}
