"""The vocabulary pass of vocab.py over a few rows, in plain torch, for CPUs.

Arranged as the kernels are: chunks are reduced first, and only those that hold something to report
are looked into. A vocabulary has about as many chunks as a chunk has tokens, so that neither takes
long. What the results mean, `VocabPass` says. Written for what torch is fast at on a CPU: its
softmax takes a tenth of its exp where e^x underflows, and bits that are multiplied or added in take
a tenth of masks of bools.
"""

import torch
from jaxtyping import Float, Float32, Int32, Int64
from torch import Tensor

from dlm.kernels.vocab_rows import heated

_HUGE = 3e38  # nats: 0 times it is 0


def mask_words(bitmask: Int32[Tensor, "M W"], rows: Int64[Tensor, " n"]) -> Int32[Tensor, "n W"]:
    """The mask of each row, in full."""
    if not len(bitmask):
        return bitmask.new_full((len(rows), bitmask.shape[1]), -1)
    return torch.where(rows[:, None] < 0, -1, bitmask[rows.clamp(min=0)])


def pass_rows(
    logits: Float[Tensor, "n V"],
    inverse_temperature: Float32[Tensor, " n"],
    uniform: Float32[Tensor, " n"],
    words: Int32[Tensor, "n W"] | None,
    softcap: float | None,
    threshold: float,
    k: int,
) -> tuple[Tensor, ...]:
    """The fields of `VocabPass`, in their order. Makes a few fp32 copies of `logits`."""
    (n, V), row = logits.shape, torch.arange(len(logits))
    chunk = 1 << (max(1, V - 1).bit_length() + 1) // 2
    x = torch.empty(n, max(1, -(-V // chunk)) * chunk)
    x[:, V:] = -torch.inf
    x[:, :V] = logits
    if words is not None:
        forbid_(x[:, :V], words)

    at, nothing = _argmax(x.unflatten(1, (-1, chunk)))
    x = heated(x, inverse_temperature, softcap)
    p = x.softmax(-1)
    if nothing.any():
        p.masked_fill_(nothing[:, None], 0)
    shift, depth = x[row, at].masked_fill(nothing, 0), p[row, at].log()
    x.sub_(shift[:, None]).clamp_(min=-_HUGE)  # 0 * -inf would be NaN
    entropy = -depth - x.mul_(p).sum(-1)

    p = p.unflatten(1, (-1, chunk))
    chunk_mass = p.sum(-1)
    return (
        (shift - depth).masked_fill(nothing, -torch.inf),
        entropy.masked_fill(nothing, 0),
        at.masked_fill(nothing, -1),
        _draw(p, chunk_mass, uniform).masked_fill(nothing, -1),
        *_candidates(p, chunk_mass, logits, threshold, k),
    )


def forbid_(x: Float32[Tensor, "n V"], words: Int32[Tensor, "n W"]) -> None:
    """Write -inf where the bit of a token is 0: bit by bit, so that even a NaN turns into it."""
    bit = torch.arange(8, device=x.device)
    keep = -(torch.arange(256, device=x.device)[:, None] >> bit & 1).int()  # of 8 bits, 8 words
    keep = keep.index_select(0, words.contiguous().view(torch.uint8).int().flatten())
    keep = keep.view(len(x), 32 * words.shape[1])[:, : x.shape[1]]
    bits = x.view(torch.int32)
    bits &= keep
    bits |= ~keep & torch.tensor(-torch.inf).view(torch.int32).item()


def _argmax(x: Float32[Tensor, "n C chunk"]) -> tuple[Tensor, Tensor]:
    """The first of the highest, and whether all are -inf."""
    top, chunk = x.amax(-1).max(-1)
    at = x[torch.arange(len(x)), chunk].argmax(-1)
    return chunk * x.shape[-1] + at, top.isneginf()


def _draw(p: Float32[Tensor, "n C chunk"], chunk_mass: Tensor, uniform: Tensor) -> Tensor:
    """By inverse transform: first the chunk, then the token in it."""
    row, mass = torch.arange(len(p)), chunk_mass.cumsum(-1)
    aim = uniform * mass[:, -1]
    chunk = _first(mass > aim[:, None], chunk_mass > 0)
    within = p[row, chunk]
    aim -= mass[row, chunk] - chunk_mass[row, chunk]
    return chunk * p.shape[-1] + _first(within.cumsum(-1) > aim[:, None], within > 0)


def _candidates(
    p: Float32[Tensor, "n C chunk"], chunk_mass: Tensor, logits: Tensor, threshold: float, k: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """How many there are; the mass of all others; and, unless they are over k, ids and logits."""
    n = len(p)
    hot = p.amax(-1) >= threshold
    few = hot.sum(-1) <= k  # to look into each chunk of a flat row would take longer than all else
    row, chunk = (hot & few[:, None]).nonzero(as_tuple=True)
    here = p[row, chunk]
    above = here >= threshold
    count = row.new_zeros(n).index_add(0, row, above.sum(-1))
    few &= count <= k
    rest = here.masked_fill(above, 0).sum(-1)
    tail = chunk_mass.masked_fill(hot, 0).sum(-1).index_add(0, row, rest)

    which, offset = (above & few[row, None]).nonzero(as_tuple=True)
    row, token = row[which], chunk[which] * p.shape[-1] + offset
    listed = count * few
    place = torch.arange(len(which)) - (listed.cumsum(0) - listed)[row]
    ids, theirs = torch.full((n, k), -1, dtype=torch.int32), torch.zeros(n, k)
    ids[row, place] = token.int()
    theirs[row, place] = logits[row, token].float()
    return count.where(few, k + 1), tail.where(few, 1), ids, theirs


def _first(reached: Tensor, possible: Tensor) -> Tensor:
    """Where a row is first True in both; the last that is possible if rounding left no such."""
    reached = reached & possible
    last = possible.shape[-1] - 1 - possible.flip(-1).int().argmax(-1)
    return reached.int().argmax(-1).where(reached.any(-1), last)
