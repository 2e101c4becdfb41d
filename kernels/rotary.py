"""Norms and rotation of queries, keys and values before attention, in one launch.

A program takes `HEADS` heads of queries, keys or values of one row. Numbers are fp32 inside, and
rounded to the type of `q` wherever plain torch stores a tensor.

Shapes: `N` rows, `Hq` heads of queries, `h` of keys and of values, of `D` numbers each, `D` even.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Float32
from torch import Tensor

from dlm.kernels.gpus import runs_kernel
from dlm.kernels.norms import normed, rounded

HEADS = 4  # per program, one per warp

HeadTensors = tuple[Float[Tensor, "N Hq D"], Float[Tensor, "N h D"], Float[Tensor, "N h D"]]


def norm_and_rotate_reference(
    q: Float[Tensor, "N Hq D"],
    k: Float[Tensor, "N h D"],
    v: Float[Tensor, "N h D"],
    q_gain: Float[Tensor, " D"],
    k_gain: Float[Tensor, " D"],
    cos: Float32[Tensor, "N 1 D"],
    sin: Float32[Tensor, "N 1 D"],
    eps: float,
) -> HeadTensors:
    """Define `norm_and_rotate` in plain torch."""
    q, k = normed(q, q_gain, eps), normed(k, k_gain, eps)
    return rotated(q, cos, sin), rotated(k, cos, sin), normed(v, None, eps)


def norm_and_rotate(
    q: Float[Tensor, "N Hq D"],
    k: Float[Tensor, "N h D"],
    v: Float[Tensor, "N h D"],
    q_gain: Float[Tensor, " D"],
    k_gain: Float[Tensor, " D"],
    cos: Float32[Tensor, "N 1 D"],
    sin: Float32[Tensor, "N 1 D"],
    eps: float,
    by_kernel: bool | None = None,
) -> HeadTensors:
    """Norm each head of `q`, `k` and `v`; rotate those of `q` and `k` by their row's angles.

    Rotation is `x * cos + cat(-right, left) * sin`, with the halves left and right of a head. `v`
    may be `k` itself. A row's heads are adjacent, rows may have gaps; results are contiguous.
    `by_kernel` overrides the device, as in `dlm.kernels`. Raises `ValueError` for shapes, types and
    devices that do not fit.
    """
    _check(q, k, v, q_gain, k_gain, cos, sin)
    if not runs_kernel(q.device, by_kernel):
        return norm_and_rotate_reference(q, k, v, q_gain, k_gain, cos, sin, eps)
    return _norm_and_rotate(q, k, v, q_gain, k_gain, cos, sin, eps)


def rotated(
    x: Float[Tensor, "*N H D"], cos: Float32[Tensor, "*N 1 D"], sin: Float32[Tensor, "*N 1 D"]
) -> Float[Tensor, "*N H D"]:
    """Rotate heads by the angles of their rows, in the type of `x`."""
    left, right = x.chunk(2, dim=-1)
    return x * cos.type_as(x) + torch.cat((-right, left), dim=-1) * sin.type_as(x)


def _check(
    q: Tensor, k: Tensor, v: Tensor, q_gain: Tensor, k_gain: Tensor, cos: Tensor, sin: Tensor
) -> None:
    if q.ndim != 3 or q.dtype not in (torch.bfloat16, torch.float16) or q.shape[2] % 2:
        raise ValueError(f"q is [N, Hq, D] of bf16 or fp16, D even, got {[*q.shape]} of {q.dtype}")
    N, _, D = q.shape
    for name, each in (("k", k), ("v", v)):
        if each.ndim != 3 or (len(each), each.shape[2]) != (N, D) or each.dtype != q.dtype:
            raise ValueError(
                f"{name} is [{N}, h, {D}] of {q.dtype}, got {[*each.shape]} of {each.dtype}"
            )
    if k.shape != v.shape:
        raise ValueError(f"v is {[*k.shape]} as k, got {[*v.shape]}")
    for name, each in (("q", q), ("k", k), ("v", v)):
        if each.numel() and each.stride()[1:] != (D, 1):
            raise ValueError(f"a row of {name} must be adjacent, got strides {each.stride()}")
    for name, each in (("q_gain", q_gain), ("k_gain", k_gain)):
        if each.shape != (D,) or not each.is_floating_point():
            raise ValueError(f"{name} is [{D}] floats, got {[*each.shape]} of {each.dtype}")
    for name, each in (("cos", cos), ("sin", sin)):
        if each.shape != (N, 1, D) or each.dtype != torch.float32:
            raise ValueError(
                f"{name} is [{N}, 1, {D}] of fp32, got {[*each.shape]} of {each.dtype}"
            )
    devices = {each.device for each in (q, k, v, q_gain, k_gain, cos, sin)}
    if len(devices) > 1:
        raise ValueError(f"heads, gains and angles are on {sorted(map(str, devices))}")


@torch.library.custom_op("dlm::norm_and_rotate", mutates_args=())
def _norm_and_rotate(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_gain: Tensor,
    k_gain: Tensor,
    cos: Tensor,
    sin: Tensor,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    (N, Hq, D), h = q.shape, k.shape[1]
    made = q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)
    rows = cos.contiguous(), sin.contiguous()
    gains = q_gain.contiguous(), k_gain.contiguous()
    strides = q.stride(0), k.stride(0), v.stride(0)
    half = triton.next_power_of_2(max(1, D // 2))
    sizes: dict[str, Any] = {"Q_HEADS": Hq, "KV_HEADS": h, "D": D, "HALF": half, "HEADS": HEADS}
    sizes["num_warps"] = HEADS
    parts = triton.cdiv(Hq, HEADS) + 2 * triton.cdiv(h, HEADS)
    with torch.cuda.device_of(q):
        _norm_and_rotate_kernel[N, parts](q, k, v, *gains, *rows, *made, *strides, eps, **sizes)
    return made


@_norm_and_rotate.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


@triton.jit
def _norm_and_rotate_kernel(
    q_ptr,  # [N, Q_HEADS, D] bf16 or fp16
    k_ptr,  # [N, KV_HEADS, D] as q
    v_ptr,
    q_gain_ptr,  # [D] any float
    k_gain_ptr,
    cos_ptr,  # [N, D] fp32
    sin_ptr,
    new_q_ptr,  # [N, Q_HEADS, D] as q
    new_k_ptr,  # [N, KV_HEADS, D] as q
    new_v_ptr,
    q_stride,  # elements from row to row
    k_stride,
    v_stride,
    eps,
    Q_HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    D: tl.constexpr,
    HALF: tl.constexpr,  # D / 2 or more
    HEADS: tl.constexpr,
):
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    cos_ptr += row * D
    sin_ptr += row * D
    q_parts: tl.constexpr = (Q_HEADS + HEADS - 1) // HEADS
    kv_parts: tl.constexpr = (KV_HEADS + HEADS - 1) // HEADS
    if part < q_parts:
        x_ptr, y_ptr = q_ptr + row * q_stride, new_q_ptr + row * (Q_HEADS * D)
        _heads(x_ptr, y_ptr, q_gain_ptr, cos_ptr, sin_ptr, part, eps, Q_HEADS, D, HALF, HEADS, True)
    elif part < q_parts + kv_parts:
        x_ptr, y_ptr = k_ptr + row * k_stride, new_k_ptr + row * (KV_HEADS * D)
        part -= q_parts
        _heads(
            x_ptr, y_ptr, k_gain_ptr, cos_ptr, sin_ptr, part, eps, KV_HEADS, D, HALF, HEADS, True
        )
    else:
        x_ptr, y_ptr = v_ptr + row * v_stride, new_v_ptr + row * (KV_HEADS * D)
        part -= q_parts + kv_parts
        _heads(
            x_ptr, y_ptr, k_gain_ptr, cos_ptr, sin_ptr, part, eps, KV_HEADS, D, HALF, HEADS, False
        )


@triton.jit
def _heads(
    x_ptr,  # [COUNT, D], as the result
    y_ptr,
    gain_ptr,
    cos_ptr,  # [D]
    sin_ptr,
    part,
    eps,
    COUNT: tl.constexpr,
    D: tl.constexpr,
    HALF: tl.constexpr,
    HEADS: tl.constexpr,
    TURNED: tl.constexpr,  # whether they are also rotated and have a gain
):
    dtype = y_ptr.dtype.element_ty
    head = part * HEADS + tl.arange(0, HEADS)[:, None]
    # Everything is loaded as [HEADS, HALF], also gains and angles, so threads need no exchange.
    i = tl.broadcast_to(tl.arange(0, HALF)[None, :], [HEADS, HALF])
    inside = i < D // 2
    at, there = head * D + i, inside & (head < COUNT)
    left = tl.load(x_ptr + at, mask=there, other=0.0).to(tl.float32)
    right = tl.load(x_ptr + at + D // 2, mask=there, other=0.0).to(tl.float32)
    inverse = tl.rsqrt(tl.sum(left * left + right * right, 1) / D + eps)[:, None]
    left *= inverse
    right *= inverse
    if TURNED:
        left *= tl.load(gain_ptr + i, mask=inside, other=0.0).to(tl.float32)
        right *= tl.load(gain_ptr + D // 2 + i, mask=inside, other=0.0).to(tl.float32)
        left, right = rounded(left, dtype), rounded(right, dtype)
        cos = rounded(tl.load(cos_ptr + i, mask=inside, other=0.0), dtype)
        sin = rounded(tl.load(sin_ptr + i, mask=inside, other=0.0), dtype)
        turned = rounded(left * cos, dtype) - rounded(right * sin, dtype)
        cos = rounded(tl.load(cos_ptr + D // 2 + i, mask=inside, other=0.0), dtype)
        sin = rounded(tl.load(sin_ptr + D // 2 + i, mask=inside, other=0.0), dtype)
        right = rounded(right * cos, dtype) + rounded(left * sin, dtype)
        left = turned
    tl.store(y_ptr + at, left.to(dtype), mask=there)
    tl.store(y_ptr + at + D // 2, right.to(dtype), mask=there)
