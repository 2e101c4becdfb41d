"""Mixture of experts whose activations are of four bits too (W4A4), on SM 10.0 and 12.0.

Both products are those of `moe.py`. Block-scaled tensor cores multiply codes as they are: weights
stay in rows, as in files, and nothing is decoded. Tokens are quantised before they are routed, with
one scale for all experts. The results of the first product are rounded to the type of the
activations, and quantised with a second scale.

Shapes: `N` tokens of `H` numbers, `k` experts each of `E`; experts of `I` numbers inside; `S` = N k
slots. H and I are multiples of 64.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Float32, Int64
from torch import Tensor

from dlm.kernels.configurations import DOWN_W4A4, GATE_UP_W4A4, Configuration
from dlm.kernels.moe import (
    Route,
    check_experts,
    moe_reference,
    most_tiles,
    route,
    summed,
    tile_of,
)
from dlm.kernels.norms import gelu_tanh
from dlm.kernels.nvfp4 import NVFP4, check_block_scaled, product, quantize
from dlm.kernels.tuned import BY_RULE, Tuned


def moe_w4a4(
    x: Float[Tensor, "N H"],
    weight: Float32[Tensor, "N k"],
    expert: Int64[Tensor, "N k"],
    gate_up: NVFP4,
    down: NVFP4,
    input_scales: Float32[Tensor, "2"],
    by_kernel: bool | None = None,
    tuned: Tuned = BY_RULE,
) -> Float[Tensor, "N H"]:
    """Compute `moe_reference` with `input_scales`, those of the inputs of gate and up, and of down.

    By kernels on GPUs, which have to be of SM 10.0 or 12.0. The other arguments are those of `moe`.
    Raises `ValueError` for arguments that do not fit, and for another GPU.
    """
    check_experts(x, weight, expert, gate_up, down)
    wanted = (2,), torch.float32, x.device
    if (input_scales.shape, input_scales.dtype, input_scales.device) != wanted:
        got = f"{[*input_scales.shape]} of {input_scales.dtype} on {input_scales.device}"
        raise ValueError(f"input_scales are two of fp32 on {x.device}, got {got}")
    check_block_scaled(x.device)
    if not (x.device.type != "cpu" if by_kernel is None else by_kernel):
        return moe_reference(x, weight, expert, gate_up, down, input_scales)
    chosen = route(expert, len(down.packed))
    return summed(choices_w4a4(x, weight, chosen, gate_up, down, input_scales, tuned))


def choices_w4a4(
    x: Float[Tensor, "N H"],
    weight: Float32[Tensor, "N k"],
    route: Route,
    gate_up: NVFP4,
    down: NVFP4,
    input_scales: Float32[Tensor, "2"],
    tuned: Tuned = BY_RULE,
) -> Float[Tensor, "N k H"]:
    """Return each choice's summand in `moe_w4a4`, by kernels, for valid arguments of it. Nothing is
    checked."""
    slots, H = weight.numel(), x.shape[1]
    experts, inner = len(down.packed), down.packed.shape[2] * 2
    tiles = []
    for kernel, rows, columns in ((GATE_UP_W4A4, inner, H), (DOWN_W4A4, H, inner)):
        shape = {"slots": slots, "experts": experts, "rows": rows, "columns": columns}
        tiles.append(kernel.numbers(tuned.choose(kernel, x.device, **shape)))
    return _choices(x, weight, *route, [*gate_up], [*down], input_scales, *tiles)


@torch.library.custom_op("dlm::moe_choices_w4a4", mutates_args=())
def _choices(
    x: Tensor,
    weight: Tensor,
    order: Tensor,
    starts: Tensor,
    gate_up: list[Tensor],
    down: list[Tensor],
    input_scales: Tensor,
    gate_up_tile: list[int],
    down_tile: list[int],
) -> Tensor:
    """Launch as one operator, since tracers cannot see into a launch."""
    (N, k), H, route = weight.shape, x.shape[1], Route(order, starts)
    q = quantize(x, input_scales[0], by_kernel=True)
    tile = GATE_UP_W4A4.configuration(gate_up_tile)
    h = run_gate_up_w4a4(q, k, route, NVFP4(*gate_up), x.dtype, tile)
    q = quantize(h, input_scales[1], by_kernel=True)
    tile = DOWN_W4A4.configuration(down_tile)
    return run_down_w4a4(q, weight, route, NVFP4(*down), x.dtype, tile).view(N, k, H)


@_choices.register_fake
def _(x: Tensor, weight: Tensor, *_: Any) -> Tensor:
    return torch.empty(*weight.shape, x.shape[1], dtype=x.dtype, device=x.device)


def run_gate_up_w4a4(
    x: NVFP4, k: int, route: Route, gate_up: NVFP4, dtype: torch.dtype, tile: Configuration
) -> Float[Tensor, "S I"]:
    """Launch the first product and its GELU, whose results are of type `dtype`."""
    S, E, inner = len(route.order), len(route.starts) - 1, gate_up.packed.shape[1] // 2
    h = torch.empty(S, inner, dtype=dtype, device=x.packed.device)
    grid = triton.cdiv(inner, tile["BLOCK_M"]), most_tiles(tile, S, E)
    groups = x.packed.shape[1] // 32
    operands, options = (*_operands(x), *_operands(gate_up)), _options(tile, E, groups)
    with torch.cuda.device_of(h):
        _gate_up_w4a4_kernel[grid](*operands, *route, h, E, k, inner, groups, **options)
    return h


def run_down_w4a4(
    h: NVFP4,
    weight: Float32[Tensor, "N k"],
    route: Route,
    down: NVFP4,
    dtype: torch.dtype,
    tile: Configuration,
) -> Float[Tensor, "S H"]:
    """Launch the second product, whose results are weighted and in the order of choices."""
    S, E, H = len(route.order), len(route.starts) - 1, down.packed.shape[1]
    y = torch.empty(S, H, dtype=dtype, device=h.packed.device)
    grid = triton.cdiv(H, tile["BLOCK_M"]), most_tiles(tile, S, E)
    groups, weight = h.packed.shape[1] // 32, weight.contiguous()
    operands, options = (*_operands(h), *_operands(down)), _options(tile, E, groups)
    with torch.cuda.device_of(y):
        _down_w4a4_kernel[grid](*operands, weight, *route, y, E, H, groups, **options)
    return y


def _operands(x: NVFP4) -> tuple[Tensor, Tensor, Tensor]:
    return x.packed, x.scale.view(torch.int32), x.scale_2


def _options(tile: Configuration, experts: int, groups: int) -> dict[str, Any]:
    """Return the constants of a product over `groups` of 64 columns."""
    return {**tile, "EXPERTS": triton.next_power_of_2(experts), "GROUP": 2 - groups % 2}


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
    EXPERTS: tl.constexpr,
    GROUP: tl.constexpr,  # groups of 64 columns at once
    BLOCK_N: tl.constexpr,
    BLOCK_M: tl.constexpr,
):
    found = tile_of(starts_ptr, experts, EXPERTS, BLOCK_N, BLOCK_M)
    expert, n, end, m = found  # pyright: ignore[reportGeneralTypeIssues]  # it is no call
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
        h = (gelu_tanh(gate) * up).to(h_ptr.dtype.element_ty)
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
    found = tile_of(starts_ptr, experts, EXPERTS, BLOCK_N, BLOCK_M)
    expert, n, end, m = found  # pyright: ignore[reportGeneralTypeIssues]  # it is no call
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
