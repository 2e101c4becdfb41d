"""Products of a block of weights with activations, of which kernels for matrices and experts are
made. Weights are floats, or NVFP4 in tiles (`tiles.py`) and decoded in registers.

A loop goes over groups of 64 columns: `weights` and `activations` point to the first, `added` adds
the product of one. How a product is laid out depends on the GPU (`BY_SM`).
"""

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton import knobs

from dlm.kernels.tiles import decoded_words, joined

# By the major of the SM: how a product is laid out so that what is decoded stays where it is. On
# SM 9.0 a warp group multiplies registers by shared memory, 64 columns at a time. Before it and on
# SM 12.0 a warp's instruction takes 16. So it does on SM 10.0 for weights as the second operand,
# of at most `MOST_ROWS` rows of activations: all else there passes through shared memory.
BY_SM: dict[int, dict[str, bool]] = {
    8: {"SPLIT": True, "WEIGHTS_FIRST": True},
    9: {"SPLIT": False, "WEIGHTS_FIRST": True},
    10: {"SPLIT": True, "WEIGHTS_FIRST": False},
    12: {"SPLIT": True, "WEIGHTS_FIRST": True},
}
MOST_ROWS = {10: 32}


def major(device: torch.device) -> int:
    """Return the major number of a GPU's SM; of one that the interpreter stands for, 9."""
    return torch.cuda.get_device_capability(device)[0] if device.type == "cuda" else 9


def layout(sm: int, four_bit: bool = True) -> dict[str, Any]:
    """Return the constants of a product for a major of SMs.

    Weights that are not decoded, `four_bit` false, are never split: nothing is gained by it.
    """
    chosen = BY_SM.get(sm, BY_SM[9])
    split = four_bit and chosen["SPLIT"]
    return {**chosen, "SPLIT": split, "ASSEMBLY": not knobs.runtime.interpret}


def fitting(
    tiles: Sequence[dict[str, Any]], sm: int, four_bit: bool = True
) -> Sequence[dict[str, Any]]:
    """Return the tiles of BLOCK_N rows of activations that a major of SMs takes."""
    if not four_bit or sm not in MOST_ROWS:
        return tiles
    return [tile for tile in tiles if tile["BLOCK_N"] <= MOST_ROWS[sm]]


def scales(scale: Tensor, sm: int) -> Tensor:
    """Return the scales of tiles as `weights` takes them: bytes, or words of four."""
    return scale if layout(sm)["WEIGHTS_FIRST"] else scale.view(torch.int32)


@triton.jit
def weights(w_ptr, scale_ptr, row, groups, FOUR_BIT: tl.constexpr, WEIGHTS_FIRST: tl.constexpr):
    """Return pointers to the first group of columns of some rows, and to its scales.

    A row's four scales are bytes if weights come first, else one int32: Triton lays operands out by
    the smallest type that is loaded, and the order of bytes costs a second operand moves.
    """
    if FOUR_BIT:
        at = row // 64 * (groups * 64) + row % 64  # of 16 words and four scales each
        w_at = w_ptr + (at * 16)[:, None] + tl.arange(0, 16)[None, :]
        if WEIGHTS_FIRST:
            scale_at = scale_ptr + (at * 4)[:, None] + tl.arange(0, 4)[None, :]
        else:
            scale_at = scale_ptr + at
    else:
        w_at = w_ptr + (row * (groups * 64))[:, None] + tl.arange(0, 64)[None, :]
        scale_at = scale_ptr
    return w_at, scale_at


@triton.jit
def activations(x_ptr, SPLIT: tl.constexpr):
    """Load a group of 64 columns at once, four times the same, or its quarters."""
    a = tl.load(x_ptr)
    b, c, d = a, a, a
    if SPLIT:
        b, c, d = tl.load(x_ptr + 16), tl.load(x_ptr + 32), tl.load(x_ptr + 48)
    return a, b, c, d


@triton.jit
def _dot(w, x, acc, WEIGHTS_FIRST: tl.constexpr):
    """Add `w x` to `acc`, or to the transposed `acc`."""
    return tl.dot(w, x, acc) if WEIGHTS_FIRST else tl.dot(tl.trans(x), tl.trans(w), acc)


@triton.jit
def added(
    acc, w_ptr, scale_ptr, x, FOUR_BIT: tl.constexpr, SPLIT: tl.constexpr,
    WEIGHTS_FIRST: tl.constexpr, ASSEMBLY: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    """Add to `acc` the product of a group of columns of weights with `x`, of `activations`."""
    if FOUR_BIT:
        scale = tl.load(scale_ptr)
        if not WEIGHTS_FIRST:
            scale = (scale[:, None] >> (tl.arange(0, 4) * 8)[None, :]) & 0xFF
        found = decoded_words(tl.load(w_ptr), scale, BLOCK_M, ASSEMBLY)
        a, b, c, d = found  # pyright: ignore[reportGeneralTypeIssues]  # it is no call
        dtype: tl.constexpr = x[0].dtype
        a, b, c, d = a.to(dtype), b.to(dtype), c.to(dtype), d.to(dtype)
        if SPLIT:
            acc = _dot(a, x[0], acc, WEIGHTS_FIRST)
            acc = _dot(b, x[1], acc, WEIGHTS_FIRST)
            acc = _dot(c, x[2], acc, WEIGHTS_FIRST)
            acc = _dot(d, x[3], acc, WEIGHTS_FIRST)
        else:
            acc = _dot(joined(a, b, c, d, BLOCK_M), x[0], acc, WEIGHTS_FIRST)
    else:
        acc = _dot(tl.load(w_ptr), x[0], acc, WEIGHTS_FIRST)
    return acc


@triton.jit
def zeros(BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, WEIGHTS_FIRST: tl.constexpr):
    """Return what `added` begins with."""
    if WEIGHTS_FIRST:
        acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    else:
        acc = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    return acc
