"""The vocabulary pass: all that a sampler asks of a step's logits, for one read of them.

Per row: log-sum-exp, entropy, argmax, one draw, and the tokens above a probability, with the mass
of all others. The logits are capped, heated and masked on the way, and no second `[n, V]` tensor
is written. The vocabulary is read in chunks, of which a maximum and two sums are kept. Most rows
give most chunks next to nothing: only chunks that hold something to report are read again.

Nothing is known here of grammars, canvases or random generators: masks, temperatures and one
number per row to draw by are arguments. The kernels are tested in Triton's interpreter and
compiled for GPUs; no GPU has run them yet.

Shapes: `N` rows of `V` logits, of which `n` are looked at; `M` masks of `W` words, W * 32 >= V;
`K` candidates at most.
"""

from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Float32, Int64
from torch import Tensor

from dlm.kernels.vocab_cpu import mask_words, pass_rows
from dlm.kernels.vocab_rows import Masks, VocabPass, check_numbers, check_source

_CHUNK = 1 << 12  # tokens; 262,144 are 64 chunks, which one block merges
_CPU_BLOCK = 1 << 18  # logits at a time: two fp32 buffers of 1 MiB
_GPU_BLOCK = 1 << 24  # without a kernel: of 64 MiB


def vocab_pass_reference(
    logits: Float[Tensor, "N V"],
    inverse_temperature: Float32[Tensor, " n"],
    uniform: Float32[Tensor, " n"],
    masks: Masks | None = None,
    rows: Int64[Tensor, " n"] | None = None,
    *,
    softcap: float | None = None,
    threshold: float = 1e-4,
    k: int = 256,
) -> VocabPass:
    """What `vocab_pass` means: in fp64, with as many copies as it takes."""
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
    masks: Masks | None = None,
    rows: Int64[Tensor, " n"] | None = None,
    *,
    softcap: float | None = None,
    threshold: float = 1e-4,
    k: int = 256,
    by_kernel: bool | None = None,
) -> VocabPass:
    """`vocab_pass_reference` in fp32: two kernel launches, or plain torch for tensors on the CPU.

    A logit l counts as x = softcap * tanh(l / softcap) * inverse_temperature, or without a softcap
    as l * inverse_temperature. Both keep the order, so the argmax is that of the logits, even where
    two of them round to one x. A token is allowed if its logit is not -inf and `masks` allows it.
    `inverse_temperature` is above 0 and finite. With `rows`, those rows of `logits` are looked at,
    and everything else has a number for each of them.

    `uniform`, in [0, 1), is all the randomness: the same numbers give the same draws. CPU, kernel
    and reference round their sums differently, so where the mass up to a token equals `uniform` to
    some 1e-6, they may draw neighbours. A forbidden token is never drawn.

    A logit of NaN or +inf that is allowed makes lse, entropy and tail of its row NaN, and the rest
    arbitrary. Raises `ValueError` for shapes, dtypes, devices and masks that do not fit; what is in
    tensors on a GPU is not checked, which would take a wait for it.

    `by_kernel` overrules the device: a kernel runs on the CPU if it is interpreted, for which
    `TRITON_INTERPRET=1` is in the environment before this file is imported.
    """
    given = _Given(logits, inverse_temperature, uniform, masks, rows, softcap, threshold, k)
    _check(given)
    if logits.device.type != "cpu" if by_kernel is None else by_kernel:
        return _launch(given)
    with logits.device if logits.device.type != "cpu" else nullcontext():  # it has a price
        return _in_blocks(given)


class _Given(NamedTuple):
    """The arguments of `vocab_pass`."""

    logits: Tensor
    inverse_temperature: Tensor
    uniform: Tensor
    masks: Masks | None
    rows: Tensor | None
    softcap: float | None
    threshold: float
    k: int


def _in_blocks(given: _Given) -> VocabPass:
    """In plain torch, a few rows at a time."""
    logits, inverse_temperature, uniform, masks, rows, softcap, threshold, k = given
    n, V = len(inverse_temperature), logits.shape[1]
    size = _CPU_BLOCK if logits.device.type == "cpu" else _GPU_BLOCK
    size = max(1, size // max(1, V))
    parts = []
    for begin in range(0, max(1, n), size):
        some = slice(begin, begin + size)
        block = logits[some] if rows is None else logits[rows[some]]
        words = masks and mask_words(masks.bitmask, masks.rows[some])
        parts.append(
            pass_rows(block, inverse_temperature[some], uniform[some], words, softcap, threshold, k)
        )
    return VocabPass(*(torch.cat(column) for column in zip(*parts, strict=True)))


def _launch(given: _Given) -> VocabPass:
    logits, inverse_temperature, uniform, masks, rows, softcap, threshold, k = given
    (N, V), n, device = logits.shape, len(inverse_temperature), logits.device
    chunks = max(1, -(-V // _CHUNK))
    rows = torch.arange(N, device=device) if rows is None else rows
    any_token = torch.full((n,), -1, device=device)
    bitmask, chosen = masks or (any_token[:, None].int(), any_token)
    source = (logits, logits.stride(0), bitmask, bitmask.stride(0), rows, chosen)
    source = (*source, inverse_temperature)
    parts = torch.empty(3, n, chunks, device=device)
    best = torch.empty(n, chunks, dtype=torch.int32, device=device)
    floats = torch.empty(3, n, device=device)
    ints = torch.empty(3, n, dtype=torch.int64, device=device)
    ids = torch.full((n, k), -1, dtype=torch.int32, device=device)
    listed = torch.zeros(n, k, device=device)
    constants: dict[str, Any] = {"CAP": softcap or 0.0, "CHUNK": _CHUNK, "num_warps": 8}
    with torch.cuda.device_of(logits):
        _chunk_kernel[n, chunks](*source, parts, best, V, **constants)
        constants["CHUNKS"] = triton.next_power_of_2(chunks)
        outputs = uniform, floats, ints, ids, listed
        _merge_kernel[(n,)](*source, parts, best, *outputs, n, V, threshold, k, chunks, **constants)
    (lse, entropy, tail), (argmax, draw, count) = floats, ints
    return VocabPass(lse, entropy, argmax, draw, count, tail, ids, listed)


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
    logits_ptr, logits_stride, bitmask_ptr, bitmask_stride, rows_ptr, masks_ptr, vocab, row, chunk,
    CHUNK: tl.constexpr,
):  # fmt: skip
    """Of one chunk, in fp32: -inf where a token is forbidden, or past the vocabulary."""
    source = tl.load(rows_ptr + row)  # times the stride it overflows int32: 8k rows of 256k tokens
    mask = tl.load(masks_ptr + row)
    word = chunk * (CHUNK // 32) + tl.arange(0, CHUNK // 32)
    start = bitmask_ptr + tl.maximum(mask, 0) * bitmask_stride
    bits = tl.load(start + word, mask=(word * 32 < vocab) & (mask >= 0), other=-1)
    allowed = tl.reshape((bits[:, None] >> tl.arange(0, 32)[None, :]) & 1, [CHUNK]) != 0
    token = chunk * CHUNK + tl.arange(0, CHUNK)
    logit = tl.load(logits_ptr + source * logits_stride + token, mask=token < vocab, other=0.0)
    return tl.where(allowed & (token < vocab), logit.to(tl.float32), float("-inf")), token


@triton.jit
def heated_logits(logit, inverse_temperature, CAP: tl.constexpr):
    """-inf stays -inf, for which CAP has another answer."""
    x = logit
    if CAP > 0:
        x = tl.where(logit == float("-inf"), logit, CAP * (2 * tl.sigmoid(logit * (2 / CAP)) - 1))
    return x * inverse_temperature


@triton.jit(do_not_specialize=["bitmask_stride"])  # it changes: one program for all
def _chunk_kernel(
    logits_ptr,  # [N, vocab] any float
    logits_stride,  # elements from row to row
    bitmask_ptr,  # [masks, words] int32
    bitmask_stride,
    rows_ptr,  # [n] int64: which row of the logits
    masks_ptr,  # [n] int64: which row of the bitmask, or -1
    inverse_ptr,  # [n] fp32: 1 / temperature
    parts_ptr,  # [3, n, chunks] fp32: top logit, sum of e = exp(x - x_top), sum of e * (x - x_top)
    best_ptr,  # [n, chunks] int32: the first token with the top logit
    vocab,
    CAP: tl.constexpr,
    CHUNK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    chunk, chunks = tl.program_id(1), tl.num_programs(1)
    logit, token = allowed_logits(  # pyright: ignore[reportGeneralTypeIssues]  # it is no call
        logits_ptr, logits_stride, bitmask_ptr, bitmask_stride, rows_ptr, masks_ptr, vocab, row,
        chunk, CHUNK,
    )  # fmt: skip
    inverse = tl.load(inverse_ptr + row)
    top = tl.max(logit, 0)
    some = tl.where(top == float("-inf"), 0.0, top)
    x = heated_logits(logit, inverse, CAP) - heated_logits(some, inverse, CAP)
    e = tl.exp(x)
    at = row * chunks + chunk
    part = tl.num_programs(0).to(tl.int64) * chunks
    tl.store(parts_ptr + at, top)
    tl.store(parts_ptr + part + at, tl.sum(e, 0))
    tl.store(parts_ptr + 2 * part + at, tl.sum(e * tl.where(e > 0, x, 0.0), 0))
    tl.store(best_ptr + at, tl.min(tl.where(logit == top, token, vocab), 0))


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
    best_ptr,
    uniform_ptr,  # [n] fp32
    floats_ptr,  # [3, n] fp32: lse, entropy, tail
    ints_ptr,  # [3, n] int64: argmax, draw, count
    ids_ptr,  # [n, k] int32, all -1
    listed_ptr,  # [n, k] fp32, all 0
    n,
    vocab,
    threshold,
    k,
    chunks,
    CAP: tl.constexpr,
    CHUNKS: tl.constexpr,
    CHUNK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    part = tl.num_programs(0).to(tl.int64) * chunks
    index = tl.arange(0, CHUNKS)
    at, real = row * chunks + index, index < chunks
    tops = tl.load(parts_ptr + at, mask=real, other=float("-inf"))
    top = tl.max(tops, 0)
    nothing = top == float("-inf")
    inverse = tl.load(inverse_ptr + row)
    shift = heated_logits(tl.where(nothing, 0.0, top), inverse, CAP)
    below = tl.where(tops == float("-inf"), -1e4, heated_logits(tops, inverse, CAP) - shift)
    sums = tl.load(parts_ptr + part + at, mask=real, other=0.0)
    sums_x = tl.load(parts_ptr + 2 * part + at, mask=real, other=0.0)
    best = tl.load(best_ptr + at, mask=real, other=vocab)
    scale = tl.where(tops == float("-inf"), 0.0, tl.exp(below))
    sums = tl.where(tops == float("-inf"), 0.0, sums)
    mass = sums * scale
    total = tl.where(nothing, 1.0, tl.sum(mass, 0))
    total_x = tl.sum(scale * sums_x + mass * below, 0)
    tl.store(floats_ptr + row, tl.where(nothing, float("-inf"), shift + tl.log(total)))
    tl.store(floats_ptr + n + row, tl.log(total) - total_x / total)
    argmax = tl.min(tl.where(tops == top, best, vocab), 0)
    tl.store(ints_ptr + row, tl.where(nothing, -1, argmax))

    aim = tl.load(uniform_ptr + row) * total
    passed = (tl.cumsum(mass, 0) > aim) & (mass > 0)
    first = tl.min(tl.where(passed, index, CHUNKS), 0)
    last = tl.max(tl.where(mass > 0, index, 0), 0)
    chunk = tl.where(first < CHUNKS, first, last)  # rounding may leave less mass than the aim
    aim -= tl.sum(tl.where(index < chunk, mass, 0.0), 0)
    logit, token = allowed_logits(
        logits_ptr, logits_stride, bitmask_ptr, bitmask_stride, rows_ptr, masks_ptr, vocab, row,
        chunk, CHUNK,
    )  # fmt: skip
    e = tl.exp(heated_logits(logit, inverse, CAP) - shift)
    passed = (tl.cumsum(e, 0) > aim) & (e > 0)  # a sum of other terms may exceed it a token early
    first = tl.min(tl.where(passed, token, vocab), 0)
    last = tl.max(tl.where(e > 0, token, -1), 0)
    tl.store(ints_ptr + n + row, tl.where(first < vocab, first, last))

    count = 0
    tail = 0.0
    for chunk in range(chunks):
        top = tl.load(parts_ptr + row * chunks + chunk)
        if (count <= k) & (top > float("-inf")):
            highest = tl.exp(heated_logits(top, inverse, CAP) - shift)
            if highest / total >= threshold:
                logit, token = allowed_logits(
                    logits_ptr, logits_stride, bitmask_ptr, bitmask_stride, rows_ptr, masks_ptr,
                    vocab, row, chunk, CHUNK,
                )  # fmt: skip
                p = tl.exp(heated_logits(logit, inverse, CAP) - shift) / total
                above = p >= threshold
                place = count + tl.cumsum(above.to(tl.int32), 0) - 1
                listed = above & (place < k)
                tl.store(ids_ptr + row * k + place, token, mask=listed)
                tl.store(listed_ptr + row * k + place, logit, mask=listed)
                tail += tl.sum(tl.where(above, 0.0, p), 0)
                count += tl.sum(above.to(tl.int32), 0)
            else:
                tail += tl.load(parts_ptr + part + row * chunks + chunk) * highest / total
    tl.store(floats_ptr + 2 * n + row, tl.where(count > k, 1.0, tail))
    tl.store(ints_ptr + 2 * n + row, tl.minimum(count, k + 1))
