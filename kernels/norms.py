"""Norms of a layer and the sums around them: two launches per layer, one program per row.

The first adds the result of attention to the residual and norms the sum for the dense MLP, for the
experts and for the router. The second adds both MLPs' results and norms the sum for the next layer.
A third kernel is the activation of a gated MLP: GELU of the gate, by tanh, or SiLU, times up.

Numbers are fp32 inside. They are rounded to the type of `x` wherever plain torch stores a tensor:
after each norm, sum and product, and after the GELU. Rows do not depend on each other.

Shapes: `N` rows of `H` numbers, any `H`; `k` experts for each row.
"""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from dlm.kernels.gpus import runs_kernel
from dlm.kernels.tiles import ordered, place


class AttentionGains(NamedTuple):
    """Gains [H] of the norms after attention, of any float type."""

    attended: Tensor
    dense: Tensor
    routed: Tensor
    router: Tensor  # the router's scale, to be multiplied by `H ** -0.5`


class FeedForward(NamedTuple):
    """Residual after attention, and the inputs of the next modules: each [N, H] as `x`."""

    residual: Tensor
    dense: Tensor
    routed: Tensor
    router: Tensor


class LayerGains(NamedTuple):
    """Gains [H] of the norms that end a layer, of any float type."""

    dense: Tensor
    routed: Tensor
    both: Tensor  # for the sum of the two
    next: Tensor  # for the next layer's or the model's norm


class LayerOutput(NamedTuple):
    """Result of a layer and its norm for the next one: each [N, H] as the residual."""

    residual: Tensor
    normed: Tensor


def options(H: int) -> dict[str, Any]:
    """Return the constants of a program that holds a row of `H` numbers: 16 per thread, up to 8
    warps."""
    block = 1 << (H - 1).bit_length()
    return {"H": H, "BLOCK": block, "num_warps": min(8, max(1, block // 512))}


def add_attention_reference(
    x: Float[Tensor, "N H"], attended: Float[Tensor, "N H"], gains: AttentionGains, eps: float
) -> FeedForward:
    """Define `add_attention` in plain torch."""
    x = x + normed(attended, gains.attended, eps)
    router = normed(x, None, eps) * gains.router.type_as(x) * x.shape[1] ** -0.5
    return FeedForward(x, normed(x, gains.dense, eps), normed(x, gains.routed, eps), router)


def add_attention(
    x: Float[Tensor, "N H"],
    attended: Float[Tensor, "N H"],
    gains: AttentionGains,
    eps: float,
    by_kernel: bool | None = None,
    order: bool = False,
) -> FeedForward:
    """Add the norm of `attended` to the residual `x`, and norm the sum three times.

    With `order`, the experts' input is `ordered`, as their weights in tiles are. `by_kernel`
    overrides the device, as in `dlm.kernels`. Raises `ValueError` for shapes, types and devices
    that do not fit.
    """
    _check_rows(x, {"attended": attended}, gains)
    if not runs_kernel(x.device, by_kernel):
        made = add_attention_reference(x, attended, gains, eps)
        return made._replace(routed=ordered(made.routed)) if order else made
    return FeedForward(*_add_attention(x, attended, [*gains], eps, order))


def end_layer_reference(
    x: Float[Tensor, "N H"],
    dense: Float[Tensor, "N H"],
    routed: Float[Tensor, "N H"] | Float[Tensor, "N k H"],
    gains: LayerGains,
    scalar: Float[Tensor, "N 1"],
    eps: float,
) -> LayerOutput:
    """Define `end_layer` in plain torch."""
    if routed.ndim == 3:
        routed = routed.sum(1, dtype=torch.float32).type_as(x)
    both = normed(dense, gains.dense, eps) + normed(routed, gains.routed, eps)
    x = (x + normed(both, gains.both, eps)) * scalar
    return LayerOutput(x, normed(x, gains.next, eps))


def end_layer(
    x: Float[Tensor, "N H"],
    dense: Float[Tensor, "N H"],
    routed: Float[Tensor, "N H"] | Float[Tensor, "N k H"],
    gains: LayerGains,
    scalar: Float[Tensor, "N 1"],
    eps: float,
    by_kernel: bool | None = None,
) -> LayerOutput:
    """Add the normed sum of both MLPs' normed results to `x`, times `scalar`, and norm it again.

    `routed` is the experts' sum; or each choice's own result, [N, k, H], which is summed here in
    fp32, in the order of choices. Both are of the type of `x`. `by_kernel` is as in
    `add_attention`. Raises `ValueError` for shapes, types and devices that do not fit.
    """
    alike = {"dense": dense, **({} if routed.ndim == 3 else {"routed": routed})}
    _check_rows(x, alike, gains)
    N, H = x.shape
    if routed.ndim == 3 and (
        (len(routed), routed.shape[2]) != (N, H)
        or not routed.shape[1]
        or routed.dtype != x.dtype
        or routed.device != x.device
    ):
        raise ValueError(
            f"routed is [{N}, {H}] of {x.dtype} or [{N}, k, {H}] of it, on {x.device}, got "
            f"{[*routed.shape]} of {routed.dtype} on {routed.device}"
        )
    if scalar.shape != (N, 1) or scalar.dtype != x.dtype or scalar.device != x.device:
        raise ValueError(
            f"scalar is [{N}, 1] of {x.dtype} on {x.device}, got {[*scalar.shape]} of "
            f"{scalar.dtype} on {scalar.device}"
        )
    if not runs_kernel(x.device, by_kernel):
        return end_layer_reference(x, dense, routed, gains, scalar, eps)
    return LayerOutput(*_end_layer(x, dense, routed, [*gains], scalar, eps))


def normed(x: Tensor, gain: Tensor | None, eps: float) -> Tensor:
    """Return the root-mean-square norm of `x` over its last axis, computed in fp32, in its type."""
    gain = None if gain is None else gain.float()
    return F.rms_norm(x.float(), x.shape[-1:], gain, eps).type_as(x)


def _check_rows(x: Tensor, alike: dict[str, Tensor], gains: Sequence[Tensor]) -> None:
    if x.ndim != 2 or not x.shape[1] or x.dtype not in (torch.bfloat16, torch.float16):
        raise ValueError(f"x is [N, H] of bf16 or fp16, got {[*x.shape]} of {x.dtype}")
    for name, each in alike.items():
        if each.shape != x.shape or each.dtype != x.dtype or each.device != x.device:
            raise ValueError(
                f"{name} is {[*x.shape]} of {x.dtype} on {x.device} as x, got {[*each.shape]} of "
                f"{each.dtype} on {each.device}"
            )
    for gain in gains:
        if gain.shape != x.shape[1:] or not gain.is_floating_point() or gain.device != x.device:
            raise ValueError(
                f"gains are [{x.shape[1]}] floats on {x.device}, got {[*gain.shape]} of "
                f"{gain.dtype} on {gain.device}"
            )


@torch.library.custom_op("dlm::add_attention", mutates_args=())
def _add_attention(
    x: Tensor, attended: Tensor, gains: list[Tensor], eps: float, order: bool
) -> list[Tensor]:
    H, made = x.shape[1], [x.new_empty(x.shape) for _ in FeedForward._fields]
    tensors = [each.contiguous() for each in (x, attended, *gains)] + made
    with torch.cuda.device_of(x):
        constants: dict[str, Any] = {"ORDER": order, **options(H)}
        _add_attention_kernel[len(x),](*tensors, eps=eps, factor=H**-0.5, **constants)
    return made


@_add_attention.register_fake
def _(x: Tensor, *_: Any) -> list[Tensor]:
    return [x.new_empty(x.shape) for _ in FeedForward._fields]


@torch.library.custom_op("dlm::end_layer", mutates_args=())
def _end_layer(
    x: Tensor, dense: Tensor, routed: Tensor, gains: list[Tensor], scalar: Tensor, eps: float
) -> list[Tensor]:
    made = [x.new_empty(x.shape) for _ in LayerOutput._fields]
    choices: dict[str, Any] = {"CHOICES": routed.shape[1] if routed.ndim == 3 else 0}
    tensors = [each.contiguous() for each in (x, dense, routed, scalar, *gains)] + made
    with torch.cuda.device_of(x):
        _end_layer_kernel[len(x),](*tensors, eps=eps, **choices, **options(x.shape[1]))
    return made


@_end_layer.register_fake
def _(x: Tensor, *_: Any) -> list[Tensor]:
    return [x.new_empty(x.shape) for _ in LayerOutput._fields]


@triton.jit
def rounded(x, dtype: tl.constexpr):
    """Return fp32 numbers rounded as if a tensor of `dtype` had stored them."""
    return x.to(dtype).to(tl.float32)


@triton.jit
def inverse(x, H: tl.constexpr, eps):
    """Return the inverse root mean square of a row of `H` numbers, with zeros after them."""
    return tl.rsqrt(tl.sum(x * x, 0) / H + eps)


@triton.jit
def summed_choices(
    choices_ptr, row, at, there, H: tl.constexpr, CHOICES: tl.constexpr, dtype: tl.constexpr
):
    """Return the sum of a row's choices in their order, `choices` being [N, CHOICES, H]: fp32
    numbers, rounded as if a tensor of `dtype` had stored the sum."""
    first = choices_ptr + row * (CHOICES * H) + at
    total = tl.load(first, mask=there, other=0.0).to(tl.float32)
    for choice in tl.static_range(1, CHOICES):  # pyright: ignore[reportGeneralTypeIssues]
        total += tl.load(first + choice * H, mask=there, other=0.0).to(tl.float32)
    return rounded(total, dtype)


@triton.jit
def _add_attention_kernel(
    x_ptr,  # [N, H] bf16 or fp16
    attended_ptr,  # [N, H] as x
    attended_gain_ptr,  # [H] any float, as the next three
    dense_gain_ptr,
    routed_gain_ptr,
    router_gain_ptr,
    residual_ptr,  # [N, H] as x, as the next three
    dense_ptr,
    routed_ptr,
    router_ptr,
    eps,
    factor,  # factor of the router's input
    ORDER: tl.constexpr,  # whether the experts' input is `ordered`
    H: tl.constexpr,
    BLOCK: tl.constexpr,
):
    dtype = x_ptr.dtype.element_ty
    at = tl.arange(0, BLOCK)
    there = at < H
    here = tl.program_id(0).to(tl.int64) * H + at
    attended = tl.load(attended_ptr + here, mask=there, other=0.0).to(tl.float32)
    x = tl.load(x_ptr + here, mask=there, other=0.0).to(tl.float32)
    gain = tl.load(attended_gain_ptr + at, mask=there, other=0.0).to(tl.float32)
    dense_gain = tl.load(dense_gain_ptr + at, mask=there, other=0.0)
    routed_gain = tl.load(routed_gain_ptr + at, mask=there, other=0.0)
    router_gain = tl.load(router_gain_ptr + at, mask=there, other=0.0)

    x = rounded(x + rounded(attended * inverse(attended, H, eps) * gain, dtype), dtype)
    tl.store(residual_ptr + here, x.to(dtype), mask=there)
    normed = x * inverse(x, H, eps)
    tl.store(dense_ptr + here, (normed * dense_gain.to(tl.float32)).to(dtype), mask=there)
    routed_at = here - at + place(at) if ORDER else here
    tl.store(routed_ptr + routed_at, (normed * routed_gain.to(tl.float32)).to(dtype), mask=there)
    scaled = rounded(rounded(normed, dtype) * rounded(router_gain, dtype), dtype)
    tl.store(router_ptr + here, (scaled * factor).to(dtype), mask=there)


@triton.jit
def _end_layer_kernel(
    x_ptr,  # [N, H] bf16 or fp16
    dense_ptr,  # [N, H] as x
    routed_ptr,  # [N, H] or [N, CHOICES, H] as x
    scalar_ptr,  # [N] as x
    dense_gain_ptr,  # [H] any float, as the next three
    routed_gain_ptr,
    both_gain_ptr,
    next_gain_ptr,
    residual_ptr,  # [N, H] as x
    normed_ptr,  # [N, H] as x
    eps,
    H: tl.constexpr,
    CHOICES: tl.constexpr,  # number of choices, or 0
    BLOCK: tl.constexpr,
):
    dtype = x_ptr.dtype.element_ty
    row, at = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    there = at < H
    here = row * H + at
    dense = tl.load(dense_ptr + here, mask=there, other=0.0).to(tl.float32)
    if CHOICES == 0:
        routed = tl.load(routed_ptr + here, mask=there, other=0.0).to(tl.float32)
    else:
        routed = summed_choices(routed_ptr, row, at, there, H, CHOICES, dtype)
    x = tl.load(x_ptr + here, mask=there, other=0.0)
    scalar = tl.load(scalar_ptr + row).to(tl.float32)
    dense_gain = tl.load(dense_gain_ptr + at, mask=there, other=0.0)
    routed_gain = tl.load(routed_gain_ptr + at, mask=there, other=0.0)
    both_gain = tl.load(both_gain_ptr + at, mask=there, other=0.0)
    next_gain = tl.load(next_gain_ptr + at, mask=there, other=0.0)

    dense = rounded(dense * inverse(dense, H, eps) * dense_gain.to(tl.float32), dtype)
    routed = rounded(routed * inverse(routed, H, eps) * routed_gain.to(tl.float32), dtype)
    both = rounded(dense + routed, dtype)
    both = rounded(both * inverse(both, H, eps) * both_gain.to(tl.float32), dtype)
    x = rounded(rounded(x.to(tl.float32) + both, dtype) * scalar, dtype)
    tl.store(residual_ptr + here, x.to(dtype), mask=there)
    normed = x * inverse(x, H, eps) * next_gain.to(tl.float32)
    tl.store(normed_ptr + here, normed.to(dtype), mask=there)


BLOCK = 1024  # numbers of a row for a program; 8 a thread
Activation = Literal["gelu_tanh", "silu"]
"""Function of a gate: GELU by tanh, or SiLU."""


def activated(gate: Tensor, activation: Activation) -> Tensor:
    """Return the activation of a gate, in plain torch."""
    return F.silu(gate) if activation == "silu" else F.gelu(gate, approximate="tanh")


def gated_reference(
    gate: Float[Tensor, "N M"], up: Float[Tensor, "N M"], activation: Activation = "gelu_tanh"
) -> Float[Tensor, "N M"]:
    """Define `gated` in plain torch."""
    return activated(gate, activation) * up


def gated(
    gate: Float[Tensor, "N M"],
    up: Float[Tensor, "N M"],
    activation: Activation = "gelu_tanh",
    by_kernel: bool | None = None,
) -> Float[Tensor, "N M"]:
    """Multiply the activation of the gate by up; both may be halves of one product's rows. Numbers
    of a row are adjacent, rows may have gaps; the result is contiguous. `by_kernel` overrides the
    device, as in `dlm.kernels`. Raises `ValueError` for shapes, types and devices that do not
    fit."""
    if gate.ndim != 2 or gate.dtype not in (torch.bfloat16, torch.float16):
        raise ValueError(f"gate is [N, M] of bf16 or fp16, got {[*gate.shape]} of {gate.dtype}")
    if up.shape != gate.shape or up.dtype != gate.dtype or up.device != gate.device:
        raise ValueError(
            f"up is {[*gate.shape]} of {gate.dtype} on {gate.device} as gate, got {[*up.shape]} of "
            f"{up.dtype} on {up.device}"
        )
    for name, each in (("gate", gate), ("up", up)):
        if each.numel() and each.stride(1) != 1:
            raise ValueError(f"a row of {name} must be adjacent, got strides {each.stride()}")
    if not runs_kernel(gate.device, by_kernel):
        return gated_reference(gate, up, activation)
    return _gated(gate, up, activation == "silu")


@torch.library.custom_op("dlm::gated", mutates_args=())
def _gated(gate: Tensor, up: Tensor, silu: bool) -> Tensor:
    N, M = gate.shape
    made = gate.new_empty(gate.shape)
    constants: dict[str, Any] = {"M": M, "SILU": silu, "BLOCK": BLOCK, "num_warps": 4}
    with torch.cuda.device_of(gate):
        _gated_kernel[N, triton.cdiv(M, BLOCK)](
            gate, up, made, gate.stride(0), up.stride(0), **constants
        )
    return made


@_gated.register_fake
def _(gate: Tensor, up: Tensor, silu: bool) -> Tensor:
    return gate.new_empty(gate.shape)


@triton.jit
def gelu_tanh(x):
    """Compute GELU by tanh in fp32: x * (1 + tanh(z)) / 2 = x * sigmoid(2 z) with z = sqrt(2 / pi)
    (x + c x^3)."""
    z2 = 1.5957691216057308 * x * (1 + 0.044715 * x * x)
    return x * tl.sigmoid(tl.maximum(z2, -80.0))  # e^80 is finite


@triton.jit
def silu(x):
    """Compute SiLU in fp32."""
    return x * tl.sigmoid(tl.maximum(x, -80.0))  # e^80 is finite


@triton.jit
def _gated_kernel(
    gate_ptr,  # [N, M] bf16 or fp16
    up_ptr,  # [N, M] as gate
    y_ptr,  # [N, M] as gate
    gate_stride,  # elements from row to row
    up_stride,
    M: tl.constexpr,
    SILU: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row, at = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = at < M
    dtype = y_ptr.dtype.element_ty
    gate = tl.load(gate_ptr + row * gate_stride + at, mask=there, other=0.0).to(tl.float32)
    up = tl.load(up_ptr + row * up_stride + at, mask=there, other=0.0).to(tl.float32)
    y = rounded(silu(gate) if SILU else gelu_tanh(gate), dtype) * up
    tl.store(y_ptr + row * M + at, y.to(dtype), mask=there)
