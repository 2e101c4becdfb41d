"""NVFP4: weights of four bits, and products of them with activations of four bits (W4A4).

A number is e2m1 (0, 0.5, 1, 1.5, 2, 3, 4, 6 and a sign) times the e4m3 scale of its block of 16
along K, times the fp32 scale of its tensor: the layout of NVIDIA's ModelOpt checkpoints, with
scales in rows, not swizzled. In W4A4, activations are quantised as the weights are, and
block-scaled tensor cores multiply them, on the GPUs of `FOUR_BIT_SMS`. For activations that stay
bf16 or fp16 see `tiles.py`. This module knows no layers, experts or file formats.

Shapes: weights `[M, K]`, activations `[N, K]`, K a multiple of 16, for products of 64.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Float32, UInt8
from torch import Tensor

from dlm.kernels.configurations import W4A4, Configuration
from dlm.kernels.gpus import four_bit_obstacle, has_e4m3, runs_kernel

_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_MOST = 6.0  # largest e2m1
_MOST_SCALE, _LEAST_SCALE = 448.0, 2.0**-9  # of e4m3
LARGEST = _MOST * _MOST_SCALE  # the largest number, before the scale of the whole tensor


class NVFP4(NamedTuple):
    """Matrix [M, K] as ModelOpt stores it: `weight`, `weight_scale` and `weight_scale_2`."""

    packed: UInt8[Tensor, "M half_K"]  # columns 2j in the lower four bits of byte j, 2j + 1 above
    scale: Tensor  # [M, K / 16] float8_e4m3fn, never negative
    scale_2: Float32[Tensor, ""]


def quantize_reference(x: Float[Tensor, "M K"], scale_2: Tensor | None = None) -> NVFP4:
    """Return the nearest NVFP4 matrix, ties to even, equal to that of ModelOpt's `NVFP4QTensor` bit
    for bit. The default of `scale_2` is `tensor_scale`. A block of zeros has the scale 1."""
    x = x.float()
    if scale_2 is None:
        scale_2 = tensor_scale(x)
    blocks = x.unflatten(-1, (-1, 16))
    scale = blocks.abs().amax(-1) / (_MOST * scale_2)
    scale = scale.where(scale != 0, torch.ones_like(scale))
    scale = scale.clamp(_LEAST_SCALE, _MOST_SCALE).to(torch.float8_e4m3fn)
    blocks = blocks / (scale.float() * scale_2)[..., None]
    size, code = blocks.abs(), (blocks < 0).to(torch.uint8) << 3
    for middle, up in ((0.25, 0), (0.75, 1), (1.25, 0), (1.75, 1), (2.5, 0), (3.5, 1), (5.0, 0)):
        code += size >= middle if up else size > middle  # ties go to the even one
    code = code.flatten(-2)
    return NVFP4(code[..., 1::2] << 4 | code[..., ::2], scale, scale_2)


def tensor_scale(x: Float[Tensor, "*shape"]) -> Float32[Tensor, ""]:
    """Return the `scale_2` that gives blocks with the largest number the largest scale, 448. It is
    1 for zeros alone, where ModelOpt's makes NaNs."""
    highest = x.abs().amax().float() if x.numel() else x.new_zeros((), dtype=torch.float32)
    return (highest / LARGEST).where(highest > 0, torch.ones_like(highest))


def dequantize(w: NVFP4, dtype: torch.dtype = torch.float32) -> Float[Tensor, "M K"]:
    """Return the numbers that `w` represents."""
    values = torch.tensor([*_VALUES, *(-value for value in _VALUES)], device=w.packed.device)
    codes = torch.stack([w.packed & 15, w.packed >> 4], -1).flatten(-2)
    scale = w.scale.float() * w.scale_2
    numbers = values[codes.int()].unflatten(-1, (-1, 16)) * scale[..., None]
    return numbers.flatten(-2).to(dtype)


def rounded(
    x: Float[Tensor, "N K"], scale_2: Tensor, dtype: torch.dtype = torch.float32
) -> Float[Tensor, "N K"]:
    """Return the numbers that `x` is in NVFP4 with `scale_2`: activations as W4A4 has them."""
    return dequantize(quantize_reference(x, scale_2), dtype)


def matmul_reference(x: Float[Tensor, "N K"], w: NVFP4) -> Float[Tensor, "N M"]:
    """Return `x @ w.T`, computed in fp32 and rounded to the type of `x`."""
    return (x.float() @ dequantize(w).T).to(x.dtype)


def quantize(
    x: Float[Tensor, "M K"], scale_2: Tensor | None = None, by_kernel: bool | None = None
) -> NVFP4:
    """Compute `quantize_reference`, by a kernel if `scale_2` is given and the GPU has e4m3 (SM 8.9
    on). `by_kernel` overrides that, as in `dlm.kernels`. Raises `ValueError` if `x` is no matrix of
    floats, or its rows are not whole blocks of 16."""
    if x.ndim != 2 or not x.is_floating_point() or x.shape[1] % 16:
        raise ValueError(f"x is [M, K] of floats, K % 16 == 0, got {[*x.shape]} of {x.dtype}")
    if scale_2 is not None and (scale_2.shape != () or scale_2.dtype != torch.float32):
        raise ValueError(f"scale_2 is one fp32, got {[*scale_2.shape]} of {scale_2.dtype}")
    if by_kernel is None:
        by_kernel = x.is_cuda and has_e4m3(x.device)
    if not by_kernel or scale_2 is None:
        return quantize_reference(x, scale_2)
    M, K = x.shape
    x = x.contiguous()
    packed = torch.empty(M, K // 2, dtype=torch.uint8, device=x.device)
    scale = torch.empty(M, K // 16, dtype=torch.float8_e4m3fn, device=x.device)
    constants: dict[str, Any] = {"BLOCKS": 64, "num_warps": 4}
    grid = (triton.cdiv(M * K // 16, 64),)
    with torch.cuda.device_of(x):
        _quantize_kernel[grid](x, scale_2, packed, scale, M * K // 16, **constants)
    return NVFP4(packed, scale, scale_2)


def matmul_w4a4(
    x: Float[Tensor, "N K"],
    w: NVFP4,
    input_scale: Tensor,
    by_kernel: bool | None = None,
    configuration: Configuration | None = None,
) -> Float[Tensor, "N M"]:
    """Compute `matmul_reference` of `x` quantised with `input_scale`, the fp32 scale of
    activations. The kernel is for the GPUs of `FOUR_BIT_SMS`. `by_kernel` is as in `quantize`.
    `configuration` is a candidate of the kernel; None: that of its rule. Raises `ValueError` for
    arguments that do not fit, and for another GPU."""
    check(x, w)
    check_block_scaled(x.device)
    q = quantize(x, input_scale, by_kernel)
    if not runs_kernel(x.device, by_kernel):
        return matmul_reference(dequantize(q), w).to(x.dtype)
    (N, K), M = x.shape, len(w.packed)
    y = torch.empty(N, M, dtype=x.dtype, device=x.device)
    tile: dict[str, Any] = {**(configuration or W4A4.choose(x.device, rows=N, outputs=M, inputs=K))}
    grid = triton.cdiv(M, tile["BLOCK_M"]), triton.cdiv(N, tile["BLOCK_N"])
    a, b = (q.packed, q.scale.view(torch.int32)), (w.packed, w.scale.view(torch.int32))
    sizes = N, M, K // 64
    tile["GROUP"] = 2 if K % 128 == 0 else 1
    with torch.cuda.device_of(x):
        _w4a4_kernel[grid](*a, *b, q.scale_2, w.scale_2, y, *sizes, **tile)
    return y


def check_block_scaled(device: torch.device) -> None:
    """Raise `ValueError` for a GPU that cannot multiply matrices of four bits."""
    if (obstacle := four_bit_obstacle(device)) is not None:
        raise ValueError(f"W4A4 {obstacle}: W4A16 is for all from 8.0")


def check_activations(x: Tensor) -> None:
    """Raise `ValueError` unless `x` are activations for products."""
    if x.ndim != 2 or x.dtype not in (torch.bfloat16, torch.float16):
        raise ValueError(f"x is [N, K] of bf16 or fp16, got {[*x.shape]} of {x.dtype}")
    if x.shape[1] % 64:
        raise ValueError(f"rows are blocks of 64 numbers, got {x.shape[1]}")
    if x.shape[1] > 1 and x.stride(1) != 1:
        raise ValueError(f"a row of x must be adjacent, got strides {x.stride()}")


def check(x: Tensor, w: NVFP4) -> None:
    """Raise `ValueError` unless `x` and `w` are valid for products, and fit each other."""
    check_activations(x)
    types = w.packed.dtype, w.scale.dtype, w.scale_2.dtype
    if types != (torch.uint8, torch.float8_e4m3fn, torch.float32):
        raise ValueError(f"NVFP4 is uint8, float8_e4m3fn and float32, got {types}")
    M, K = len(w.packed), x.shape[1]
    shapes = [[*tensor.shape] for tensor in w]
    if shapes != [[M, K // 2], [M, K // 16], []]:
        raise ValueError(
            f"weights for rows of {K} are [M, {K // 2}], [M, {K // 16}] and [], got {shapes}"
        )
    if not (w.packed.is_contiguous() and w.scale.is_contiguous()):
        raise ValueError("weights and their scales must be contiguous")
    check_devices(x, w)


def check_devices(x: Tensor, weights: Iterable[Tensor]) -> None:
    """Raise `ValueError` unless weights are where `x` is."""
    for tensor in weights:
        if tensor.device != x.device:
            raise ValueError(f"x is on {x.device} but its weights are on {tensor.device}")


@triton.jit
def _quantize_kernel(
    x_ptr,  # [blocks, 16] any float
    scale_2_ptr,  # [] fp32
    packed_ptr,  # [blocks, 8] uint8
    scale_ptr,  # [blocks] e4m3
    blocks,
    BLOCKS: tl.constexpr,
):
    block = tl.program_id(0).to(tl.int64) * BLOCKS + tl.arange(0, BLOCKS)
    real = block < blocks
    at = block[:, None] * 16 + tl.arange(0, 16)[None, :]
    x = tl.load(x_ptr + at, mask=real[:, None], other=0.0).to(tl.float32)
    scale_2 = tl.load(scale_2_ptr)
    # This division rounds to nearest, as in torch: `/` may be a unit in the last place off.
    scale = tl.div_rn(tl.max(tl.abs(x), 1), tl.zeros([BLOCKS], tl.float32) + 6.0 * scale_2)
    scale = tl.where(scale == 0, 1.0, tl.minimum(tl.maximum(scale, 0.001953125), 448.0))
    scale = scale.to(tl.float8e4nv)
    unit = tl.broadcast_to((scale.to(tl.float32) * scale_2)[:, None], [BLOCKS, 16])
    x = tl.div_rn(x, unit)
    size = tl.abs(x)
    code = (size > 0.25).to(tl.int32) + (size >= 0.75).to(tl.int32) + (size > 1.25).to(tl.int32)
    code += (size >= 1.75).to(tl.int32) + (size > 2.5).to(tl.int32) + (size >= 3.5).to(tl.int32)
    code += (size > 5.0).to(tl.int32) + tl.where(x < 0, 8, 0)
    low, high = tl.split(tl.reshape(code, [BLOCKS, 8, 2]))
    byte = block[:, None] * 8 + tl.arange(0, 8)[None, :]
    tl.store(packed_ptr + byte, (low | (high << 4)).to(tl.uint8), mask=real[:, None])
    tl.store(scale_ptr + block, scale, mask=real)


@triton.jit
def e4m3(byte):
    """Return the fp16 numbers of e4m3 without sign, in int32: exponents have biases of 7 and of 15.
    For GPUs before SM 8.9, which have no such type."""
    return ((byte & 0x7F) << 7).to(tl.uint16).to(tl.float16, bitcast=True) * 256.0


@triton.jit
def scales(words, ROWS: tl.constexpr, GROUP: tl.constexpr):
    """Return e4m3 [ROWS, 4 * GROUP] of int32 [ROWS, GROUP]: bytes would be loaded one by one."""
    byte = (words[:, :, None] >> (tl.arange(0, 4)[None, None, :] * 8)) & 0xFF
    byte = tl.reshape(byte, [ROWS, 4 * GROUP]).to(tl.uint8)
    return byte.to(tl.float8e4nv, bitcast=True)


@triton.jit
def _operand(packed_ptr, words_ptr, row, groups, GROUP: tl.constexpr):
    """Return pointers to the codes and scales of rows, at their first columns."""
    byte, word = tl.arange(0, 32 * GROUP)[None, :], tl.arange(0, GROUP)[None, :]
    row = row.to(tl.int64)[:, None]
    return packed_ptr + row * (groups * 32) + byte, words_ptr + row * groups + word


@triton.jit
def product(
    x_ptr,  # [N, 32 * groups] uint8
    x_words_ptr,  # [N, groups] int32
    x_row,
    w_ptr,  # [M, 32 * groups] uint8
    words_ptr,  # [M, groups] int32
    w_row,
    groups,
    GROUP: tl.constexpr,  # of them at once
    BLOCK_N: tl.constexpr,
    BLOCK_M: tl.constexpr,
):
    """Return the products of rows of activations with rows of weights, without tensor scales."""
    of_x = _operand(x_ptr, x_words_ptr, x_row, groups, GROUP)
    of_w = _operand(w_ptr, words_ptr, w_row, groups, GROUP)
    x_at, x_word_at = of_x  # pyright: ignore[reportGeneralTypeIssues]  # it is no call
    w_at, word_at = of_w  # pyright: ignore[reportGeneralTypeIssues]
    acc = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    for _ in range(0, groups, GROUP):
        x_scale = scales(tl.load(x_word_at), BLOCK_N, GROUP)
        w_scale = scales(tl.load(word_at), BLOCK_M, GROUP)
        x, w = tl.load(x_at), tl.trans(tl.load(w_at))
        acc = tl.dot_scaled(x, x_scale, "e2m1", w, w_scale, "e2m1", acc)
        x_at += 32 * GROUP
        w_at += 32 * GROUP
        x_word_at += GROUP
        word_at += GROUP
    return acc


@triton.jit
def _w4a4_kernel(
    x_ptr,  # [N, 32 * groups] uint8
    x_words_ptr,  # [N, groups] int32
    packed_ptr,  # [M, 32 * groups] uint8
    words_ptr,  # [M, groups] int32
    input_scale_ptr,  # [] fp32
    scale_2_ptr,  # [] fp32
    y_ptr,  # [N, M] bf16 or fp16
    N,
    M,
    groups,
    GROUP: tl.constexpr,  # of them at once
    BLOCK_N: tl.constexpr,
    BLOCK_M: tl.constexpr,
):
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    row, column = tl.minimum(n, N - 1), tl.minimum(m, M - 1)
    acc = product(
        x_ptr, x_words_ptr, row, packed_ptr, words_ptr, column, groups, GROUP, BLOCK_N, BLOCK_M
    )
    y = acc * (tl.load(input_scale_ptr) * tl.load(scale_2_ptr))
    y = y.to(y_ptr.dtype.element_ty)
    tl.store(
        y_ptr + n.to(tl.int64)[:, None] * M + m[None, :], y, (n < N)[:, None] & (m < M)[None, :]
    )
