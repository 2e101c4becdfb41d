"""The vocabulary pass of vocab.py over a few rows, in plain torch, for CPUs.

Arranged as the kernels are: chunks are reduced first, and only those that hold something to report
are looked into. What the results mean, `VocabPass` says. Written for what torch is fast at on a
CPU: its softmax and sigmoid take a tenth of its exp and tanh, which are slow where e^x underflows,
and bits that are multiplied or added in take a tenth of masks of bools.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Float32, Int32
from torch import Tensor

_CHUNK = 512  # tokens: as many as there are chunks in a vocabulary of 262,144
_HUGE = 3e38  # added to any logit but -inf, it is more than a softcap


def mask_words(
    bitmask: Int32[Tensor, "M W"], rows: Sequence[int], only: Sequence[int]
) -> Int32[Tensor, "n W"]:
    """The mask of each row, in full."""
    row, token = torch.tensor([rows, only], dtype=torch.int64)
    words = bitmask.new_full((len(row), bitmask.shape[1]), -1)
    words[row >= 0] = bitmask[row[row >= 0]]
    named = token >= 0
    words[named] = 0
    words[named, token[named] // 32] = (1 << token[named] % 32).int()
    return words


def pass_rows(
    logits: Float[Tensor, "n V"],
    inverse_temperature: Float32[Tensor, "n"],
    uniform: Float32[Tensor, "n"],
    words: Int32[Tensor, "n W"] | None,
    softcap: float | None,
    threshold: float,
    k: int,
) -> tuple[Tensor, ...]:
    """The fields of `VocabPass`, in their order. Makes two fp32 copies of `logits`."""
    (n, V), row = logits.shape, torch.arange(len(logits))
    x = torch.empty(n, max(1, -(-V // _CHUNK)) * _CHUNK)
    x[:, V:] = -torch.inf
    x[:, :V] = logits
    if words is not None and (words != -1).any():
        _forbid_(x[:, :V], words)

    at, nothing = _argmax(x)
    if softcap is not None:
        capped = x.mul(2 / softcap).sigmoid_().mul_(2 * softcap).sub_(softcap)
        x = torch.minimum(capped, x.add_(_HUGE))  # -inf stays
    x *= inverse_temperature[:, None]
    p = x.softmax(-1).masked_fill_(nothing[:, None], 0)
    shift, depth = x[row, at].masked_fill(nothing, 0), p[row, at].log()
    x.sub_(shift[:, None]).clamp_(min=-_HUGE)  # 0 * -inf would be NaN
    entropy = -depth - torch.linalg.vecdot(p, x)

    p = p.unflatten(1, (-1, _CHUNK))
    chunk_mass = p.sum(-1)
    draw = _draw(p, chunk_mass, uniform)
    above, *candidates = _candidates(p, chunk_mass, threshold, k)
    return (
        (shift - depth).masked_fill(nothing, -torch.inf),
        entropy.masked_fill(nothing, 0),
        at.masked_fill(nothing, -1),
        draw.masked_fill(nothing, -1),
        above,
        *candidates,
    )


def _forbid_(x: Float32[Tensor, "n V"], words: Int32[Tensor, "n W"]) -> None:
    """Bit by bit, so that even a NaN turns into -inf."""
    keep = -(torch.arange(256)[:, None] >> torch.arange(8) & 1).int()  # of 8 bits, 8 words
    keep = keep.index_select(0, words.contiguous().view(torch.uint8).int().flatten())
    keep = keep.view(len(x), -1)[:, : x.shape[1]]
    bits = x.view(torch.int32)
    bits &= keep
    bits |= ~keep & torch.tensor(-torch.inf).view(torch.int32)


def _argmax(x: Float32[Tensor, "n V"]) -> tuple[Tensor, Tensor]:
    """The first of the highest, and whether all are -inf."""
    chunks = x.unflatten(1, (-1, _CHUNK))
    tops = chunks.amax(-1)
    top, chunk = tops.max(-1)
    return chunk * _CHUNK + chunks[torch.arange(len(x)), chunk].argmax(-1), top.isneginf()


def _draw(p: Float32[Tensor, "n C chunk"], chunk_mass: Tensor, uniform: Tensor) -> Tensor:
    """By inverse transform: first the chunk, then the token in it."""
    row, mass = torch.arange(len(p)), chunk_mass.cumsum(-1)
    aim = uniform * mass[:, -1]
    chunk = _first(mass > aim[:, None], chunk_mass > 0)
    within = p[row, chunk]
    aim -= mass[row, chunk] - chunk_mass[row, chunk]
    return chunk * _CHUNK + _first(within.cumsum(-1) > aim[:, None], within > 0)


def _candidates(
    p: Float32[Tensor, "n C chunk"], chunk_mass: Tensor, threshold: float, k: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """How many there are, the first k of them, their probabilities, and that of all others."""
    n = len(p)
    hot = p.amax(-1) >= threshold
    row, chunk = hot.nonzero(as_tuple=True)
    here = p[hot]
    count = (here >= threshold).sum(-1)
    above = count.new_zeros(n).index_add(0, row, count)
    before = count.cumsum(0) - count - (above.cumsum(0) - above)[row]  # in its row
    room = before < k  # to list those of a flat row would take longer than all else
    hot = hot.masked_scatter(hot, room)
    row, chunk, here, count, before = row[room], chunk[room], here[room], count[room], before[room]

    which, offset = (here >= threshold).nonzero(as_tuple=True)
    place = torch.arange(len(which)) - (count.cumsum(0) - count - before)[which]
    which, offset, place = which[place < k], offset[place < k], place[place < k]
    ids, probs = torch.full((n, k), -1), torch.zeros(n, k)
    ids[row[which], place] = chunk[which] * _CHUNK + offset
    probs[row[which], place] = here[which, offset]
    here[which, offset] = 0
    tail = chunk_mass.masked_fill(hot, 0).sum(-1).index_add(0, row, here.sum(-1))
    return above, ids, probs, tail


def _first(reached: Tensor, possible: Tensor) -> Tensor:
    """Where a row is first True in both; the last that is possible if rounding left no such."""
    reached = reached & possible
    last = possible.shape[-1] - 1 - possible.flip(-1).int().argmax(-1)
    return reached.int().argmax(-1).where(reached.any(-1), last)
