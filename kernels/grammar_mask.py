"""Forbid tokens: write -inf to every logit that the mask of its row forbids.

Masks are xgrammar's, one row of packed bits each: one bit per token, 32 to an int32 word, lowest
bit first. Token v is allowed iff bit v % 32 of word v // 32 is set; a word of -1 allows all of its
32 tokens, and bits past the vocabulary mean nothing. Each row of logits names its mask, so that
rows may share one; where a single token is allowed, it is named itself. Which tokens a grammar
allows is not known here.

Shapes: `n` rows of `V` logits, `M` masks of `W` words, W * 32 >= V. Logits and masks may have
strided rows (a slice of something wider); within a row, their elements are adjacent.
"""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int32
from torch import Tensor

_CPU_BLOCK = 1 << 15  # tokens; above it torch starts threads, which cost more than they save here
_CUDA_BLOCK = 1 << 12  # tokens; 128 words, one per thread


def mask_logits_reference(
    logits: Float[Tensor, "n V"], bitmask: Int32[Tensor, "M W"], rows: Sequence[int]
) -> Float[Tensor, "n V"]:
    """What `mask_logits_` means. Slow, out of place, and the only definition."""
    token = torch.arange(logits.shape[1], device=logits.device)
    allowed = torch.empty_like(logits, dtype=torch.bool)
    for i, row in enumerate(rows):
        allowed[i] = token == ~row if row < 0 else bitmask[row, token // 32] >> token % 32 & 1
    return logits.masked_fill(~allowed, float("-inf"))


def mask_logits_(
    logits: Float[Tensor, "n V"], bitmask: Int32[Tensor, "M W"], rows: Sequence[int]
) -> Float[Tensor, "n V"]:
    """`mask_logits_reference` in place; returns `logits`.

    `rows[i]` is the row of `bitmask` that masks row i of `logits`, or ~token if it allows that
    token alone. On CUDA one kernel launch, for which a `bitmask` on the host sends the masks that
    are in use; plain torch on the CPU. Raises `ValueError` if `bitmask` is not int32, is too
    narrow, or has gaps within a row, and for `rows` that do not fit.
    """
    if logits.device.type != "cpu":
        return mask_logits_triton_(logits, *_sent(bitmask, rows, logits.device))
    _check(logits, bitmask, rows)
    vocab = logits.shape[1]
    bit = 1 << torch.arange(32, dtype=torch.int32)
    size = max(1, _CPU_BLOCK // max(1, vocab))
    for begin in range(0, len(rows), size):
        block, named = logits[begin : begin + size], torch.tensor(rows[begin : begin + size])
        masked, token = named >= 0, ~named[named < 0]
        words = bitmask.new_zeros(len(named), bitmask.shape[1])
        words[masked] = bitmask[named[masked]]
        words[~masked, token // 32] = bit[token % 32]
        if (words != -1).any():
            forbidden = (words[..., None] & bit == 0).flatten(1)[:, :vocab]
            block.masked_fill_(forbidden, float("-inf"))
    return logits


def mask_logits_triton_(
    logits: Float[Tensor, "n V"], bitmask: Int32[Tensor, "M W"], rows: Sequence[int]
) -> Float[Tensor, "n V"]:
    """`mask_logits_` by the kernel, wherever the tensors are: on a CPU only interpreted.

    The interpreter needs `TRITON_INTERPRET=1` in the environment before this file is imported.
    """
    _check(logits, bitmask, rows)
    count, vocab = logits.shape
    _mask_logits_kernel[count, triton.cdiv(vocab, _CUDA_BLOCK)](
        logits,
        bitmask,
        torch.tensor(rows, dtype=torch.int32, device=logits.device),
        logits.stride(0),
        bitmask.stride(0),
        vocab,
        BLOCK=_CUDA_BLOCK,  # pyright: ignore[reportArgumentType]  # jit makes it a constexpr
    )
    return logits


def _sent(
    bitmask: Tensor, rows: Sequence[int], device: torch.device
) -> tuple[Tensor, Sequence[int]]:
    """The masks in use on `device`, and `rows` by their numbers there."""
    if bitmask.device == device:
        return bitmask, rows
    used = sorted({row for row in rows if row >= 0})
    number = {row: i for i, row in enumerate(used)}
    return bitmask[used].to(device), [number.get(row, row) for row in rows]


def _check(logits: Tensor, bitmask: Tensor, rows: Sequence[int]) -> None:
    if logits.ndim != 2 or bitmask.ndim != 2 or len(logits) != len(rows):
        raise ValueError(
            "logits [n, V] need one of n rows each, and bitmask is [M, W]; "
            f"got shapes {[*logits.shape]} and {[*bitmask.shape]}, and {len(rows)} rows"
        )
    if bitmask.dtype != torch.int32:
        raise ValueError(f"a bitmask is int32, got {bitmask.dtype}")
    if bitmask.device != logits.device:
        raise ValueError(f"logits are on {logits.device} but their bitmask is on {bitmask.device}")
    vocab, words = logits.shape[1], bitmask.shape[1]
    if words * 32 < vocab:
        raise ValueError(
            f"{words} words of 32 bits are too few for {vocab} tokens: {-(-vocab // 32)} needed"
        )
    if rows and not (-vocab <= min(rows) and max(rows) < len(bitmask)):
        raise ValueError(
            f"rows are 0 to {len(bitmask) - 1}, or ~token down to {-vocab}, "
            f"got {min(rows)} to {max(rows)}"
        )
    for name, tensor in (("logits", logits), ("bitmask", bitmask)):
        if tensor.shape[1] > 1 and tensor.stride(1) != 1:
            raise ValueError(f"a row of {name} must be adjacent, got strides {tensor.stride()}")


@triton.jit
def _mask_logits_kernel(
    logits_ptr,  # [n, vocab] any float, only written
    bitmask_ptr,  # [masks, words] int32
    rows_ptr,  # [n] int32: a mask, or ~token
    logits_stride,  # elements from row to row
    bitmask_stride,
    vocab,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)  # row * vocab overflows int32 at 8k rows of 256k tokens
    mask = tl.load(rows_ptr + row).to(tl.int64)
    word = tl.program_id(1) * (BLOCK // 32) + tl.arange(0, BLOCK // 32)
    if mask < 0:
        only = -1 - mask
        bits = tl.where(word == only // 32, 1 << (only % 32).to(tl.int32), 0)
    else:
        start = bitmask_ptr + mask * bitmask_stride
        bits = tl.load(start + word, mask=word * 32 < vocab, other=-1)
    if tl.max((bits != -1).to(tl.int32)) == 1:
        bit = tl.arange(0, 32)[None, :]
        token = word[:, None] * 32 + bit
        forbidden = (bits[:, None] >> bit) & 1 == 0
        address = logits_ptr + row * logits_stride + token
        tl.store(address, float("-inf"), mask=forbidden & (token < vocab))
