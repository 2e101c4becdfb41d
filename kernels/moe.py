"""Mixture of experts: gated MLPs, each run on the tokens that chose it.

Two grouped products, gate and up in one with GELU between them, then down. Slots, one for each
token's choice of an expert, are sorted by expert on the device; a program finds its expert and
rows from where each expert's slots begin, so no number is waited for and empty experts cost
programs that end at once. Each slot's result is written to a place of its own and a token's are
added in the order of its choices: the same input gives the same output.

Weights are bf16 or fp16, or NVFP4 decoded in registers (W4A16). How experts are chosen is not known
here. The kernels are tested in Triton's interpreter and compiled for GPUs; no GPU has run them yet.

Shapes: `N` tokens of `H` numbers, `k` experts each of `E`; experts of `I` numbers inside; `S` = N k
slots. H and I are multiples of 64.
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from jaxtyping import Float, Float32, Int64
from torch import Tensor

from dlm.kernels.nvfp4 import NVFP4, decoded, dequantize

Stack = Tensor | NVFP4
"""Matrices [E, R, C] of all experts. An NVFP4 has `packed` [E, R, C / 2], `scale` [E, R, C / 16]
and `scale_2` [E, parts]: gate and up, the two parts of one matrix, have one each."""

# BLOCK_N slots by BLOCK_M rows of weights; the first that holds an average expert's slots, or the
# last. 16 is the least that tensor cores take: 256 tokens that choose 8 of 128 experts fill it.
TILES: tuple[dict[str, Any], ...] = (
    {"BLOCK_N": 16, "BLOCK_M": 64, "num_warps": 4, "num_stages": 4},
    {"BLOCK_N": 32, "BLOCK_M": 64, "num_warps": 4, "num_stages": 3},
    {"BLOCK_N": 64, "BLOCK_M": 64, "num_warps": 8, "num_stages": 3},
)


class Route(NamedTuple):
    """Slot s is choice s % k of token s // k."""

    order: Int64[Tensor, " S"]  # slots by expert; those of one expert in the order of tokens
    starts: Int64[Tensor, " E+1"]  # where each expert's begin in `order`, and where the last end


def moe_reference(
    x: Float[Tensor, "N H"],
    weight: Float32[Tensor, "N k"],
    expert: Int64[Tensor, "N k"],
    gate_up: Stack,
    down: Stack,
) -> Float[Tensor, "N H"]:
    """What `moe` means: fp32, but for what is between the products, which is rounded as `x` is."""
    y = x.new_zeros(*expert.shape, x.shape[1], dtype=torch.float32)
    for e in expert.unique().tolist():
        token, choice = (expert == e).nonzero(as_tuple=True)
        gate, up = (x[token].float() @ matrix(gate_up, e).float().T).chunk(2, -1)
        inner = (F.gelu(gate, approximate="tanh") * up).to(x.dtype).float()
        y[token, choice] = inner @ matrix(down, e).float().T * weight[token, choice, None]
    return y.sum(1).to(x.dtype)


def matrix(stack: Stack, e: int) -> Float[Tensor, "R C"]:
    """Expert e's of a stack, in the stack's own type; of an NVFP4, its numbers in fp32."""
    if isinstance(stack, Tensor):
        return stack[e]
    packed, scale, scale_2 = (part[e] for part in stack)
    return dequantize(
        NVFP4(packed, scale, scale_2.repeat_interleave(len(packed) // len(scale_2))[:, None])
    )


def route(expert: Int64[Tensor, "N k"], experts: int) -> Route:
    """Slots sorted by expert. No number of it is waited for."""
    chosen, order = expert.flatten().sort(stable=True)
    return Route(order, torch.searchsorted(chosen, torch.arange(experts + 1, device=expert.device)))


def moe(
    x: Float[Tensor, "N H"],
    weight: Float32[Tensor, "N k"],
    expert: Int64[Tensor, "N k"],
    gate_up: Stack,
    down: Stack,
    by_kernel: bool | None = None,
) -> Float[Tensor, "N H"]:
    """`moe_reference`, by the kernels on GPUs: the sum over a token's choices of
    weight * down(gelu_tanh(gate x) * up x), where `gate_up` is gate's `I` rows, then up's.

    `expert` is 0 to E - 1, which is not checked: it would take a wait for the device. `by_kernel`
    overrules the device: a kernel runs on the CPU if it is interpreted, for which
    `TRITON_INTERPRET=1` is in the environment before this file is imported. Raises `ValueError` for
    shapes, types and devices that do not fit.
    """
    _check(x, weight, expert, gate_up, down)
    if not (x.device.type != "cpu" if by_kernel is None else by_kernel):
        return moe_reference(x, weight, expert, gate_up, down)
    stacks = _tensors(gate_up), _tensors(down)
    return _moe(x, weight, *route(expert, len(stacks[0][0])), *stacks)


@torch.library.custom_op("dlm::moe", mutates_args=())
def _moe(
    x: Tensor,
    weight: Tensor,
    order: Tensor,
    starts: Tensor,
    gate_up: list[Tensor],
    down: list[Tensor],
) -> Tensor:
    """One operator, so that tracers see through it what they cannot see in a launch."""
    E, H, I = len(down[0]), x.shape[1], gate_up[0].shape[1] // 2  # noqa: E741  # the inner size
    (N, k), S, device = weight.shape, weight.numel(), x.device
    twice = 2 * S  # an expert of twice the mean takes one tile: for each, its weights are decoded
    tile = next(each for each in TILES if each["BLOCK_N"] * E >= twice or each is TILES[-1])
    tiles = triton.cdiv(S, tile["BLOCK_N"]) + min(E, S)  # no fewer than there can be
    inner = torch.empty(S, I, dtype=x.dtype, device=device)
    y = torch.empty(S, H, dtype=torch.float32, device=device)
    options: dict[str, Any] = {**tile, "EXPERTS": triton.next_power_of_2(E)}

    weights, four_bit = _pointers(gate_up)
    sizes = x.stride(0), E, k, I, H // 64
    with torch.cuda.device_of(x):
        _gate_up_kernel[triton.cdiv(I, tile["BLOCK_M"]), tiles](
            x, *weights, order, starts, inner, *sizes, FOUR_BIT=four_bit, **options
        )
        weights, four_bit = _pointers(down)
        inputs = inner, *weights, weight.contiguous(), order, starts
        _down_kernel[triton.cdiv(H, tile["BLOCK_M"]), tiles](
            *inputs, y, E, H, I // 64, FOUR_BIT=four_bit, **options
        )
    return y.view(N, k, H).sum(1).to(x.dtype)


@_moe.register_fake
def _(x: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(x)


def _tensors(stack: Stack) -> list[Tensor]:
    return [stack] if isinstance(stack, Tensor) else [*stack]


def _pointers(stack: list[Tensor]) -> tuple[tuple[Tensor, Tensor, Tensor], Any]:
    """Weights, words of four scales and tensor scales; and whether the latter two are any."""
    if len(stack) == 1:
        return (stack[0], stack[0], stack[0]), False
    packed, scale, scale_2 = stack
    return (packed, scale.view(torch.int32), scale_2), True


def _check(x: Tensor, weight: Tensor, expert: Tensor, gate_up: Stack, down: Stack) -> None:
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
        shape = [*(stack if isinstance(stack, Tensor) else stack.packed).shape]
        if isinstance(stack, Tensor):
            good = len(shape) == 3 and stack.dtype == x.dtype
        else:
            good = len(shape) == 3 and stack.packed.dtype == torch.uint8
            good &= stack.scale.dtype == torch.float8_e4m3fn
            good &= [*stack.scale.shape] == [*shape[:-1], shape[-1] // 8]
            good &= stack.scale_2.dtype == torch.float32
            good &= [*stack.scale_2.shape] == [shape[0], parts]
            shape[-1] *= 2
        tensors = [stack] if isinstance(stack, Tensor) else [*stack]
        if not good or not all(tensor.is_contiguous() for tensor in tensors):
            kinds = [(*tensor.shape, tensor.dtype) for tensor in tensors]
            raise ValueError(
                f"{name} is a contiguous stack [E, R, C] of {x.dtype}, or one of NVFP4 with "
                f"{parts} tensor scales an expert, got {kinds}"
            )
        if any(tensor.device != x.device for tensor in (*tensors, weight, expert)):
            raise ValueError(f"x is on {x.device}, and not all else")
        shapes.append(shape)
    E, inner = len(gate_up if isinstance(gate_up, Tensor) else gate_up.packed), shapes[1][2]
    if shapes != [[E, 2 * inner, H], [E, H, inner]] or inner % 64:
        raise ValueError(
            f"gate_up is [E, 2 I, {H}] and down [E, {H}, I], I % 64 == 0, got {shapes}"
        )


@triton.jit
def _tile(starts_ptr, experts, EXPERTS: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_M: tl.constexpr):
    """The program's tile: its expert, or `experts` if there is none; its slots, and where those of
    the expert end; its rows of weights."""
    index, tile = tl.arange(0, EXPERTS), tl.program_id(1)
    start = tl.load(starts_ptr + index, mask=index < experts, other=0).to(tl.int32)
    end = tl.load(starts_ptr + index + 1, mask=index < experts, other=0).to(tl.int32)
    tiles = (end - start + BLOCK_N - 1) // BLOCK_N
    last = tl.cumsum(tiles, 0)
    expert = tl.sum(((last <= tile) & (index < experts)).to(tl.int32), 0)
    here = index == expert
    first = tl.sum(tl.where(here, start + (tile - last + tiles) * BLOCK_N, 0), 0)
    n = first + tl.arange(0, BLOCK_N)
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    return expert, n, tl.sum(tl.where(here, end, 0), 0), m


@triton.jit
def _block(w_ptr, words_ptr, row, group, groups, FOUR_BIT: tl.constexpr, ROWS: tl.constexpr):
    """Numbers 64 * group to 64 * group + 63 of some rows."""
    if FOUR_BIT:
        byte = group * 32 + tl.arange(0, 32)
        packed = tl.load(w_ptr + (row * (groups * 32))[:, None] + byte[None, :])
        w = decoded(packed, tl.load(words_ptr + row * groups + group), ROWS)
    else:
        at = group * 64 + tl.arange(0, 64)
        w = tl.load(w_ptr + (row * (groups * 64))[:, None] + at[None, :])
    return w


@triton.jit
def _gate_up_kernel(
    x_ptr,  # [N, 64 * groups] bf16 or fp16
    w_ptr,  # [E, 2 * inner, 64 * groups] as x, or half as many uint8
    words_ptr,  # [E, 2 * inner, groups] int32: four e4m3 scales each
    scale_2_ptr,  # [E, 2] fp32
    order_ptr,  # [S] int64
    starts_ptr,  # [E + 1] int64
    h_ptr,  # [S, inner] as x, in the order of `order`
    x_stride,  # elements from row to row
    experts,
    k,
    inner,
    groups,
    FOUR_BIT: tl.constexpr,
    EXPERTS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_M: tl.constexpr,
):
    found = _tile(starts_ptr, experts, EXPERTS, BLOCK_N, BLOCK_M)
    expert, n, end, m = found  # pyright: ignore[reportGeneralTypeIssues]  # it is no call
    if expert < experts:
        token = tl.load(order_ptr + tl.minimum(n, end - 1)) // k  # past the end, the last again
        gate_row = expert.to(tl.int64) * 2 * inner + tl.minimum(m, inner - 1)
        up_row = gate_row + inner
        gate = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
        up = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
        for g in range(groups):
            at = g * 64 + tl.arange(0, 64)
            x = tl.load(x_ptr + (token * x_stride)[:, None] + at[None, :])
            w = _block(w_ptr, words_ptr, gate_row, g, groups, FOUR_BIT, BLOCK_M)
            gate = tl.dot(x, tl.trans(w.to(x.dtype)), gate)
            w = _block(w_ptr, words_ptr, up_row, g, groups, FOUR_BIT, BLOCK_M)
            up = tl.dot(x, tl.trans(w.to(x.dtype)), up)
        if FOUR_BIT:
            gate *= tl.load(scale_2_ptr + expert * 2)
            up *= tl.load(scale_2_ptr + expert * 2 + 1)
        # gelu_tanh(g) = g * (1 + tanh(z)) / 2 = g * sigmoid(2 z), z = sqrt(2 / pi) (g + c g^3)
        z2 = 1.5957691216057308 * gate * (1 + 0.044715 * gate * gate)
        h = (gate * tl.sigmoid(z2) * up).to(h_ptr.dtype.element_ty)
        at = h_ptr + n.to(tl.int64)[:, None] * inner + m[None, :]
        tl.store(at, h, (n < end)[:, None] & (m < inner)[None, :])


@triton.jit
def _down_kernel(
    h_ptr,  # [S, 64 * groups] bf16 or fp16
    w_ptr,  # [E, hidden, 64 * groups] as h, or half as many uint8
    words_ptr,  # [E, hidden, groups] int32
    scale_2_ptr,  # [E, 1] fp32
    weight_ptr,  # [S] fp32
    order_ptr,  # [S] int64
    starts_ptr,  # [E + 1] int64
    y_ptr,  # [S, hidden] fp32, by slot
    experts,
    hidden,
    groups,
    FOUR_BIT: tl.constexpr,
    EXPERTS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_M: tl.constexpr,
):
    found = _tile(starts_ptr, experts, EXPERTS, BLOCK_N, BLOCK_M)
    expert, n, end, m = found  # pyright: ignore[reportGeneralTypeIssues]  # it is no call
    if expert < experts:
        place = tl.minimum(n, end - 1).to(tl.int64)
        row = expert.to(tl.int64) * hidden + tl.minimum(m, hidden - 1)
        acc = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
        for g in range(groups):
            at = g * 64 + tl.arange(0, 64)
            h = tl.load(h_ptr + (place * (groups * 64))[:, None] + at[None, :])
            w = _block(w_ptr, words_ptr, row, g, groups, FOUR_BIT, BLOCK_M)
            acc = tl.dot(h, tl.trans(w.to(h.dtype)), acc)
        slot = tl.load(order_ptr + place)
        factor = tl.load(weight_ptr + slot)
        if FOUR_BIT:
            factor *= tl.load(scale_2_ptr + expert)
        at = y_ptr + (slot * hidden)[:, None] + m[None, :]
        tl.store(at, acc * factor[:, None], (n < end)[:, None] & (m < hidden)[None, :])
