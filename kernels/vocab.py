"""Vocabulary pass: all values that a sampler needs of a step's logits, with one read of them.

Per row these are log-sum-exp, entropy, argmax, one draw, and the tokens above a probability, with
the mass of all others. Softcap, temperature and masks are applied during the read, and no second
`[n, V]` tensor is written. For each unit of some hundred tokens a maximum and two sums are kept:
one kernel reduces chunks of units, another merges the units of a row. In most rows few units have a
notable mass: only units with tokens to report are read again, and none if there are too many of
them.

This module does not know grammars, canvases or random generators: masks, temperatures and one
number per row to draw by are arguments.

Shapes: `N` rows of `V` logits, of which `n` are read; `M` masks of `W` words, W * 32 >= V; at most
`K` candidates.
"""

from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Float32, Int64
from torch import Tensor

from dlm.kernels.configurations import VOCABULARY, Configuration
from dlm.kernels.gpus import runs_kernel
from dlm.kernels.vocab_rows import (
    RowMasks,
    VocabPass,
    blocks,
    check_numbers,
    check_source,
    pass_rows,
)

_UNIT = 1 << 9  # tokens: 262,144 are 512 units, which one block merges
_MERGE_WARPS = 8  # each reads 256 tokens at once: eight per thread, stored without moves
_FIT = _MERGE_WARPS * 256 // _UNIT  # units that they read at once
_LOG2E = tl.constexpr(1.4426950408889634)


def vocab_pass_reference(
    logits: Float[Tensor, "N V"],
    inverse_temperature: Float32[Tensor, " n"],
    uniform: Float32[Tensor, " n"],
    masks: RowMasks | None = None,
    rows: Int64[Tensor, " n"] | None = None,
    *,
    softcap: float | None = None,
    threshold: float = 1e-4,
    k: int = 256,
) -> VocabPass:
    """Define `vocab_pass` in fp64, with any number of copies."""
    logits = logits if rows is None else logits[rows]
    n, V = logits.shape
    token = torch.arange(V, device=logits.device)
    allowed = ~logits.isneginf()
    for i, row in enumerate(masks.rows.tolist() if masks else ()):
        if masks and row >= 0:
            allowed[i] &= (masks.bitmask[row, token // 32] >> token % 32 & 1).bool()
    x = logits.double()
    if softcap is not None:
        x = softcap * torch.tanh(x / softcap)
    x = (x * inverse_temperature.double()[:, None]).masked_fill(~allowed, -torch.inf)
    lse = x.logsumexp(-1)
    p = (x - lse.nan_to_num(neginf=0)[:, None]).exp()
    mass = p.cumsum(-1)

    best, drawn = torch.full_like(lse, -1).long(), torch.full_like(lse, -1).long()
    ids, listed_logits, rest = p.new_full((n, k), -1).int(), p.new_zeros(n, k), p.clone()
    above = (p >= threshold) & allowed
    counts = above.sum(-1).clamp(max=k + 1)
    for i in range(n):
        if allowed[i].any():
            best[i] = logits[i].masked_fill(~allowed[i], -torch.inf).argmax()
            drawn[i] = (mass[i] > uniform[i].double() * mass[i, -1]).nonzero()[0, 0]
        if counts[i] <= k:
            listed = above[i].nonzero()[:, 0]
            ids[i, : len(listed)] = listed
            listed_logits[i, : len(listed)] = logits[i, listed].double()
            rest[i, listed] = 0
    entropy, tail = torch.special.entr(p).sum(-1), rest.sum(-1)
    return VocabPass(lse, entropy, best, drawn, counts, tail, ids, listed_logits)


def vocab_pass(
    logits: Float[Tensor, "N V"],
    inverse_temperature: Float32[Tensor, " n"],
    uniform: Float32[Tensor, " n"],
    masks: RowMasks | None = None,
    rows: Int64[Tensor, " n"] | None = None,
    *,
    softcap: float | None = None,
    threshold: float = 1e-4,
    k: int = 256,
    by_kernel: bool | None = None,
    configuration: Configuration | None = None,
) -> VocabPass:
    """Compute `vocab_pass_reference` in fp32: by two kernel launches, or by plain torch on the CPU.

    A logit l counts as x = softcap * tanh(l / softcap) * inverse_temperature, or without a softcap
    as l * inverse_temperature. Both keep the order, so the argmax is that of the logits, even if
    two of them round to one x. A token is allowed if its logit is not -inf and `masks` allows it.
    `inverse_temperature` is above 0 and finite. With `rows`, only those rows of `logits` are read,
    and every other argument has an entry for each of them.

    `uniform`, in [0, 1), is all the randomness: the same numbers give the same draws. CPU, kernel
    and reference round their sums differently, so where the mass up to a token equals `uniform` to
    some 1e-6, they may draw neighbours. A forbidden token is never drawn.

    An allowed logit of NaN or +inf makes lse, entropy and tail of its row NaN, and the rest
    arbitrary. Raises `ValueError` for shapes, dtypes, devices and masks that do not fit; the values
    of tensors on a GPU are not checked, since that would wait for it.

    `by_kernel` overrides the device, as in `dlm.kernels`. `configuration` is a candidate of the
    first kernel; None: that of its rule.
    """
    given = _Given(logits, inverse_temperature, uniform, masks, rows, softcap, threshold, k)
    _check(given)
    if runs_kernel(logits.device, by_kernel):
        return _launch(given, configuration)
    with logits.device if logits.device.type != "cpu" else nullcontext():  # it has a price
        return _in_blocks(given)


class _Given(NamedTuple):
    """Arguments of `vocab_pass`."""

    logits: Tensor
    inverse_temperature: Tensor
    uniform: Tensor
    masks: RowMasks | None
    rows: Tensor | None
    softcap: float | None
    threshold: float
    k: int


def _in_blocks(given: _Given) -> VocabPass:
    """Run the pass in plain torch, a few rows at a time."""
    logits, inverse_temperature, uniform, masks, rows, softcap, threshold, k = given
    parts = [
        pass_rows(block, inverse_temperature[some], uniform[some], words, softcap, threshold, k)
        for some, block, words in blocks(logits, masks, rows, len(inverse_temperature))
    ]
    return VocabPass(*(torch.cat(column) for column in zip(*parts, strict=True)))


def _launch(given: _Given, configuration: Configuration | None) -> VocabPass:
    logits, inverse_temperature, uniform, masks, rows, softcap, threshold, k = given
    V, n, device = logits.shape[1], len(inverse_temperature), logits.device
    units = max(1, -(-V // _UNIT))
    source = *source_of(logits, masks, rows), inverse_temperature
    parts = torch.empty(3, n, units, device=device)
    floats = torch.empty(3, n, device=device)
    ints = torch.empty(3, n, dtype=torch.int64, device=device)
    ids = torch.empty(n, k, dtype=torch.int32, device=device)
    listed = torch.empty(n, k, device=device)
    constants: dict[str, Any] = {"CAP": softcap or 0.0, "UNIT": _UNIT}
    chosen = configuration or VOCABULARY.choose(device, tokens=V, bytes=logits.itemsize)
    chunk: dict[str, Any] = {**chosen}
    merge: dict[str, Any] = {"UNITS": triton.next_power_of_2(units), "FIT": _FIT}
    merge["num_warps"] = _MERGE_WARPS
    with torch.cuda.device_of(logits):
        grid = n, -(-units * _UNIT // chunk["CHUNK"])
        _chunk_kernel[grid](*source, parts, V, units, **constants, **chunk)
        outputs = uniform, floats, ints, ids, listed, torch.empty_like(ids)
        _merge_kernel[(n,)](
            *source, parts, *outputs, n, V, threshold, k, units, **constants, **merge
        )
    (lse, entropy, tail), (argmax, draw, count) = floats, ints
    return VocabPass(lse, entropy, argmax, draw, count, tail, ids, listed)


_Source = tuple[Tensor, int, Tensor | None, int, Tensor | None, Tensor | None]


def source_of(logits: Tensor, masks: RowMasks | None, rows: Tensor | None) -> _Source:
    """Return the first arguments of kernels that read logits under masks."""
    bitmask, stride, chosen = None, 0, None
    if masks:
        bitmask, stride, chosen = masks.bitmask, masks.bitmask.stride(0), masks.rows
    return logits, logits.stride(0), bitmask, stride, rows, chosen


def _check(given: _Given) -> None:
    logits, inverse_temperature, uniform, masks, rows, softcap, threshold, k = given
    n = check_source(logits, inverse_temperature, masks, rows, softcap)
    check_numbers("uniform", uniform, (n,), torch.float32, logits.device)
    if not 0 < threshold <= 1:
        raise ValueError(f"a threshold is a probability above 0, got {threshold}")
    if k < 0:
        raise ValueError(f"k is a number of candidates, got {k}")


@triton.jit
def allowed_logits(
    logits_ptr, logits_stride, bitmask_ptr, bitmask_stride, rows_ptr, masks_ptr, vocab, row, group,
):  # fmt: skip
    """Load groups of eight tokens in fp32: -inf for tokens that are forbidden or beyond the
    vocabulary.

    Returns logits and tokens, in the shape of `group` with a last axis of 8. A thread reads a group
    at once, and its mask is a byte. `rows_ptr`, or both bitmask and `masks_ptr`, may be None.
    """
    at = tl.arange(0, 8)
    token = tl.expand_dims(group, -1) * 8 + at
    source = row
    if rows_ptr is not None:
        source = tl.load(rows_ptr + row)  # times the stride it overflows int32: 8k rows of 256k
    start = logits_ptr + source * logits_stride
    logit = tl.load(start + token, mask=token < vocab, other=float("-inf")).to(tl.float32)
    if masks_ptr is not None:
        mask = tl.load(masks_ptr + row)
        start = bitmask_ptr.to(tl.pointer_type(tl.uint8), bitcast=True)
        start += tl.maximum(mask, 0) * bitmask_stride * 4
        byte = tl.load(start + group, mask=(group * 8 < vocab) & (mask >= 0), other=255)
        bit = tl.expand_dims(byte.to(tl.int32), -1) & (1 << at)
        logit = tl.where(bit != 0, logit, float("-inf"))
    return logit, token


@triton.jit
def heated_logits(logit, inverse_temperature, CAP: tl.constexpr):
    """Apply softcap and temperature to logits; -inf stays -inf, which CAP alone would not keep."""
    x = logit
    if CAP > 0:
        x = tl.where(logit == float("-inf"), logit, CAP * (2 * tl.sigmoid(logit * (2 / CAP)) - 1))
    return x * inverse_temperature


@triton.jit
def _shares(logit, CAP: tl.constexpr):
    """Compute r = 1 / (1 + e^(2 y)) of y = logit / CAP, in which tanh y is 1 - 2 r. Four of a group
    share one division, since the GPU's units for division and powers are the bottleneck. The power
    is limited to 2^30, so that four have a finite product."""
    power = tl.exp2(logit * (2 * _LOG2E / CAP))
    base = 1 + tl.minimum(power, 1073741824.0, propagate_nan=tl.PropagateNan.ALL)
    a, b = tl.split(tl.reshape(base, base.shape[:-1] + [4, 2]))  # noqa: RUF005
    pair = a * b
    c, d = tl.split(tl.reshape(pair, pair.shape[:-1] + [2, 2]))  # noqa: RUF005
    four = 1 / (c * d)
    two = tl.reshape(tl.join(four * d, four * c), pair.shape)
    return tl.reshape(tl.join(two * b, two * a), base.shape)


@triton.jit(do_not_specialize=["bitmask_stride"])  # its value changes: compile once
def _chunk_kernel(
    logits_ptr,  # [N, vocab] any float
    logits_stride,  # elements from row to row
    bitmask_ptr,  # [masks, words] int32, or None
    bitmask_stride,
    rows_ptr,  # [n] int64: row of the logits; None: the same
    masks_ptr,  # [n] int64: row of the bitmask, or -1; None with the bitmask
    inverse_ptr,  # [n] fp32: 1 / temperature
    parts_ptr,  # [3, n, units] fp32: top logit, sum of e = exp(x - x_top), sum of e * (x - x_top)
    vocab,
    units,
    CAP: tl.constexpr,
    UNIT: tl.constexpr,  # a multiple of 256, so that a warp reads whole units
    CHUNK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    unit = tl.program_id(1) * (CHUNK // UNIT) + tl.arange(0, CHUNK // UNIT)
    group = (tl.arange(0, UNIT // 256) * 32)[:, None, None] + tl.arange(0, 32)[None, None, :]
    group += (unit * (UNIT // 8))[None, :, None]
    inverse = tl.load(inverse_ptr + row)  # loaded long before its use
    logit, _ = allowed_logits(  # pyright: ignore[reportGeneralTypeIssues]  # it is no call
        logits_ptr, logits_stride, bitmask_ptr, bitmask_stride, rows_ptr, masks_ptr, vocab, row,
        group,
    )  # fmt: skip
    top = tl.max(tl.max(tl.max(logit, 3), 0), 1)
    some = tl.where(top == float("-inf"), 0.0, top)
    if CAP > 0:  # exponents to base 2
        heat = inverse * (2 * CAP * _LOG2E)
        power = tl.exp2(some * (2 * _LOG2E / CAP))
        lowest = heat / (1 + tl.minimum(power, 1073741824.0))
        x = lowest[None, :, None, None] - _shares(logit, CAP) * heat
        e = tl.where(logit == float("-inf"), 0.0, tl.exp2(x))
    else:
        heat = inverse * _LOG2E
        x = logit * heat - (some * heat)[None, :, None, None]
        e = tl.exp2(x)
        x = tl.maximum(x, -1e4)  # 0 * -inf would be NaN
    sums = tl.sum(tl.sum(tl.sum(e, 3), 0), 1)
    sums_x = tl.sum(tl.sum(tl.sum(e * x, 3), 0), 1) * (1 / _LOG2E)
    of = (tl.arange(0, 2)[:, None] + 2 * tl.arange(0, 2)[None, :])[None, :, :]
    values = tl.join(tl.join(top, sums), tl.join(sums_x, sums_x))  # one store is faster than three
    at = row * units + unit[:, None, None] + of * (tl.num_programs(0).to(tl.int64) * units)
    tl.store(parts_ptr + at, values, mask=(unit < units)[:, None, None] & (of < 3))


@triton.jit
def _first_beyond(aim, e, token, vocab):
    """Find the first token up to which there is more mass than `aim`, in groups with any mass."""
    by_group = tl.sum(e, 1)
    so_far = (tl.cumsum(by_group, 0) - by_group)[:, None] + tl.cumsum(e, 1)
    passed = (so_far > aim) & (e > 0)  # sums in another order may exceed it a token early
    first = tl.min(tl.min(tl.where(passed, token, vocab), 1), 0)
    last = tl.max(tl.max(tl.where(e > 0, token, -1), 1), 0)
    return tl.where(first < vocab, first, last)


@triton.jit
def _listed(
    logits_ptr, logits_stride, bitmask_ptr, bitmask_stride, rows_ptr, masks_ptr, vocab, row,
    units_ptr, to_read, inverse, shift, total, threshold, ids_ptr, listed_ptr, k,
    CAP: tl.constexpr, UNIT: tl.constexpr, FIT: tl.constexpr,
):  # fmt: skip
    """List the tokens above the threshold in `to_read` units, until there are more than k. Returns
    their number, and the probability of the others."""
    start = logits_ptr
    if rows_ptr is not None:
        start += tl.load(rows_ptr + row) * logits_stride
    else:
        start += row * logits_stride
    here = tl.arange(0, FIT * UNIT // 8)
    count = 0
    tail = 0.0
    begin = 0
    while (begin < to_read) & (count <= k):
        nth = begin + here // (UNIT // 8)
        unit = tl.load(units_ptr + nth, mask=nth < to_read, other=vocab // UNIT + 1)
        group = unit * (UNIT // 8) + here % (UNIT // 8)
        logit, _ = allowed_logits(  # pyright: ignore[reportGeneralTypeIssues]
            logits_ptr, logits_stride, bitmask_ptr, bitmask_stride, rows_ptr, masks_ptr, vocab, row,
            group,
        )  # fmt: skip
        p = tl.exp(heated_logits(logit, inverse, CAP) - shift) / total
        above = (p >= threshold) & (logit > float("-inf"))
        tail += tl.sum(tl.sum(tl.where(above, 0.0, p), 1), 0)
        bits = tl.sum(above.to(tl.int32) << tl.arange(0, 8), 1)
        counts = tl.sum(above.to(tl.int32), 1)
        place = count + tl.cumsum(counts, 0) - counts
        for i in tl.static_range(8):  # few are above: loading them again is faster than moving all
            one = (bits >> i & 1) != 0
            fits = one & (place < k)
            token = group * 8 + i
            value = tl.load(start + token, mask=fits, other=0.0).to(tl.float32)
            tl.store(ids_ptr + place, token, mask=fits)
            tl.store(listed_ptr + place, value, mask=fits)
            place += one.to(tl.int32)
        count += tl.sum(counts, 0)
        begin += FIT
    return count, tail


@triton.jit(do_not_specialize=["bitmask_stride", "n"])
def _merge_kernel(
    logits_ptr,
    logits_stride,
    bitmask_ptr,
    bitmask_stride,
    rows_ptr,
    masks_ptr,
    inverse_ptr,
    parts_ptr,
    uniform_ptr,  # [n] fp32
    floats_ptr,  # [3, n] fp32: lse, entropy, tail
    ints_ptr,  # [3, n] int64: argmax, draw, count
    ids_ptr,  # [n, k] int32
    listed_ptr,  # [n, k] fp32
    to_read_ptr,  # [n, k] int32, scratch: units with tokens to list
    n,
    vocab,
    threshold,
    k,
    units,
    CAP: tl.constexpr,
    UNIT: tl.constexpr,
    UNITS: tl.constexpr,
    FIT: tl.constexpr,  # units read at once
):
    row = tl.program_id(0).to(tl.int64)
    part = tl.num_programs(0).to(tl.int64) * units
    index = tl.arange(0, UNITS)
    at, real = row * units + index, index < units
    tops = tl.load(parts_ptr + at, mask=real, other=float("-inf"))
    sums = tl.load(parts_ptr + part + at, mask=real, other=0.0)
    sums_x = tl.load(parts_ptr + 2 * part + at, mask=real, other=0.0)
    inverse, uniform = tl.load(inverse_ptr + row), tl.load(uniform_ptr + row)
    top = tl.max(tops, 0)
    nothing = top == float("-inf")
    shift = heated_logits(tl.where(nothing, 0.0, top), inverse, CAP)
    below = tl.where(tops == float("-inf"), -1e4, heated_logits(tops, inverse, CAP) - shift)
    scale = tl.exp(below)
    mass = sums * scale
    total = tl.where(nothing, 1.0, tl.sum(mass, 0))
    total_x = tl.sum(scale * sums_x + mass * below, 0)
    tl.store(floats_ptr + row, tl.where(nothing, float("-inf"), shift + tl.log(total)))
    tl.store(floats_ptr + n + row, tl.log(total) - total_x / total)

    highest = tl.min(tl.where(tops == top, index, UNITS - 1), 0)
    aim = uniform * total
    some = mass > 1e-30  # less might vanish when its tokens are separated
    passed = (tl.cumsum(mass, 0) > aim) & some
    first = tl.min(tl.where(passed, index, UNITS), 0)
    last = tl.max(tl.where(some, index, 0), 0)
    drawn = tl.where(first < UNITS, first, last)  # rounding may leave less mass than the aim
    aim -= tl.sum(tl.where(index < drawn, mass, 0.0), 0)
    inside = tl.arange(0, UNIT // 8)
    best_logit, best_token = allowed_logits(  # pyright: ignore[reportGeneralTypeIssues]
        logits_ptr, logits_stride, bitmask_ptr, bitmask_stride, rows_ptr, masks_ptr, vocab, row,
        highest * (UNIT // 8) + inside,
    )  # fmt: skip
    logit, token = allowed_logits(  # pyright: ignore[reportGeneralTypeIssues]
        logits_ptr, logits_stride, bitmask_ptr, bitmask_stride, rows_ptr, masks_ptr, vocab, row,
        drawn * (UNIT // 8) + inside,
    )  # fmt: skip
    argmax = tl.min(tl.min(tl.where(best_logit == top, best_token, vocab - 1), 1), 0)
    tl.store(ints_ptr + row, tl.where(nothing, -1, argmax))
    e = tl.exp(heated_logits(logit, inverse, CAP) - shift)
    tl.store(ints_ptr + n + row, _first_beyond(aim, e, token, vocab))

    hot = (scale / total >= threshold) & (tops > float("-inf"))
    cold = tl.sum(tl.where(hot, 0.0, mass), 0) / total
    so_far = tl.cumsum(hot.to(tl.int32), 0)
    to_read = tl.sum(hot.to(tl.int32), 0)
    many = to_read > k  # each of them has at least one
    to_read = tl.where(many, 0, to_read)
    tl.store(to_read_ptr + row * k + so_far - 1, index, mask=hot & (so_far <= to_read))
    tl.debug_barrier()  # other threads of the block read the stored values
    count, tail = _listed(
        logits_ptr, logits_stride, bitmask_ptr, bitmask_stride, rows_ptr, masks_ptr, vocab, row,
        to_read_ptr + row * k, to_read, inverse, shift, total, threshold, ids_ptr + row * k,
        listed_ptr + row * k, k, CAP, UNIT, FIT,
    )  # fmt: skip
    slot = tl.arange(0, 128)
    for start in range(0, k, 128):
        unused = (start + slot >= count) & (start + slot < k)
        tl.store(ids_ptr + row * k + start + slot, -1, mask=unused)
        tl.store(listed_ptr + row * k + start + slot, 0.0, mask=unused)
    count = tl.where(many, k + 1, tl.minimum(count, k + 1))
    tl.store(floats_ptr + 2 * n + row, tl.where(count > k, 1.0, cold + tail))
    tl.store(ints_ptr + 2 * n + row, count)
