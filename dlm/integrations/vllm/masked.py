"""Canvases of masks in vLLM's worker, of Nemotron-Labs-Diffusion: sure positions are unmasked.

vLLM unmasks by one of three policies: all positions whose token is over a threshold, and at least
the surest; the surest ones, as many in each pass; or as many from the left. Tokens that stand stay,
and in a canvas's last pass all masks are taken. It takes the likeliest token of each row: front
ends set the temperature of constrained requests to 0.

A step with constraints waits for the device three times: for the canvases before it and after it,
and for what was read of their logits; once more if rows were refused in the last step. What vLLM
took of a suspect position is masked again.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from dlm.errors import DlmError
from dlm.grammar import Fixed, Guidance
from dlm.integrations.unmasking import Order, standing
from dlm.integrations.vllm.needs import MASKS
from dlm.integrations.vllm.sampler import ConstrainedCanvas, ConstrainedSampler, Denoised
from dlm.integrations.vllm.slots import Slots
from dlm.logits.guided import GuidedCanvas


class MaskedSampler(ConstrainedSampler):
    """Constraints around vLLM's sampler of canvases of masks."""

    tensors = MASKS

    def __init__(self, inner: Any, states: Any, slots: Slots, guide: Any, order: Order):
        """`order` is that in which constrained canvases are unmasked."""
        super().__init__(inner, states, slots, guide)
        for name in ("mask_token_id", "max_denoising_steps"):
            if not isinstance(getattr(states, name, None), int):
                raise DlmError(f"vLLM's states of requests have no number {name}")
        self._order: Order = order
        self._mask: int = states.mask_token_id

    @contextmanager
    def ending(self, count: int) -> Iterator[None]:
        most, self.states.max_denoising_steps = self.states.max_denoising_steps, 1
        try:
            yield
        finally:
            self.states.max_denoising_steps = most

    def _prepare(
        self, logits: Tensor, canvases: Sequence[ConstrainedCanvas]
    ) -> tuple[list[int], list[tuple[Denoised, Guidance]]]:
        for canvas in canvases:  # as vLLM does itself: no token that it takes is a mask
            logits[canvas.first : canvas.first + canvas.length, self._mask] = -torch.inf
        return super()._prepare(logits, canvases)

    @property
    def _emitted(self) -> Tensor:
        return self.states.canvas

    def _last(self, slots: Tensor) -> Tensor:
        return self.states.step[slots] + 1 >= self.states.max_denoising_steps

    def _canvas(self, denoised: Denoised) -> GuidedCanvas:
        canvas = denoised.canvas
        tokens = denoised.tokens[: canvas.length]
        return GuidedCanvas(
            constraint=canvas.slot,
            first=canvas.first,
            length=canvas.length,
            fixed=Fixed(held=standing(tokens, self._mask), last=denoised.last),
            cut=canvas.slot.cut,
            masked=True,
        )

    def _note(self, denoised: Denoised, guidance: Guidance) -> None:
        """Do nothing: each pass unmasks a position, and the last one all."""

    def _correct(self, guided: Sequence[tuple[Denoised, Guidance]]) -> None:
        """Mask positions again whose token is not the guess; such a canvas goes on."""
        copies, states = self._copies(self.states.canvas.device), self.states
        (where,) = copies.to_device(torch.tensor([denoised.canvas.index for denoised, _ in guided]))
        changed: list[tuple[int, list[int], bool]] = []
        for (denoised, guidance), after in zip(
            guided, copies.to_host(states.canvas[where]).tolist(), strict=True
        ):
            slot, length = denoised.canvas.slot, denoised.canvas.length
            try:
                changes = slot.corrections.after(
                    guidance, denoised.tokens[:length], after[:length], self._mask, self._order
                )
            except Exception as error:
                slot.fail(error)
                continue
            if changes:
                tokens = [*after]
                for position, token in changes.items():
                    tokens[position] = token
                changed.append((denoised.canvas.index, tokens, self._mask not in tokens[:length]))
        if not changed:
            return
        indices, tokens, whole = zip(*changed, strict=True)
        where, canvas, converged = copies.to_device(
            torch.tensor(indices), torch.tensor(tokens), torch.tensor(whole)
        )
        states.canvas[where] = canvas
        states.is_encoder_phase[where] = converged
        self.moved["draft_tokens"][where, : canvas.shape[1]] = canvas.to(
            self.moved["draft_tokens"].dtype
        )

    def _converge(self, logits: Tensor, canvas: ConstrainedCanvas) -> None:
        """Do nothing: a canvas without masks converges."""
