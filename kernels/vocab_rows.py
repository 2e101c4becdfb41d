"""Arguments and results of the vocabulary pass, row by row, and the pass in plain torch for CPUs.

The torch pass is arranged as the kernels are: chunks are reduced first, and only those with tokens
to report are read again. A vocabulary has about as many chunks as a chunk has tokens, so that
neither step takes long. It uses operations that torch is fast at on a CPU: softmax takes a tenth of
the time of exp where e^x underflows, and multiplying or adding bits takes a tenth of the time of
boolean masks.

Shapes: `n` rows of `V` logits, `M` masks of `W` words, W * 32 >= V; at most `K` candidates.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Float, Float32, Int32, Int64
from torch import Tensor

_HUGE = 3e38  # added to any logit but -inf, it exceeds a softcap
_FINITE = 3e38  # nats: 0 times this is 0
_CPU_BLOCK = 1 << 18  # logits at a time: two fp32 buffers of 1 MiB
_GPU_BLOCK = 1 << 24  # without a kernel: buffers of 64 MiB
_LEAST = -80.0  # torch's exp is slow when it underflows, and 1 + e^-80 is 1


class RowMasks(NamedTuple):
    """Masks of n rows. Bit `v % 32` of word `v // 32` says whether token v is allowed, as in
    xgrammar's masks; bits after the vocabulary are ignored."""

    bitmask: Int32[Tensor, "M W"]
    rows: Int64[Tensor, " n"]  # row of `bitmask`; -1: any token is allowed


class VocabPass(NamedTuple):
    """Results of the vocabulary pass. A row without allowed tokens has lse -inf, argmax and draw
    -1, no `ids`, and 0 elsewhere."""

    lse: Float[Tensor, " n"]  # log of the sum of e^x over allowed tokens; x is a heated logit
    entropy: Float[Tensor, " n"]  # nats
    argmax: Int64[Tensor, " n"]  # likeliest allowed token; of equals, the lowest
    draw: Int64[Tensor, " n"]  # the first token up to which there is more mass than `uniform`
    above: Int64[Tensor, " n"]  # tokens of probability `threshold` or more; K + 1: more than K
    tail: Float[Tensor, " n"]  # probability of all others; 1 if `above` is K + 1
    ids: Int32[Tensor, "n K"]  # these tokens, ascending, then -1; arbitrary if there are K + 1
    logits: Float[Tensor, "n K"]  # their logits as passed, then 0

    def packed(self) -> Int32[Tensor, "n 6+2*K"]:
        """Return all fields as one tensor, fp32 numbers by their bits; `unpacked` reads it."""
        columns = (x.view(torch.int32) if x.is_floating_point() else x.int() for x in self)
        return torch.cat([x if x.ndim == 2 else x[:, None] for x in columns], dim=1)

    @classmethod
    def unpacked(cls, packed: Int32[Tensor, "n 6+2*K"]) -> "VocabPass":
        """Return the fields of `packed`, as views except for int64."""
        k, floats = (packed.shape[1] - 6) // 2, packed.view(torch.float32)
        lse, entropy, tail = floats[:, 0], floats[:, 1], floats[:, 5]
        argmax, draw, above = packed[:, 2:5].long().unbind(1)
        ids, logits = packed[:, 6 : 6 + k], floats[:, 6 + k :]
        return cls(lse, entropy, argmax, draw, above, tail, ids, logits)

    def split(self, sizes: int | list[int]) -> list["VocabPass"]:
        """Return the results of each `sizes` rows, as views."""
        return [VocabPass(*parts) for parts in zip(*(x.split(sizes) for x in self), strict=True)]

    @classmethod
    def certain(cls, tokens: Int64[Tensor, " n"], k: int) -> "VocabPass":
        """Return the results of rows that allow one token each; their lse is that of a logit of
        0."""
        n, device = len(tokens), tokens.device
        ids = torch.full((n, k), -1, dtype=torch.int32, device=device)
        ids[:, 0] = tokens
        lse, entropy, tail = torch.zeros(3, n, device=device)
        argmax, draw, above = tokens.clone(), tokens.clone(), torch.ones_like(tokens)
        logits = torch.zeros(n, k, device=device)
        return cls(lse, entropy, argmax, draw, above, tail, ids, logits)

    def name_(self, rows: Int64[Tensor, " m"], tokens: Int64[Tensor, " m"]) -> None:
        """Replace the results of `rows`, which are on the host, by those of `certain` tokens."""
        at, named = rows.numpy(), tokens.numpy()  # torch takes three times as long
        lse, entropy, argmax, draw, above, tail, ids, logits = (column.numpy() for column in self)
        lists = at[above[at] != 1]  # the lists of most rows have one token already
        ids[lists], logits[lists] = -1, 0
        ids[at, 0], logits[at, 0] = named, 0
        argmax[at], draw[at], above[at] = named, named, 1
        lse[at], entropy[at], tail[at] = 0, 0, 0


def listed(
    packed: Int32[Tensor, "n 6+2*K"], rows: Int64[Tensor, " t"], places: Int64[Tensor, " t"]
) -> tuple[Int32[Tensor, " t"], Float32[Tensor, " t"]]:
    """Return the ids of tokens at `places` of the lists of `rows`, and their logits."""
    width, k = packed.shape[1], (packed.shape[1] - 6) // 2
    at = rows * width + places + 6
    ids = packed.flatten().index_select(0, at)
    return ids, packed.view(torch.float32).flatten().index_select(0, at + k)


def heated(
    logits: Float[Tensor, "n m"],
    inverse_temperature: Float32[Tensor, " n"],
    softcap: float | None,
) -> Float32[Tensor, "n m"]:
    """Return softcap * tanh(logits / softcap) * inverse_temperature; -inf stays. The tanh is 1 - 2
    / (e^2x + 1). On a CPU torch's tanh takes twice as long, and its sigmoid rounds the last numbers
    of a tensor differently: the result of a row must not depend on other rows."""
    x, heat = logits.float(), inverse_temperature[:, None]
    if softcap is None:
        return x * heat
    capped = x.mul(2 / softcap).clamp_(min=_LEAST).exp_().add_(1).reciprocal_()
    capped.mul_(-2 * softcap).add_(softcap)
    if x.device.type != "cpu" or (x.numel() and x.amin(-1).isneginf().any()):
        capped = torch.minimum(capped, x + _HUGE)  # -inf stays; this costs more than a check
    return capped.mul_(heat)


def check_source(
    logits: Tensor,
    inverse_temperature: Tensor,
    masks: RowMasks | None,
    rows: Tensor | None,
    softcap: float | None,
) -> int:
    """Return how many rows these arguments have. Raises `ValueError` if they do not fit."""
    if logits.ndim != 2 or not logits.is_floating_point() or logits.dtype.itemsize > 4:
        raise ValueError(
            f"logits are [n, V] of fp32, bf16 or fp16, got {[*logits.shape]} of {logits.dtype}"
        )
    (N, V), device = logits.shape, logits.device
    if V > 1 and logits.stride(1) != 1:
        raise ValueError(f"a row of logits must be adjacent, got strides {logits.stride()}")
    if rows is not None:
        check_numbers("rows", rows, rows.shape, torch.int64, device)
        _check_range("rows", rows, 0, N)
    n = N if rows is None else len(rows)
    check_numbers("inverse_temperature", inverse_temperature, (n,), torch.float32, device)
    if softcap is not None and not softcap > 0:
        raise ValueError(f"a softcap is above 0, or None, got {softcap}")
    if masks:
        _check_masks(masks, n, V, device)
    return n


def _check_masks(masks: RowMasks, n: int, V: int, device: torch.device) -> None:
    bitmask, rows = masks
    if bitmask.ndim != 2 or bitmask.dtype != torch.int32:
        raise ValueError(f"a bitmask is [M, W] of int32, got {[*bitmask.shape]} of {bitmask.dtype}")
    if bitmask.device != device:
        raise ValueError(f"logits are on {device} but their bitmask is on {bitmask.device}")
    M, W = bitmask.shape
    if W * 32 < V:
        raise ValueError(f"{W} words of 32 bits are too few for {V} tokens: {-(-V // 32)} needed")
    if W > 1 and bitmask.stride(1) != 1:
        raise ValueError(f"a row of bitmask must be adjacent, got strides {bitmask.stride()}")
    check_numbers("masks.rows", rows, (n,), torch.int64, device)
    _check_range("masks.rows", rows, -1, M)


def check_numbers(
    name: str, tensor: Tensor, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> None:
    if tensor.shape != shape or tensor.ndim != 1 or tensor.dtype != dtype:
        raise ValueError(
            f"{name} is one {dtype} for each of {shape[0] if shape else 0} rows; "
            f"got {[*tensor.shape]} of {tensor.dtype}"
        )
    if not tensor.is_contiguous():
        raise ValueError(f"{name} must be adjacent, got strides {tensor.stride()}")
    if tensor.device != device:
        raise ValueError(f"logits are on {device} but {name} is on {tensor.device}")


def _check_range(name: str, numbers: Tensor, first: int, end: int) -> None:
    """Check a range on the CPU, where reading values costs nothing."""
    if numbers.device.type == "cpu" and len(numbers):
        low, high = numbers.min().item(), numbers.max().item()
        if low < first or high >= end:
            raise ValueError(f"{name} are {first} to {end - 1}, got {low} to {high}")


def blocks(
    logits: Float[Tensor, "N V"], masks: RowMasks | None, rows: Int64[Tensor, " n"] | None, n: int
) -> Iterator[tuple[slice, Float[Tensor, "m V"], Int32[Tensor, "m W"] | None]]:
    """Yield which of n rows are read next in plain torch, their logits, and their masks in full.
    No rows are one empty block."""
    size = _CPU_BLOCK if logits.device.type == "cpu" else _GPU_BLOCK
    size = max(1, size // max(1, logits.shape[1]))
    for begin in range(0, max(1, n), size):
        some = slice(begin, begin + size)
        words = masks and mask_words(masks.bitmask, masks.rows[some])
        yield some, logits[some] if rows is None else logits[rows[some]], words


def mask_words(bitmask: Int32[Tensor, "M W"], rows: Int64[Tensor, " n"]) -> Int32[Tensor, "n W"]:
    """Return the mask of each row, in full."""
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
    """Return the fields of `VocabPass`, in their order. Makes a few fp32 copies of `logits`.

    The softmax of torch on a CPU adds each lane of a vector from left to right: with the eight
    lanes of AVX2, the sum of 140,000 terms is off by some 10^-5 of itself. So its results are only
    proportional to the probabilities. Their own sum, added in trees, is what they are divided by.
    """
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
    chunk_mass = p.unflatten(1, (-1, chunk)).sum(-1)
    mass = chunk_mass.sum(-1).masked_fill(nothing, 1)
    shift, depth = x[row, at].masked_fill(nothing, 0), (p[row, at] / mass).log()
    x.sub_(shift[:, None]).clamp_(min=-_FINITE)  # 0 * -inf would be NaN
    entropy = -depth - x.mul_(p).sum(-1) / mass

    p = p.unflatten(1, (-1, chunk))
    count, tail, ids, theirs = _candidates(p, chunk_mass, logits, threshold * mass, k)
    return (
        (shift - depth).masked_fill(nothing, -torch.inf),
        entropy.masked_fill(nothing, 0),
        at.masked_fill(nothing, -1),
        _draw(p, chunk_mass, uniform).masked_fill(nothing, -1),
        count,
        (tail / mass).where(count <= k, 1),
        ids,
        theirs,
    )


def forbid_(x: Float32[Tensor, "n V"], words: Int32[Tensor, "n W"]) -> None:
    """Write -inf where the bit of a token is 0, by bit operations, so that even a NaN becomes
    -inf."""
    bit = torch.arange(8, device=x.device)
    keep = -(torch.arange(256, device=x.device)[:, None] >> bit & 1).int()  # of 8 bits, 8 words
    keep = keep.index_select(0, words.contiguous().view(torch.uint8).int().flatten())
    keep = keep.view(len(x), 32 * words.shape[1])[:, : x.shape[1]]
    bits = x.view(torch.int32)
    bits &= keep
    bits |= ~keep & torch.tensor(-torch.inf).view(torch.int32).item()


def _argmax(x: Float32[Tensor, "n C chunk"]) -> tuple[Tensor, Tensor]:
    """Return the first of the highest, and whether all are -inf."""
    top, chunk = x.amax(-1).max(-1)
    at = x[torch.arange(len(x)), chunk].argmax(-1)
    return chunk * x.shape[-1] + at, top.isneginf()


def _draw(p: Float32[Tensor, "n C chunk"], chunk_mass: Tensor, uniform: Tensor) -> Tensor:
    """Draw by inverse transform: first the chunk, then the token in it."""
    row, mass = torch.arange(len(p)), chunk_mass.cumsum(-1)
    aim = uniform * mass[:, -1]
    chunk = _first(mass > aim[:, None], chunk_mass > 0)
    within = p[row, chunk]
    aim -= mass[row, chunk] - chunk_mass[row, chunk]
    return chunk * p.shape[-1] + _first(within.cumsum(-1) > aim[:, None], within > 0)


def _candidates(
    p: Float32[Tensor, "n C chunk"], chunk_mass: Tensor, logits: Tensor, least: Tensor, k: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the number of candidates, tokens whose `p` is at least their row's `least`, the sum of
    all other `p`, and ids and logits unless there are over k."""
    n = len(p)
    hot = p.amax(-1) >= least[:, None]
    few = hot.sum(-1) <= k  # reading each chunk of a flat row would take too long
    row, chunk = (hot & few[:, None]).nonzero(as_tuple=True)
    here = p[row, chunk]
    above = here >= least[row, None]
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
    return count.where(few, k + 1), tail, ids, theirs


def _first(reached: Tensor, possible: Tensor) -> Tensor:
    """Return where a row is first True in both; the last possible one if rounding left none."""
    reached = reached & possible
    last = possible.shape[-1] - 1 - possible.flip(-1).int().argmax(-1)
    return reached.int().argmax(-1).where(reached.any(-1), last)
