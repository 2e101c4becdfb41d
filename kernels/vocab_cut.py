"""Masks that leave only the likeliest tokens of each row: top-k, top-p and min-p.

The result is a bitmask, so that all functions that read logits under a mask (the vocabulary pass,
expectations) see the remaining distribution, and need not know about cuts. The least logit that
stays is found exactly, by a search over the bits of fp32 numbers; this also works for flat rows, in
which a hundred thousand tokens stay.

A token stays or goes by its logit alone, so equal logits stay or go together. There are three
conditions, in the order of vLLM; a token stays if it meets all that are set:

* min-p: its probability is at least `min_p` times the likeliest token's.
* top-k: fewer than `top_k` tokens have a higher logit.
* top-p: of those left, the ones with a higher logit have less than `top_p` of the probability.

The likeliest allowed token always stays.

Shapes: `N` rows of `V` logits, of which `n` are cut; `M` masks of `W` words, W * 32 >= V.
"""

from contextlib import nullcontext
from math import log
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Float32, Int32, Int64
from torch import Tensor

from dlm.kernels.gpus import runs_kernel
from dlm.kernels.vocab import allowed_logits, heated_logits, source_of
from dlm.kernels.vocab_rows import (
    RowMasks,
    blocks,
    check_numbers,
    check_source,
    forbid_,
    heated,
)

_CHUNK = 1 << 12  # tokens that a block reads at a time
_LOW_BITS = {torch.float32: 0, torch.float16: 13, torch.bfloat16: 16}  # unused by their fp32 values


class Cuts(NamedTuple):
    """Cuts of n rows. 0, 1.0 and 0.0 leave a row as it is."""

    top_k: Int32[Tensor, " n"]  # tokens; 0: any number
    top_p: Float32[Tensor, " n"]  # probability, above 0
    min_p: Float32[Tensor, " n"]  # share of the likeliest token's probability, 0 to 1


def cut_masks_reference(
    logits: Float[Tensor, "N V"],
    inverse_temperature: Float32[Tensor, " n"],
    cuts: Cuts,
    masks: RowMasks | None = None,
    rows: Int64[Tensor, " n"] | None = None,
    *,
    softcap: float | None = None,
) -> RowMasks:
    """Define `cut_masks` in fp64, a row at a time."""
    logits = logits if rows is None else logits[rows]
    (n, V), token = logits.shape, torch.arange(logits.shape[1], device=logits.device)
    keep = ~logits.isneginf()
    for i in range(n):
        if masks and (mask := int(masks.rows[i])) >= 0:
            keep[i] &= (masks.bitmask[mask, token // 32] >> token % 32 & 1).bool()
        logit = logits[i].double().masked_fill(~keep[i], -torch.inf)
        if not keep[i].any() or not logit.max() < torch.inf:
            continue
        x = logit if softcap is None else softcap * torch.tanh(logit / softcap)
        x = (x * inverse_temperature[i].double()).masked_fill(~keep[i], -torch.inf)
        k, p, least = int(cuts.top_k[i]), float(cuts.top_p[i]), float(cuts.min_p[i])
        if least:
            keep[i] &= x >= x.max() + log(least)
        if 0 < k < V:
            keep[i] &= logit >= logit.sort(descending=True).values[k - 1]
        if p < 1:
            mass = x.masked_fill(~keep[i], -torch.inf).softmax(-1)
            values, of = logit.unique(return_inverse=True)  # ascending; equal logits as one
            by_value = mass.new_zeros(len(values)).index_add(0, of, mass)
            higher = by_value.flip(0).cumsum(0).flip(0) - by_value
            keep[i] &= higher[of] < p
    return RowMasks(_packed(keep), torch.arange(n, device=logits.device))


def cut_masks(
    logits: Float[Tensor, "N V"],
    inverse_temperature: Float32[Tensor, " n"],
    cuts: Cuts,
    masks: RowMasks | None = None,
    rows: Int64[Tensor, " n"] | None = None,
    *,
    softcap: float | None = None,
    by_kernel: bool | None = None,
) -> RowMasks:
    """Return a mask for each row: the tokens that `masks` allows and `cuts` leaves.

    A logit counts as in `vocab_pass`, and so do `rows` and `by_kernel`. The cut is applied to the
    tokens that `masks` allows. A row in which an allowed logit is NaN or +inf is not cut.

    Sums are in fp32 (kernel) or fp64 (torch): where the probability above a token equals `top_p` to
    some 1e-6, they may differ by that token. Raises `ValueError` as `vocab_pass` does.
    """
    n = check_source(logits, inverse_temperature, masks, rows, softcap)
    for name, column, dtype in zip(
        Cuts._fields, cuts, (torch.int32, torch.float32, torch.float32), strict=True
    ):
        check_numbers(name, column, (n,), dtype, logits.device)
    args = logits, inverse_temperature, cuts, masks, rows, softcap
    if runs_kernel(logits.device, by_kernel):
        return _launch(*args)
    with logits.device if logits.device.type != "cpu" else nullcontext():
        return _in_blocks(*args)


def _in_blocks(
    logits: Tensor,
    inverse_temperature: Tensor,
    cuts: Cuts,
    masks: RowMasks | None,
    rows: Tensor | None,
    softcap: float | None,
) -> RowMasks:
    """Cut in plain torch, a few rows at a time."""
    n, parts = len(inverse_temperature), list[Tensor]()
    for some, block, words in blocks(logits, masks, rows, n):
        block = block.to(torch.float32, copy=True)
        if words is not None:
            forbid_(block, words)
        keep, least = ~block.isneginf(), block.new_empty(len(block), 1)
        for i, row in enumerate(block, start=some.start):
            cut = Cuts(*(column[i] for column in cuts))
            least[i - some.start] = _least(row, inverse_temperature[i], cut, softcap)
        keep &= (block >= least) | block.isnan()
        parts.append(_packed(keep))
    return RowMasks(torch.cat(parts), torch.arange(n))


def _least(
    row: Float32[Tensor, " V"], inverse_temperature: Tensor, cut: Cuts, softcap: float | None
) -> Tensor:
    """Return the least logit that stays in a row; -inf if all do. `cut` is that of the row
    alone."""
    least = row.new_tensor(-torch.inf)
    k, p, share = int(cut.top_k), float(cut.top_p), float(cut.min_p)
    some = 0 < k < len(row) or p < 1 or share > 0
    if not some or not len(row) or not -torch.inf < (top := row.max()) < torch.inf:
        return least
    if 0 < k < len(row):
        least = row.topk(k).values[-1]
    if p == 1 and not share:
        return least
    kept = row[(row >= least) & ~row.isneginf()]
    x = heated(torch.cat((kept, top[None]))[None], inverse_temperature[None], softcap)[0]
    x = (x[:-1] - x[-1]).double()
    if share:
        kept, x = kept[x >= log(share)], x[x >= log(share)]
        least = kept.min()
    if p < 1:
        mass = x.exp()
        total = mass.sum()
        # All smaller ones together have less than 1 - p: none of them can stay.
        near = mass >= (1 - p) / 2 / len(mass) * total
        kept, order = kept[near].sort(descending=True)
        mass = mass[near][order]
        higher = mass.cumsum(0) - mass
        least = kept[(higher < p * total).sum().clamp(min=1) - 1]
    return least


def _packed(keep: Tensor) -> Int32[Tensor, "n W"]:
    """Pack bits into words, the first token in the lowest bit."""
    n, V = keep.shape
    W = -(-V // 32)
    bits = torch.zeros(n, W * 32, dtype=torch.uint8, device=keep.device)
    bits[:, :V] = keep
    value = 1 << torch.arange(8, dtype=torch.uint8, device=keep.device)
    flat = (bits.view(-1, 8) * value).sum(-1, dtype=torch.uint8)
    return flat.view(torch.int32).view(n, W)


def _launch(
    logits: Tensor,
    inverse_temperature: Tensor,
    cuts: Cuts,
    masks: RowMasks | None,
    rows: Tensor | None,
    softcap: float | None,
) -> RowMasks:
    V, n, device = logits.shape[1], len(inverse_temperature), logits.device
    words = torch.empty(n, -(-V // 32), dtype=torch.int32, device=device)
    constants: dict[str, Any] = {"CAP": softcap or 0.0, "CHUNK": _CHUNK, "num_warps": 8}
    constants["maxnreg"] = 128  # without a limit, ptxas chooses 64, which is too few
    constants["LOW_BITS"] = _LOW_BITS[logits.dtype]
    source = *source_of(logits, masks, rows), inverse_temperature
    outputs = words, words.shape[1], V, -(-V // _CHUNK)
    if n:
        with torch.cuda.device_of(logits):
            _cut_kernel[(n,)](*source, *cuts, *outputs, **constants)
    return RowMasks(words, torch.arange(n, device=device))


@triton.jit
def _keys(logit, LOW_BITS: tl.constexpr):
    """Return integers in the order of the logits, equal for both zeros. The lowest `LOW_BITS` bits,
    which are the same for all logits of their dtype, are dropped."""
    bits = tl.where(logit == 0, 0.0, logit).to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits) >> LOW_BITS


@triton.jit
def _count(
    logits_ptr, logits_stride, bitmask_ptr, bitmask_stride, rows_ptr, masks_ptr, vocab, row, chunks,
    key, LOW_BITS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Count the tokens of a row whose keys are `key` or higher."""
    counts = tl.zeros([CHUNK // 8, 8], tl.int32)
    for chunk in range(chunks):
        logit, _ = allowed_logits(  # pyright: ignore[reportGeneralTypeIssues]  # it is no call
            logits_ptr, logits_stride, bitmask_ptr, bitmask_stride, rows_ptr, masks_ptr, vocab, row,
            chunk * (CHUNK // 8) + tl.arange(0, CHUNK // 8),
        )  # fmt: skip
        counts += (_keys(logit, LOW_BITS) >= key).to(tl.int32)
    return tl.sum(tl.sum(counts, 1), 0)


@triton.jit
def _mass(
    logits_ptr, logits_stride, bitmask_ptr, bitmask_stride, rows_ptr, masks_ptr, vocab, row, chunks,
    key, floor, shift, inverse, CAP: tl.constexpr, LOW_BITS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Sum e^(x - shift) over the tokens whose keys are higher than `key` and x - shift at least
    `floor`. The order of summation is fixed, so that a higher key never has a larger sum."""
    masses = tl.zeros([CHUNK // 8, 8], tl.float32)
    for chunk in range(chunks):
        logit, _ = allowed_logits(  # pyright: ignore[reportGeneralTypeIssues]
            logits_ptr, logits_stride, bitmask_ptr, bitmask_stride, rows_ptr, masks_ptr, vocab, row,
            chunk * (CHUNK // 8) + tl.arange(0, CHUNK // 8),
        )  # fmt: skip
        x = heated_logits(logit, inverse, CAP) - shift
        masses += tl.where((_keys(logit, LOW_BITS) > key) & (x >= floor), tl.exp(x), 0.0)
    return tl.sum(tl.sum(masses, 1), 0)


@triton.jit(do_not_specialize=["bitmask_stride"])
def _cut_kernel(
    logits_ptr,  # [N, vocab] any float
    logits_stride,  # elements from row to row
    bitmask_ptr,  # [masks, words] int32, or None
    bitmask_stride,
    rows_ptr,  # [n] int64: row of the logits; None: the same
    masks_ptr,  # [n] int64: row of the bitmask, or -1; None with the bitmask
    inverse_ptr,  # [n] fp32: 1 / temperature
    top_k_ptr,  # [n] int32
    top_p_ptr,  # [n] fp32
    min_p_ptr,  # [n] fp32
    words_ptr,  # [n, words] int32: the result
    words,
    vocab,
    chunks,
    CAP: tl.constexpr,
    LOW_BITS: tl.constexpr,
    CHUNK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    bytes_ptr = words_ptr.to(tl.pointer_type(tl.uint8), bitcast=True)
    inverse = tl.load(inverse_ptr + row)
    k, p, share = tl.load(top_k_ptr + row), tl.load(top_p_ptr + row), tl.load(min_p_ptr + row)

    tops = tl.full([CHUNK // 8, 8], float("-inf"), tl.float32)
    strange = tl.zeros([CHUNK // 8, 8], tl.int32)  # NaN, which comparisons miss, and +inf
    if (k > 0) | (p < 1) | (share > 0):
        for chunk in range(chunks):
            logit, _ = allowed_logits(  # pyright: ignore[reportGeneralTypeIssues]
                logits_ptr, logits_stride, bitmask_ptr, bitmask_stride, rows_ptr, masks_ptr, vocab,
                row, chunk * (CHUNK // 8) + tl.arange(0, CHUNK // 8),
            )  # fmt: skip
            tops = tl.where(logit > tops, logit, tops)
            strange += tl.where(logit < float("inf"), 0, 1)
    top = tl.max(tl.max(tops, 1), 0)
    cut = (top > float("-inf")) & (tl.sum(tl.sum(strange, 1), 0) == 0)
    some = tl.where(cut, top, 0.0)
    shift = heated_logits(some, inverse, CAP)
    floor = tl.log(tl.where(share > 0, share, 1.0))  # of x - shift
    floor = tl.where(share > 0, floor, float("-inf"))
    highest = _keys(some, LOW_BITS).to(tl.int64)
    least = tl.zeros_like(highest) + ((-0x7F800001) >> LOW_BITS)  # the key of -inf

    if cut & (k > 0):
        end = highest + 1  # fewer than k tokens have this key or a higher one
        while end - least > 1:
            middle = (least + end) >> 1
            count = _count(
                logits_ptr, logits_stride, bitmask_ptr, bitmask_stride, rows_ptr, masks_ptr, vocab,
                row, chunks, middle, LOW_BITS, CHUNK,
            )  # fmt: skip
            least = tl.where(count >= k, middle, least)
            end = tl.where(count >= k, end, middle)

    if cut & (p < 1):
        before = least - 1  # tokens with higher keys have p of the mass or more
        least = highest  # tokens with higher keys have less
        aim = p * _mass(
            logits_ptr, logits_stride, bitmask_ptr, bitmask_stride, rows_ptr, masks_ptr, vocab, row,
            chunks, before, floor, shift, inverse, CAP, LOW_BITS, CHUNK,
        )  # fmt: skip
        while least - before > 1:
            middle = (least + before) >> 1
            mass = _mass(
                logits_ptr, logits_stride, bitmask_ptr, bitmask_stride, rows_ptr, masks_ptr, vocab,
                row, chunks, middle, floor, shift, inverse, CAP, LOW_BITS, CHUNK,
            )  # fmt: skip
            least = tl.where(mass < aim, middle, least)
            before = tl.where(mass < aim, before, middle)

    for chunk in range(chunks):
        logit, _ = allowed_logits(  # pyright: ignore[reportGeneralTypeIssues]
            logits_ptr, logits_stride, bitmask_ptr, bitmask_stride, rows_ptr, masks_ptr, vocab, row,
            chunk * (CHUNK // 8) + tl.arange(0, CHUNK // 8),
        )  # fmt: skip
        x = heated_logits(logit, inverse, CAP) - shift
        stays = (_keys(logit, LOW_BITS) >= least) & (x >= floor) & (logit > float("-inf"))
        stays |= (cut == 0) & (logit != float("-inf"))
        byte = tl.sum(stays.to(tl.int32) << tl.arange(0, 8)[None, :], 1).to(tl.uint8)
        at = chunk * (CHUNK // 8) + tl.arange(0, CHUNK // 8)
        tl.store(bytes_ptr + row * words * 4 + at, byte, mask=at < words * 4)
