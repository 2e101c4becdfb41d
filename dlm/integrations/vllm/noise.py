"""Canvases of noise in vLLM's worker, of DiffusionGemma: unsure positions are noised again.

vLLM commits the argmax of a canvas that is stable and sure, or at its last step. A step with
constraints waits for the device twice: for the state of the canvases, and for what was read of
their logits; once more if rows were refused in the last step.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from dlm.config import DecodeConfig
from dlm.grammar import Guidance
from dlm.integrations.vllm.needs import NOISE
from dlm.integrations.vllm.sampler import ConstrainedCanvas, ConstrainedSampler, Denoised
from dlm.integrations.vllm.slots import Slots
from dlm.logits.guided import GuidedCanvas, name_rows_


class NoiseSampler(ConstrainedSampler):
    """Constraints around vLLM's sampler of canvases of noise."""

    tensors = (*NOISE, "max_steps")

    def __init__(self, inner: Any, states: Any, slots: Slots, guide: Any, config: DecodeConfig):
        """`config` says when a canvas is stuck."""
        super().__init__(inner, states, slots, guide)
        self._config = config

    @contextmanager
    def ending(self, count: int) -> Iterator[None]:
        self.states.max_steps[:count] = 1
        yield

    @property
    def _emitted(self) -> Tensor:
        return self.states.argmax_canvas

    def _last(self, slots: Tensor) -> Tensor:
        return self.states.step[slots] + 1 >= self.states.max_steps[slots]

    def _canvas(self, denoised: Denoised) -> GuidedCanvas:
        canvas = denoised.canvas
        return GuidedCanvas(
            constraint=canvas.slot,
            first=canvas.first,
            length=canvas.length,
            fixed=canvas.slot.fixed(denoised.last),
            cut=canvas.slot.cut,
        )

    def _note(self, denoised: Denoised, guidance: Guidance) -> None:
        denoised.canvas.slot.note(guidance, self._config)

    def _correct(self, guided: Sequence[tuple[Denoised, Guidance]]) -> None:
        """Do nothing: what is not sure has become noise."""

    def _converge(self, logits: Tensor, canvas: ConstrainedCanvas) -> None:
        """Have the step be the canvas's last, and its tokens the only ones."""
        rows = torch.arange(canvas.first, canvas.first + canvas.length, device=logits.device)
        name_rows_(logits, rows, self._emitted[canvas.index][: canvas.length])
        self.states.max_steps[canvas.index] = 0
