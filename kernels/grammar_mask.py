"""Forbid tokens: write -inf to every logit whose bit is clear in a packed bitmask.

The bitmask is xgrammar's: one bit per token, 32 to an int32 word, lowest bit first. Token v is
allowed iff bit v % 32 of word v // 32 is set; a word of -1 allows all of its 32 tokens, and bits
past the vocabulary mean nothing. Which tokens a grammar allows is not known here.

Shapes: `V` tokens, `W` words of a bitmask row, W * 32 >= V. Logits and bitmask may have strided
rows (a slice of something wider); within a row, their elements are adjacent.
"""

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int32
from torch import Tensor

_CPU_BLOCK = 1 << 15  # tokens; above it torch starts threads, which cost more than they save here
_CUDA_BLOCK = 1 << 12  # tokens; 128 words, one per thread


def mask_logits_reference(
    logits: Float[Tensor, "rows V"], bitmask: Int32[Tensor, "rows W"]
) -> Float[Tensor, "rows V"]:
    """What `mask_logits_` means. Slow, out of place, and the only definition."""
    bit = torch.arange(32, dtype=torch.int32, device=bitmask.device)
    allowed = (bitmask[..., None] >> bit & 1).flatten(-2).bool()  # rows, W * 32
    return logits.masked_fill(~allowed[:, : logits.shape[-1]], float("-inf"))


def mask_logits_(
    logits: Float[Tensor, "rows V"], bitmask: Int32[Tensor, "rows W"]
) -> Float[Tensor, "rows V"]:
    """`mask_logits_reference` in place; returns `logits`. Costs little where all is allowed.

    One kernel launch on CUDA, plain torch on the CPU. Raises `ValueError` if `bitmask` is not
    int32, is too narrow, differs from `logits` in rows or device, or has gaps within a row.
    """
    if logits.device.type != "cpu":
        return mask_logits_triton_(logits, bitmask)
    _check(logits, bitmask)
    vocab = logits.shape[1]
    bit = 1 << torch.arange(32, dtype=torch.int32, device=bitmask.device)
    rows = max(1, _CPU_BLOCK // max(1, vocab))
    for block, words in zip(logits.split(rows), bitmask.split(rows), strict=True):
        if (words != -1).any():
            forbidden = (words[..., None] & bit == 0).flatten(1)[:, :vocab]
            block.masked_fill_(forbidden, float("-inf"))
    return logits


def mask_logits_triton_(
    logits: Float[Tensor, "rows V"], bitmask: Int32[Tensor, "rows W"]
) -> Float[Tensor, "rows V"]:
    """`mask_logits_` by the kernel, wherever the tensors are: on a CPU only interpreted.

    The interpreter needs `TRITON_INTERPRET=1` in the environment before this file is imported.
    """
    _check(logits, bitmask)
    rows, vocab = logits.shape
    _mask_logits_kernel[rows, triton.cdiv(vocab, _CUDA_BLOCK)](
        logits,
        bitmask,
        logits.stride(0),
        bitmask.stride(0),
        vocab,
        BLOCK=_CUDA_BLOCK,  # pyright: ignore[reportArgumentType]  # jit makes it a constexpr
    )
    return logits


def _check(logits: Tensor, bitmask: Tensor) -> None:
    if logits.ndim != 2 or bitmask.ndim != 2 or len(logits) != len(bitmask):
        raise ValueError(
            "logits [rows, V] and bitmask [rows, W] must have the same number of rows, "
            f"got shapes {[*logits.shape]} and {[*bitmask.shape]}"
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
    for name, tensor in (("logits", logits), ("bitmask", bitmask)):
        if tensor.shape[1] > 1 and tensor.stride(1) != 1:
            raise ValueError(f"a row of {name} must be adjacent, got strides {tensor.stride()}")


@triton.jit
def _mask_logits_kernel(
    logits_ptr,  # [rows, vocab] any float, only written
    bitmask_ptr,  # [rows, words] int32
    logits_stride,  # elements from row to row
    bitmask_stride,
    vocab,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)  # row * vocab overflows int32 at 8k rows of 256k tokens
    word = tl.program_id(1) * (BLOCK // 32) + tl.arange(0, BLOCK // 32)
    bits = tl.load(bitmask_ptr + row * bitmask_stride + word, mask=word * 32 < vocab, other=-1)
    if tl.max((bits != -1).to(tl.int32)) == 1:
        bit = tl.arange(0, 32)[None, :]
        token = word[:, None] * 32 + bit
        forbidden = (bits[:, None] >> bit) & 1 == 0
        address = logits_ptr + row * logits_stride + token
        tl.store(address, float("-inf"), mask=forbidden & (token < vocab))
