"""Constraints within `DiffusionGemmaForBlockDiffusion.generate`.

There the argmax of the processed logits is what is committed, canvas after canvas, and their
entropies and draws are what is accepted. So the logits come back with the guess as their argmax:
masked up to the first suspect position, and from there nearly uniform, which leaves an entropy that
never counts as sure, and a draw that is as good as new noise.
"""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import LogitsProcessor

from dlm.errors import DlmError
from dlm.grammar import Fixed, Frontier, Guidance, Vocabulary
from dlm.grammar.masks.bits import unpacked
from dlm.marginals import Marginals
from dlm.mask_table import MaskTable

_AHEAD = 1.0  # logits between the guess and the next token: argmax survives rounding to bf16


class CanvasProcessor(LogitsProcessor):
    """For one call of `generate`. `B` prompts, canvases of `L` positions, `V` tokens."""

    def __init__(self, constraints: Sequence[Frontier | None], vocabulary: Vocabulary):
        """One of each prompt; None leaves its logits as they are."""
        self._constraints, self._vocabulary = list(constraints), vocabulary
        self._ended = [False] * len(self._constraints)
        self._said: Tensor | None = None  # [B, n] prompts, and canvases committed behind them

    def __call__(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        input_ids: Int[Tensor, "B n"],
        scores: Float[Tensor, "B L V"],
        cur_step: int | Int[Tensor, ""],
    ) -> Float[Tensor, "B L V"]:
        """`cur_step` counts the passes over this canvas that are left, this one with them."""
        self._follow(input_ids)
        asked = {
            i: one
            for i, one in enumerate(self._constraints)
            if one is not None and not self._ended[i]
        }
        guided = scores.clone()
        if asked:
            some = scores if len(asked) == len(scores) else scores[list(asked)]
            marginals, fixed = self._marginals(some), Fixed(last=int(cur_step) == 1)
            for row, (i, constraint) in enumerate(asked.items()):
                _apply(guided[i], constraint.guide(marginals.scores(row), fixed))
        for i, ended in enumerate(self._ended):
            if ended:
                _name(guided[i], torch.full((scores.shape[1],), self._vocabulary.pad))
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

    def _marginals(self, scores: Float[Tensor, "n L V"]) -> Marginals:
        n, L, V = scores.shape
        uniform = torch.zeros(n, L, device=scores.device)  # nothing is drawn
        return Marginals(scores, [1.0] * n, uniform, None, MaskTable(-(-V // 32)))


def _apply(scores: Float[Tensor, "L V"], read: Guidance) -> None:
    """Make `scores` say what a constraint makes of them."""
    L, V = scores.shape
    guess, rows = torch.tensor(read.guess), np.asarray(read.rows, dtype=np.int64)
    if read.bitmask is not None:
        for mask in np.unique(rows[rows >= 0]).tolist():
            words = read.bitmask[mask].numpy().view(np.uint32)
            forbidden = torch.from_numpy(unpacked(~words)[:V].astype(bool)).to(scores.device)
            at = torch.from_numpy(np.flatnonzero(rows == mask)).to(scores.device)
            scores[at] = scores[at].masked_fill(forbidden, -torch.inf)
            _lead(scores, at, guess[at.cpu()].to(scores.device))
    named = np.flatnonzero(rows < 0)
    _name(scores, torch.from_numpy(~rows[named]), torch.from_numpy(named))
    suspect = torch.arange(read.suspect, L, device=scores.device)
    scores[suspect] = 0.0
    scores[suspect, guess[read.suspect :].to(scores.device)] = _AHEAD


def _lead(scores: Float[Tensor, "L V"], at: Int[Tensor, " n"], tokens: Int[Tensor, " n"]) -> None:
    """Let each of `tokens` be the argmax of its row: a repair need not be the likeliest token."""
    best = scores[at].max(-1)
    other = best.indices != tokens
    scores[at[other], tokens[other]] = best.values[other] + _AHEAD


def _name(
    scores: Float[Tensor, "L V"], tokens: Int[Tensor, " n"], at: Int[Tensor, " n"] | None = None
) -> None:
    """Leave the positions `at` one token each; None: all positions."""
    at = torch.arange(len(tokens)) if at is None else at
    at, tokens = at.to(scores.device), tokens.to(scores.device)
    scores[at] = -torch.inf
    scores[at, tokens] = 0.0
