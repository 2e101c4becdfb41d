"""Constraints within `DiffusionGemmaForBlockDiffusion.generate`.

There the argmax of the processed logits is what is committed, canvas after canvas, and their
entropies and draws are what is accepted: what `dlm.guided_logits` rewrites logits for.
"""

from collections.abc import Sequence
from sys import maxsize

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import LogitsProcessor

from dlm.errors import DlmError
from dlm.grammar import Fixed, Frontier, Vocabulary
from dlm.guided_logits import GuidedCanvas, LogitsGuide
from dlm.guided_rows import name_rows_


class CanvasProcessor(LogitsProcessor):
    """For one call of `generate`. `B` prompts, canvases of `L` positions, `V` tokens."""

    def __init__(self, constraints: Sequence[Frontier | None], vocabulary: Vocabulary):
        """One of each prompt; None leaves its logits as they are."""
        self._constraints, self._vocabulary = list(constraints), vocabulary
        self._ended = [False] * len(self._constraints)
        self._said: Tensor | None = None  # [B, n] prompts, and canvases committed behind them
        self._guide = LogitsGuide(len(vocabulary), work=maxsize)

    def __call__(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        input_ids: Int[Tensor, "B n"],
        scores: Float[Tensor, "B L V"],
        cur_step: int | Int[Tensor, ""],
    ) -> Float[Tensor, "B L V"]:
        """`cur_step` counts the passes over this canvas that are left, this one with them."""
        self._follow(input_ids)
        L, fixed = scores.shape[1], Fixed(last=int(cur_step) == 1)
        guided = scores.clone(memory_format=torch.contiguous_format)
        canvases = [
            GuidedCanvas(constraint=one, first=i * L, length=L, fixed=fixed)
            for i, one in enumerate(self._constraints)
            if one is not None and not self._ended[i]
        ]
        for read in self._guide.guide_(guided.flatten(0, 1), canvases):
            if isinstance(read, Exception):
                raise read
        rows = torch.arange(L, device=scores.device)
        for i, ended in enumerate(self._ended):
            if ended:
                name_rows_(guided[i], rows, torch.full_like(rows, self._vocabulary.pad))
        return guided

    def _follow(self, input_ids: Int[Tensor, "B n"]) -> None:
        """Commit the canvas that has come to `input_ids` since the last call."""
        if len(input_ids) != len(self._constraints):
            raise DlmError(
                f"{len(self._constraints)} constraints for a batch of {len(input_ids)} prompts"
            )
        before, self._said = self._said, input_ids
        n = input_ids.shape[1] if before is None else before.shape[1]
        if before is not None and not torch.equal(input_ids[:, :n], before):
            raise DlmError("these prompts are others: each call of `generate` takes new processors")
        if input_ids.shape[1] == n:
            return
        for i, tokens in enumerate(input_ids[:, n:].tolist()):
            constraint = self._constraints[i]
            if constraint is None or self._ended[i]:
                continue
            stops = self._vocabulary.stops
            end = next((at for at, token in enumerate(tokens, 1) if token in stops), None)
            constraint.commit(tokens[:end])
            self._ended[i] = end is not None
