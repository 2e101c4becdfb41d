"""Calibration of quantised inputs: passes over canvases of noise, the largest activations in them,
and the input scales that follow."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from dlm.kernels.nvfp4 import LARGEST
from dlm.models.packed_stack import PackedStack

_PASSES = 4  # denoising passes over a canvas


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


def denoise_and_encode(
    model: PackedStack[Any],
    canvases: int,
    first_embedding: Tensor | None = None,
    next_embedding: Callable[[Tensor], Tensor] | None = None,
) -> None:
    """Denoise and encode `canvases` canvases one after another, in a few passes each. A model that
    carries a soft embedding reads `first_embedding` in the first pass over a canvas, and what
    `next_embedding` makes of the last logits in each pass after that."""
    rng, cache = torch.Generator().manual_seed(0), model.new_cache(1)
    for _ in range(canvases):
        canvas = torch.randint(model.vocab_size, (1, model.canvas_length), generator=rng)
        canvas, soft_embedding = canvas.to(model.device), first_embedding
        for _ in range(_PASSES):
            logits = model.denoise(canvas, soft_embedding, cache, [0])
            canvas = logits.argmax(-1)
            soft_embedding = None if next_embedding is None else next_embedding(logits)
        model.encode(canvas.tolist(), cache, [0])
