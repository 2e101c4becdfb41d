"""Mixture of experts: gated MLPs, each run on the tokens routed to it.

There are two grouped products: gate and up in one, with GELU or SiLU of the gate, then down. A slot
is one token's choice of an expert. Slots are sorted by expert on the device (`routing.py`), and a
program finds its expert and rows from where each expert's slots begin: the host waits for nothing,
and programs of empty experts end at once. Each slot's result is written to its own place and a
token's results are added in the order of its choices: the same input gives the same output.

Weights are bf16 or fp16, or NVFP4 decoded in registers (W4A16): in tiles for the kernels, see
`tiles.py`, and as in files for torch. On the GPUs of `FOUR_BIT_SMS`, activations may be of four
bits too (W4A4): tokens are quantised before they are routed, with one scale for all experts; the
results of the first product are rounded to the type of the activations, and quantised with a second
scale. The products of W4A4 are in `moe_w4a4.py`. This module does not know how experts are chosen.

Shapes: `N` tokens of `H` numbers, `k` experts each of `E`; experts of `I` numbers inside; `S` = N k
slots. H and I are multiples of 64.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Float32, Int64
from torch import Tensor

from dlm.kernels.configurations import (
    DOWN,
    DOWN_W4A4,
    GATE_UP,
    GATE_UP_W4A4,
    Configuration,
)
from dlm.kernels.gpus import major, runs_kernel
from dlm.kernels.moe_w4a4 import run_down_w4a4, run_gate_up_w4a4
from dlm.kernels.norms import Activation, activated, gelu_tanh, silu
from dlm.kernels.nvfp4 import NVFP4, check_block_scaled, dequantize, quantize, rounded
from dlm.kernels.routing import Route, grouped_launch, route, tile_of
from dlm.kernels.tiles import (
    Tiles,
    activations,
    added,
    column,
    layout,
    ordered,
    scales,
    untiled,
    weights,
    zeros,
)

Stack = Tensor | NVFP4 | Tiles
"""Matrices [E, R, C] of all experts. An NVFP4 has `packed` [E, R, C / 2], `scale` [E, R, C / 16]
and `scale_2` [E, parts], one each for gate and up, the two parts of one matrix. Tiles hold the same
in the order for kernels."""


def moe_reference(
    x: Float[Tensor, "N H"],
    weight: Float32[Tensor, "N k"],
    expert: Int64[Tensor, "N k"],
    gate_up: Stack,
    down: Stack,
    input_scales: Float32[Tensor, "2"] | None = None,
    activation: Activation = "gelu_tanh",
) -> Float[Tensor, "N H"]:
    """Define `moe` in fp32; values between the products and each choice's result are rounded as `x`
    is. With `input_scales`, the inputs of both products are quantised to NVFP4, each by its
    scale."""

    def as_read(rows: Tensor, product: int) -> Tensor:
        return rows.float() if input_scales is None else rounded(rows, input_scales[product])

    y = x.new_zeros(*expert.shape, x.shape[1])
    for e in expert.unique().tolist():
        token, choice = (expert == e).nonzero(as_tuple=True)
        gate, up = (as_read(x[token], 0) @ matrix(gate_up, e).float().T).chunk(2, -1)
        inner = (activated(gate, activation) * up).to(x.dtype)
        result = as_read(inner, 1) @ matrix(down, e).float().T * weight[token, choice, None]
        y[token, choice] = result.to(x.dtype)
    return summed(y)


def matrix(stack: Stack, e: int) -> Float[Tensor, "R C"]:
    """Return expert e's matrix in the stack's own type; for NVFP4 in fp32."""
    if isinstance(stack, Tensor):
        return stack[e]
    if isinstance(stack, Tiles):
        stack = untiled(Tiles(*(part[e : e + 1] for part in stack)))
        e = 0
    packed, scale, scale_2 = (part[e] for part in stack)
    return dequantize(
        NVFP4(packed, scale, scale_2.repeat_interleave(len(packed) // len(scale_2))[:, None])
    )


def moe(
    x: Float[Tensor, "N H"],
    weight: Float32[Tensor, "N k"],
    expert: Int64[Tensor, "N k"],
    gate_up: Stack,
    down: Stack,
    input_scales: Float32[Tensor, "2"] | None = None,
    by_kernel: bool | None = None,
    activation: Activation = "gelu_tanh",
) -> Float[Tensor, "N H"]:
    """Compute `moe_reference`, by kernels on GPUs: the sum over a token's choices of weight *
    down(activation(gate x) * up x).

    The rows of `gate_up` are the `I` of gate, then those of up. `expert` is 0 to E - 1, which is
    not checked: that would wait for the device. `input_scales`, of the inputs of gate and up and of
    down, are for W4A4. `by_kernel` overrides the device, as in `dlm.kernels`. Raises `ValueError`
    for shapes, types and devices that do not fit.
    """
    check_experts(x, weight, expert, gate_up, down)
    if input_scales is not None:
        _check_scales(input_scales, x.device)
        check_block_scaled(x.device)
    if not runs_kernel(x.device, by_kernel):
        return moe_reference(x, weight, expert, gate_up, down, input_scales, activation)
    if input_scales is not None and not (isinstance(gate_up, NVFP4) and isinstance(down, NVFP4)):
        raise ValueError("W4A4 takes stacks of NVFP4 in rows, as files have them")
    if input_scales is None and (isinstance(gate_up, NVFP4) or isinstance(down, NVFP4)):
        raise ValueError("kernels take NVFP4 in tiles: `tiled` makes them of a stack, once")
    x = ordered(x) if isinstance(gate_up, Tiles) else x
    chosen = route(expert, _sizes(gate_up)[0])
    return summed(choices(x, weight, chosen, gate_up, down, input_scales, activation))


def summed(choices: Float[Tensor, "N k H"]) -> Float[Tensor, "N H"]:
    """Return the sums over each token's choices."""
    return choices.sum(1, dtype=torch.float32).to(choices.dtype)


def choices(
    x: Float[Tensor, "N H"],
    weight: Float32[Tensor, "N k"],
    route: Route,
    gate_up: Stack,
    down: Stack,
    input_scales: Float32[Tensor, "2"] | None = None,
    activation: Activation = "gelu_tanh",
) -> Float[Tensor, "N k H"]:
    """Return each choice's summand in `moe`, by kernels, for valid arguments of `moe`. NVFP4 is in
    tiles, in W4A4 in rows. For a `gate_up` in tiles, `x` is `ordered`. Nothing is checked."""
    E, H, inner = _sizes(down)
    kernels = (GATE_UP, DOWN) if input_scales is None else (GATE_UP_W4A4, DOWN_W4A4)
    matrices = (gate_up, inner, H), (down, H, inner)
    chosen = []
    for kernel, (stack, rows, columns) in zip(kernels, matrices, strict=True):
        shape = {"slots": weight.numel(), "experts": E, "rows": rows, "columns": columns}
        if input_scales is None:
            shape["bits"] = 16 if isinstance(stack, Tensor) else 4
        chosen.append(kernel.numbers(kernel.choose(x.device, **shape)))
    stacks = _tensors(gate_up), _tensors(down)
    return _choices(x, weight, *route, *stacks, input_scales, *chosen, activation == "silu")


@torch.library.custom_op("dlm::moe_choices", mutates_args=())
def _choices(
    x: Tensor,
    weight: Tensor,
    order: Tensor,
    starts: Tensor,
    gate_up: list[Tensor],
    down: list[Tensor],
    input_scales: Tensor | None,
    gate_up_tile: list[int],
    down_tile: list[int],
    silu: bool,
) -> Tensor:
    """Launch as one operator, since tracers cannot see into a launch."""
    (N, k), H, route, dtype = weight.shape, x.shape[1], Route(order, starts), x.dtype
    if input_scales is None:
        first, second = _of_tensors(gate_up), _of_tensors(down)
        tile = GATE_UP.configuration(gate_up_tile)
        ordered_h = isinstance(second, Tiles)
        h = run_gate_up(x, k, route, first, dtype, tile, ordered_h, silu)
        y = run_down(h, weight, route, second, dtype, DOWN.configuration(down_tile))
    else:
        q = quantize(x, input_scales[0], by_kernel=True)
        tile = GATE_UP_W4A4.configuration(gate_up_tile)
        h = run_gate_up_w4a4(q, k, route, NVFP4(*gate_up), dtype, tile, silu)
        q = quantize(h, input_scales[1], by_kernel=True)
        tile = DOWN_W4A4.configuration(down_tile)
        y = run_down_w4a4(q, weight, route, NVFP4(*down), dtype, tile)
    return y.view(N, k, H)


@_choices.register_fake
def _(x: Tensor, weight: Tensor, *_: Any) -> Tensor:
    return torch.empty(*weight.shape, x.shape[1], dtype=x.dtype, device=x.device)


def run_gate_up(
    x: Float[Tensor, "N H"],
    k: int,
    route: Route,
    gate_up: Tensor | Tiles,
    dtype: torch.dtype,
    tile: Configuration,
    ordered_h: bool = False,
    silu: bool = False,
) -> Float[Tensor, "S I"]:
    """Launch the first product and its activation. Results are of type `dtype`; their columns are
    `ordered` if `ordered_h`."""
    (E, R, C), S = _sizes(gate_up), len(route.order)
    h = torch.empty(S, R // 2, dtype=dtype, device=route.order.device)
    grid, options = grouped_launch(tile, R // 2, S, E)
    pointers, constants = _decoded(gate_up, x.device)
    options |= {"ORDERED": ordered_h, "SILU": silu, **constants}
    sizes = E, k, R // 2, C // 64
    with torch.cuda.device_of(h):
        _gate_up_kernel[grid](x, *pointers, *route, h, x.stride(0), *sizes, **options)
    return h


def run_down(
    h: Float[Tensor, "S I"],
    weight: Float32[Tensor, "N k"],
    route: Route,
    down: Tensor | Tiles,
    dtype: torch.dtype,
    tile: Configuration,
) -> Float[Tensor, "S H"]:
    """Launch the second product, whose results are weighted and in the order of choices."""
    (E, H, inner), S = _sizes(down), len(route.order)
    y = torch.empty(S, H, dtype=dtype, device=route.order.device)
    grid, options = grouped_launch(tile, H, S, E)
    pointers, constants = _decoded(down, h.device)
    weight, sizes = weight.contiguous(), (E, H, inner // 64)
    with torch.cuda.device_of(y):
        _down_kernel[grid](h, *pointers, weight, *route, y, *sizes, **constants, **options)
    return y


def _decoded(
    stack: Tensor | Tiles, device: torch.device
) -> tuple[tuple[Tensor, Tensor, Tensor], dict[str, Any]]:
    """Return the weights, scales and tensor scales of a stack as kernels of W4A16 take them, and
    the constants of its product. Floats stand for their scales, which are not read."""
    sm, four_bit = major(device), isinstance(stack, Tiles)
    constants = {**layout(sm, four_bit), "FOUR_BIT": four_bit}
    if isinstance(stack, Tensor):
        return (stack, stack, stack), constants
    words, scale, scale_2 = stack
    return (words, scales(scale, sm), scale_2), constants


def _tensors(stack: Stack) -> list[Tensor]:
    return [stack] if isinstance(stack, Tensor) else [*stack]


def _of_tensors(tensors: list[Tensor]) -> Tensor | Tiles:
    """Invert `_tensors` for a stack that kernels of W4A16 take."""
    return tensors[0] if len(tensors) == 1 else Tiles(*tensors)


def _sizes(stack: Stack) -> tuple[int, int, int]:
    """Return E, R and C of a stack."""
    first = stack if isinstance(stack, Tensor) else stack[0]
    E, R, C = first.shape[:3]
    if isinstance(stack, Tiles):
        return E, 64 * R, 64 * C
    return E, R, 2 * C if isinstance(stack, NVFP4) else C


def _check_scales(input_scales: Tensor, device: torch.device) -> None:
    expected = (2,), torch.float32, device
    if (input_scales.shape, input_scales.dtype, input_scales.device) != expected:
        got = f"{[*input_scales.shape]} of {input_scales.dtype} on {input_scales.device}"
        raise ValueError(f"input_scales are two of fp32 on {device}, got {got}")


def check_experts(x: Tensor, weight: Tensor, expert: Tensor, gate_up: Stack, down: Stack) -> None:
    """Raise `ValueError` for shapes, types and devices that do not fit."""
    if x.ndim != 2 or x.dtype not in (torch.bfloat16, torch.float16) or x.shape[1] % 64:
        raise ValueError(f"x is [N, H] of bf16 or fp16, H % 64 == 0, got {[*x.shape]} of {x.dtype}")
    if len(x) and x.stride(1) != 1:
        raise ValueError(f"a row of x must be adjacent, got strides {x.stride()}")
    N, H = x.shape
    if expert.ndim != 2 or len(expert) != N or expert.dtype != torch.int64:
        raise ValueError(f"expert is [{N}, k] of int64, got {[*expert.shape]} of {expert.dtype}")
    if weight.shape != expert.shape or weight.dtype != torch.float32:
        raise ValueError(
            f"weight is {[*expert.shape]} of fp32, got {[*weight.shape]} of {weight.dtype}"
        )
    shapes = []
    for name, stack, parts in (("gate_up", gate_up, 2), ("down", down, 1)):
        shape, tensors = _shape(stack, parts, x.dtype), _tensors(stack)
        if shape is None or not all(tensor.is_contiguous() for tensor in tensors):
            kinds = [(*tensor.shape, tensor.dtype) for tensor in tensors]
            raise ValueError(
                f"{name} is a contiguous stack [E, R, C] of {x.dtype}, or one of NVFP4 with "
                f"{parts} tensor scales an expert, got {kinds}"
            )
        if any(tensor.device != x.device for tensor in (*tensors, weight, expert)):
            raise ValueError(f"x is on {x.device}, and not all else")
        shapes.append(shape)
    E, inner = shapes[0][0], shapes[1][2]
    if shapes != [[E, 2 * inner, H], [E, H, inner]] or inner % 64:
        raise ValueError(
            f"gate_up is [E, 2 I, {H}] and down [E, {H}, I], I % 64 == 0, got {shapes}"
        )


def _shape(stack: Stack, parts: int, dtype: torch.dtype) -> list[int] | None:
    """Return E, R and C of a stack; None if its tensors do not fit each other."""
    types, shapes = zip(
        *((tensor.dtype, [*tensor.shape]) for tensor in _tensors(stack)), strict=True
    )
    if len(shapes[0]) < 3:
        return None
    E, R, C = _sizes(stack)
    if isinstance(stack, Tensor):
        expected, needed = [[E, R, C]], (dtype,)
    elif isinstance(stack, Tiles):
        expected = [[E, R // 64, C // 64, 64, 16], [E, R // 64, C // 64, 64, 4], [E, parts]]
        needed = torch.int16, torch.uint8, torch.float32
    else:
        expected = [[E, R, C // 2], [E, R, C // 16], [E, parts]]
        needed = torch.uint8, torch.float8_e4m3fn, torch.float32
    return [E, R, C] if [*shapes] == expected and types == needed else None


@triton.jit
def _gate_up_kernel(
    x_ptr,  # [N, 64 * groups] bf16 or fp16; for weights of four bits, `ordered`
    w_ptr,  # [E, 2 * inner, 64 * groups] as x, or the words of tiles
    scale_ptr,  # those of tiles
    scale_2_ptr,  # [E, 2] fp32
    order_ptr,  # [S] int64
    starts_ptr,  # [E + 1] int64
    h_ptr,  # [S, inner] as x, in the order of `order`
    x_stride,  # elements from row to row
    experts,
    k,
    inner,
    groups,
    ORDERED: tl.constexpr,  # so are the columns of h to be
    SILU: tl.constexpr,  # the activation; GELU otherwise
    FOUR_BIT: tl.constexpr,
    SPLIT: tl.constexpr,
    WEIGHTS_FIRST: tl.constexpr,
    ASSEMBLY: tl.constexpr,
    EXPERTS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_M: tl.constexpr,
):
    tile = tile_of(starts_ptr, experts, EXPERTS, BLOCK_N, BLOCK_M)
    expert, n, end, m = tile  # pyright: ignore[reportGeneralTypeIssues]  # it is no call
    if expert < experts:
        token = tl.load(order_ptr + tl.minimum(n, end - 1)) // k  # after the end, the last one
        row = tl.minimum(m, inner - 1)
        if ORDERED:
            row = column(row)
        row = expert.to(tl.int64) * 2 * inner + row
        gate_at, gate_scale_at = weights(w_ptr, scale_ptr, row, groups, FOUR_BIT, WEIGHTS_FIRST)
        up_at, up_scale_at = weights(w_ptr, scale_ptr, row + inner, groups, FOUR_BIT, WEIGHTS_FIRST)
        x_at = x_ptr + (token * x_stride)[None, :] + tl.arange(0, 16 if SPLIT else 64)[:, None]
        gate = zeros(BLOCK_M, BLOCK_N, WEIGHTS_FIRST)
        up = zeros(BLOCK_M, BLOCK_N, WEIGHTS_FIRST)
        for _ in range(groups):
            x = activations(x_at, SPLIT)
            gate = added(
                gate, gate_at, gate_scale_at, x, FOUR_BIT, SPLIT, WEIGHTS_FIRST, ASSEMBLY, BLOCK_M
            )
            up = added(up, up_at, up_scale_at, x, FOUR_BIT, SPLIT, WEIGHTS_FIRST, ASSEMBLY, BLOCK_M)
            x_at += 64
            gate_at += 1024 if FOUR_BIT else 64
            up_at += 1024 if FOUR_BIT else 64
            gate_scale_at += 256 if WEIGHTS_FIRST else 64
            up_scale_at += 256 if WEIGHTS_FIRST else 64
        if FOUR_BIT:
            gate *= tl.load(scale_2_ptr + expert * 2) * 512  # 1 / UNIT
            up *= tl.load(scale_2_ptr + expert * 2 + 1) * 512
        h = ((silu(gate) if SILU else gelu_tanh(gate)) * up).to(h_ptr.dtype.element_ty)
        if not WEIGHTS_FIRST:
            h = tl.trans(h)
        at = h_ptr + n.to(tl.int64)[None, :] * inner + m[:, None]
        tl.store(at, h, (n < end)[None, :] & (m < inner)[:, None])


@triton.jit
def _down_kernel(
    h_ptr,  # [S, 64 * groups] bf16 or fp16; for weights of four bits, `ordered`
    w_ptr,  # [E, hidden, 64 * groups] as h, or the words of tiles
    scale_ptr,  # those of tiles
    scale_2_ptr,  # [E, 1] fp32
    weight_ptr,  # [S] fp32
    order_ptr,  # [S] int64
    starts_ptr,  # [E + 1] int64
    y_ptr,  # [S, hidden] as h, by slot
    experts,
    hidden,
    groups,
    FOUR_BIT: tl.constexpr,
    SPLIT: tl.constexpr,
    WEIGHTS_FIRST: tl.constexpr,
    ASSEMBLY: tl.constexpr,
    EXPERTS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_M: tl.constexpr,
):
    tile = tile_of(starts_ptr, experts, EXPERTS, BLOCK_N, BLOCK_M)
    expert, n, end, m = tile  # pyright: ignore[reportGeneralTypeIssues]  # it is no call
    if expert < experts:
        place = tl.minimum(n, end - 1).to(tl.int64)
        row = expert.to(tl.int64) * hidden + tl.minimum(m, hidden - 1)
        w_at, scale_at = weights(w_ptr, scale_ptr, row, groups, FOUR_BIT, WEIGHTS_FIRST)
        column_in_h = tl.arange(0, 16 if SPLIT else 64)
        h_at = h_ptr + (place * (groups * 64))[None, :] + column_in_h[:, None]
        acc = zeros(BLOCK_M, BLOCK_N, WEIGHTS_FIRST)
        for _ in range(groups):
            h = activations(h_at, SPLIT)
            acc = added(acc, w_at, scale_at, h, FOUR_BIT, SPLIT, WEIGHTS_FIRST, ASSEMBLY, BLOCK_M)
            h_at += 64
            w_at += 1024 if FOUR_BIT else 64
            scale_at += 256 if WEIGHTS_FIRST else 64
        if not WEIGHTS_FIRST:
            acc = tl.trans(acc)
        slot = tl.load(order_ptr + place)
        factor = tl.load(weight_ptr + slot)
        if FOUR_BIT:
            factor *= tl.load(scale_2_ptr + expert) * 512  # 1 / UNIT
        at = y_ptr + (slot * hidden)[None, :] + m[:, None]
        y = (acc * factor[None, :]).to(y_ptr.dtype.element_ty)
        tl.store(at, y, (n < end)[None, :] & (m < hidden)[:, None])
