"""Rows of logits, rewritten in place so that a sampler that knows no grammar reads them aright.

Three kinds: rows under a mask, rows that may take one token alone, and suspect rows, which are
nearly flat, so that nothing about them passes for sure. In each the guess is the argmax.
"""

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from dlm.kernels.vocab_cpu import forbid_, mask_words
from dlm.kernels.vocab_rows import Masks

_AHEAD = 1.0  # logits between the guess and the next token
_STEPS = 2.0**-6  # of a logit: what rounding to bf16 leaves of a difference
_BLOCK = 1 << 24  # logits that are copied at a time


def mask_rows_(
    logits: Float[Tensor, "N V"],
    rows: Int64[Tensor, " n"],
    masks: Masks,
    guess: Int64[Tensor, " n"],
) -> None:
    """Forbid in `rows` what `masks` forbids, and let `guess` lead: a repair need not be likeliest.

    A row that the logits leave nothing of takes its guess for certain.
    """
    size = max(1, _BLOCK // logits.shape[1])
    for begin in range(0, len(rows), size):
        some = slice(begin, begin + size)
        block = logits[rows[some]].float()
        forbid_(block, mask_words(masks.bitmask, masks.rows[some]))
        _lead_(block, guess[some])
        logits[rows[some]] = block.to(logits.dtype)


def name_rows_(
    logits: Float[Tensor, "N V"], rows: Int64[Tensor, " n"], tokens: Int64[Tensor, " n"]
) -> None:
    """Leave each of `rows` one token."""
    logits[rows] = -torch.inf
    logits[rows, tokens] = 0.0


def flatten_rows_(
    logits: Float[Tensor, "N V"], rows: Int64[Tensor, " n"], guess: Int64[Tensor, " n"]
) -> None:
    """Make each of `rows` nearly uniform: an entropy that never counts as sure, and a draw that is
    as good as new noise."""
    logits[rows] = 0.0
    logits[rows, guess] = _AHEAD


def _lead_(block: Float[Tensor, "n V"], guess: Int64[Tensor, " n"]) -> None:
    best = block.max(-1)
    top = best.values.nan_to_num(neginf=0.0)
    ahead = top + (top.abs() * _STEPS).clamp(min=_AHEAD)
    own = block.gather(1, guess[:, None])[:, 0]
    leads = (best.indices == guess) & ~own.isneginf()
    block.scatter_(1, guess[:, None], torch.where(leads, own, ahead)[:, None])
