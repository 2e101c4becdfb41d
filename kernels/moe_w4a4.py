"""Grouped products of experts in W4A4: NVFP4 in rows, as in files, by activations in NVFP4.

Block-scaled tensor cores multiply codes of four bits as they are, and nothing is decoded, on the
GPUs of `FOUR_BIT_SMS`. `moe` in `moe.py` has the reference, checks arguments, and quantises the
inputs of both products: launchers check nothing. This module does not know where input scales come
from.

Shapes: `N` tokens of `H` numbers, `k` experts each of `E`; experts of `I` numbers inside; `S` = N k
slots. H and I are multiples of 64.
"""

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Float32
from torch import Tensor

from dlm.kernels.configurations import Configuration
from dlm.kernels.norms import gelu_tanh, silu
from dlm.kernels.nvfp4 import NVFP4, product
from dlm.kernels.routing import Route, grouped_launch, tile_of


def run_gate_up_w4a4(
    x: NVFP4,
    k: int,
    route: Route,
    gate_up: NVFP4,
    dtype: torch.dtype,
    tile: Configuration,
    silu: bool = False,
) -> Float[Tensor, "S I"]:
    """Launch the first product of `x` [N, H] and its activation. Results are of type `dtype`."""
    (E, R, bytes_in_row), S = gate_up.packed.shape, len(route.order)
    h = torch.empty(S, R // 2, dtype=dtype, device=route.order.device)
    grid, options = grouped_launch(tile, R // 2, S, E)
    groups = bytes_in_row // 32
    options |= {"GROUP": _groups_at_once(groups), "SILU": silu}
    operands, sizes = (*_operand(x), *_operand(gate_up)), (E, k, R // 2, groups)
    with torch.cuda.device_of(h):
        _gate_up_w4a4_kernel[grid](*operands, *route, h, *sizes, **options)
    return h


def run_down_w4a4(
    h: NVFP4,
    weight: Float32[Tensor, "N k"],
    route: Route,
    down: NVFP4,
    dtype: torch.dtype,
    tile: Configuration,
) -> Float[Tensor, "S H"]:
    """Launch the second product of `h` [S, I], whose results are weighted and in the order of
    choices. They are of type `dtype`."""
    (E, H, bytes_in_row), S = down.packed.shape, len(route.order)
    y = torch.empty(S, H, dtype=dtype, device=route.order.device)
    grid, options = grouped_launch(tile, H, S, E)
    groups = bytes_in_row // 32
    options["GROUP"] = _groups_at_once(groups)
    operands, sizes = (*_operand(h), *_operand(down)), (E, H, groups)
    with torch.cuda.device_of(y):
        _down_w4a4_kernel[grid](*operands, weight.contiguous(), *route, y, *sizes, **options)
    return y


def _groups_at_once(groups: int) -> int:
    return 2 - groups % 2


def _operand(x: NVFP4) -> tuple[Tensor, Tensor, Tensor]:
    """Return NVFP4 in rows as kernels take it: scales are words."""
    return x.packed, x.scale.view(torch.int32), x.scale_2


@triton.jit
def _gate_up_w4a4_kernel(
    x_ptr,  # [N, 32 * groups] uint8
    x_words_ptr,  # [N, groups] int32
    input_scale_ptr,  # [] fp32
    w_ptr,  # [E, 2 * inner, 32 * groups] uint8
    words_ptr,  # [E, 2 * inner, groups] int32
    scale_2_ptr,  # [E, 2] fp32
    order_ptr,  # [S] int64
    starts_ptr,  # [E + 1] int64
    h_ptr,  # [S, inner] bf16 or fp16, in the order of `order`
    experts,
    k,
    inner,
    groups,
    SILU: tl.constexpr,  # the activation; GELU otherwise
    EXPERTS: tl.constexpr,
    GROUP: tl.constexpr,  # groups of 64 columns at once
    BLOCK_N: tl.constexpr,
    BLOCK_M: tl.constexpr,
):
    tile = tile_of(starts_ptr, experts, EXPERTS, BLOCK_N, BLOCK_M)
    expert, n, end, m = tile  # pyright: ignore[reportGeneralTypeIssues]  # it is no call
    if expert < experts:
        token = tl.load(order_ptr + tl.minimum(n, end - 1)) // k  # after the end, the last one
        row = expert.to(tl.int64) * 2 * inner + tl.minimum(m, inner - 1)
        gate = product(
            x_ptr, x_words_ptr, token, w_ptr, words_ptr, row, groups, GROUP, BLOCK_N, BLOCK_M
        )
        row += inner
        up = product(
            x_ptr, x_words_ptr, token, w_ptr, words_ptr, row, groups, GROUP, BLOCK_N, BLOCK_M
        )
        unit = tl.load(input_scale_ptr)
        gate *= unit * tl.load(scale_2_ptr + expert * 2)
        up *= unit * tl.load(scale_2_ptr + expert * 2 + 1)
        h = ((silu(gate) if SILU else gelu_tanh(gate)) * up).to(h_ptr.dtype.element_ty)
        at = h_ptr + n.to(tl.int64)[:, None] * inner + m[None, :]
        tl.store(at, h, (n < end)[:, None] & (m < inner)[None, :])


@triton.jit
def _down_w4a4_kernel(
    h_ptr,  # [S, 32 * groups] uint8
    h_words_ptr,  # [S, groups] int32
    input_scale_ptr,  # [] fp32
    w_ptr,  # [E, hidden, 32 * groups] uint8
    words_ptr,  # [E, hidden, groups] int32
    scale_2_ptr,  # [E, 1] fp32
    weight_ptr,  # [S] fp32
    order_ptr,  # [S] int64
    starts_ptr,  # [E + 1] int64
    y_ptr,  # [S, hidden] bf16 or fp16, by slot
    experts,
    hidden,
    groups,
    EXPERTS: tl.constexpr,
    GROUP: tl.constexpr,  # groups of 64 columns at once
    BLOCK_N: tl.constexpr,
    BLOCK_M: tl.constexpr,
):
    tile = tile_of(starts_ptr, experts, EXPERTS, BLOCK_N, BLOCK_M)
    expert, n, end, m = tile  # pyright: ignore[reportGeneralTypeIssues]  # it is no call
    if expert < experts:
        place = tl.minimum(n, end - 1)
        row = expert.to(tl.int64) * hidden + tl.minimum(m, hidden - 1)
        acc = product(
            h_ptr, h_words_ptr, place, w_ptr, words_ptr, row, groups, GROUP, BLOCK_N, BLOCK_M
        )
        slot = tl.load(order_ptr + place)
        unit = tl.load(input_scale_ptr) * tl.load(scale_2_ptr + expert)
        y = acc * (tl.load(weight_ptr + slot) * unit)[:, None]
        at = y_ptr + (slot * hidden)[:, None] + m[None, :]
        tl.store(at, y.to(y_ptr.dtype.element_ty), (n < end)[:, None] & (m < hidden)[None, :])
