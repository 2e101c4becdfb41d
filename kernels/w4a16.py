"""Products of bf16 or fp16 activations with matrices in NVFP4 (W4A16), on GPUs from SM 8.0 on.

Weights are decoded in registers, exactly: their 4 + 2 significant bits fit both types. The kernel
takes a matrix in tiles (`tiles.py`) and activations whose columns are `ordered` alike. Ordering
them is a launch of its own: when the kernel gathered them, it took 6 to 8 instructions per weight,
not 4 to 5, since at most pairs of columns are adjacent in both orders.

Shapes: weights `[M, K]`, activations `[N, K]`, K a multiple of 64. Tiles have a multiple of 64
rows, of which the first M count.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from dlm.kernels.configurations import W4A16, layout, major, scales
from dlm.kernels.nvfp4 import NVFP4, check, check_activations, matmul_reference
from dlm.kernels.tiles import (
    Tiles,
    activations,
    added,
    ordered,
    untiled,
    weights,
    zeros,
)
from dlm.kernels.tuned import BY_RULE, Tuned


def matmul_w4a16(
    x: Float[Tensor, "N K"],
    w: NVFP4 | Tiles,
    by_kernel: bool | None = None,
    rows: int | None = None,
    tuned: Tuned = BY_RULE,
) -> Float[Tensor, "N M"]:
    """Compute `matmul_reference`, summed in fp32 in another order; by the kernel on GPUs.

    `x` is bf16 or fp16; its rows may have gaps between them. The kernel takes the tiles that
    `tiled_matrix` makes of `w`; `rows` are then the rows of `w`, by default all of the tiles.
    `by_kernel` is as in `quantize`. Raises `ValueError` for arguments that do not fit.
    """
    if isinstance(w, Tiles):
        M = _check_tiles(x, w, rows)
    else:
        check(x, w)
        M = len(w.packed)
        if rows not in (None, M):
            raise ValueError(f"rows is {rows}, and the weights have {M}")
    if not (x.device.type != "cpu" if by_kernel is None else by_kernel):
        return matmul_reference(x, _matrix(w, M) if isinstance(w, Tiles) else w)
    if not isinstance(w, Tiles):
        raise ValueError("the kernel takes NVFP4 in tiles: `tiled_matrix` makes them, once")
    sm, (N, K) = major(x.device), x.shape
    y = torch.empty(N, M, dtype=x.dtype, device=x.device)
    tile: dict[str, Any] = {**tuned.choose(W4A16, x.device, rows=N, outputs=M, inputs=K)}
    grid = triton.cdiv(M, tile["BLOCK_M"]), triton.cdiv(N, tile["BLOCK_N"])
    pointers = ordered(x), w.words, scales(w.scale, sm), w.scale_2, y
    with torch.cuda.device_of(x):
        _w4a16_kernel[grid](*pointers, N, M, K // 64, **layout(sm), **tile)
    return y


def _matrix(w: Tiles, M: int) -> NVFP4:
    packed, scale, scale_2 = untiled(w)
    return NVFP4(packed[0, :M], scale[0, :M], scale_2[0, 0])


def _check_tiles(x: Tensor, w: Tiles, rows: int | None) -> int:
    """Return the number of rows of weights."""
    check_activations(x)
    K, R = x.shape[1], w.words.shape[1] if w.words.ndim == 5 else 0
    kinds = [([*each.shape], each.dtype) for each in w]
    shapes = [1, R, K // 64, 64, 16], [1, R, K // 64, 64, 4], [1, 1]
    types = torch.int16, torch.uint8, torch.float32
    if kinds != [*zip(shapes, types, strict=True)] or not all(each.is_contiguous() for each in w):
        raise ValueError(
            f"weights in tiles for rows of {K} are contiguous, [1, R, {K // 64}, 64, 16] of int16, "
            f"[1, R, {K // 64}, 64, 4] of uint8 and [1, 1] of float32, got {kinds}"
        )
    for tensor in w:
        if tensor.device != x.device:
            raise ValueError(f"x is on {x.device} but its weights are on {tensor.device}")
    M = 64 * R if rows is None else rows
    if not 64 * R - 64 < M <= 64 * R and M != R:  # none in no tiles
        raise ValueError(f"rows is {M}, and the tiles are of {64 * R}")
    return M


@triton.jit
def _w4a16_kernel(
    x_ptr,  # [N, 64 * groups] bf16 or fp16, `ordered`
    w_ptr,  # words of tiles of 64 * groups columns
    scale_ptr,  # those of tiles, as `scales` has them
    scale_2_ptr,  # one fp32
    y_ptr,  # [N, M] as x
    N,
    M,
    groups,
    SPLIT: tl.constexpr,
    WEIGHTS_FIRST: tl.constexpr,
    ASSEMBLY: tl.constexpr,
    UNROLL: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_M: tl.constexpr,
):
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    row = tl.minimum(m, M - 1).to(tl.int64)  # after the end, the last one, without masks
    first = weights(w_ptr, scale_ptr, row, groups, True, WEIGHTS_FIRST)
    w_at, scale_at = first  # pyright: ignore[reportGeneralTypeIssues]  # it is no call
    column = tl.arange(0, 16 if SPLIT else 64)
    x_at = x_ptr + (tl.minimum(n, N - 1).to(tl.int64) * (groups * 64))[None, :] + column[:, None]
    acc = zeros(BLOCK_M, BLOCK_N, WEIGHTS_FIRST)
    for _ in tl.range(groups, loop_unroll_factor=UNROLL):
        x = activations(x_at, SPLIT)
        acc = added(acc, w_at, scale_at, x, True, SPLIT, WEIGHTS_FIRST, ASSEMBLY, BLOCK_M)
        x_at += 64
        w_at += 1024
        scale_at += 256 if WEIGHTS_FIRST else 64
    acc *= tl.load(scale_2_ptr) * 512  # 1 / UNIT
    if not WEIGHTS_FIRST:
        acc = tl.trans(acc)
    at = y_ptr + n.to(tl.int64)[None, :] * M + m[:, None]
    tl.store(at, acc.to(y_ptr.dtype.element_ty), (n < N)[None, :] & (m < M)[:, None])
