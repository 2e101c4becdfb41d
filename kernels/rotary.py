"""Norms and rotation of queries, keys and values before attention, in one launch.

DiffusionGemma norms all of them, and rotates in the type of `q` (`norm_and_rotate`). Plain decoders
leave values as they are, may norm queries and keys, rotate a leading part of their numbers in fp32,
and scale queries (`rotate_and_scale`). Both are one kernel.

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
    _check(q, k, v, (q_gain, k_gain), (cos, sin), q.shape[-1])
    if not runs_kernel(q.device, by_kernel):
        return norm_and_rotate_reference(q, k, v, q_gain, k_gain, cos, sin, eps)
    return _turned(q, k, v, q_gain, k_gain, cos, sin, None, eps)


def rotate_and_scale_reference(
    q: Float[Tensor, "N Hq D"],
    k: Float[Tensor, "N h D"],
    v: Float[Tensor, "N h D"],
    gains: tuple[Tensor, Tensor] | None,
    cos: Float32[Tensor, "N 1 R"],
    sin: Float32[Tensor, "N 1 R"],
    query_scale: Float32[Tensor, "N 1 1"],
    eps: float,
) -> HeadTensors:
    """Define `rotate_and_scale` in plain torch."""
    if gains is not None:
        q, k = (normed(x, gain, eps) for x, gain in zip((q, k), gains, strict=True))
    q_turned, k_turned = turned(q, cos, sin) * query_scale, turned(k, cos, sin)
    return q_turned.type_as(q), k_turned.type_as(k), v.contiguous()


def rotate_and_scale(
    q: Float[Tensor, "N Hq D"],
    k: Float[Tensor, "N h D"],
    v: Float[Tensor, "N h D"],
    gains: tuple[Tensor, Tensor] | None,
    cos: Float32[Tensor, "N 1 R"],
    sin: Float32[Tensor, "N 1 R"],
    query_scale: Float32[Tensor, "N 1 1"],
    eps: float,
    by_kernel: bool | None = None,
) -> HeadTensors:
    """Rotate the first `R` numbers of each head of `q` and `k` in fp32 by their row's angles, and
    multiply `q` by its row's scale. With `gains` [D] of queries and keys, heads are normed before.
    Values are copied.

    For tensors, `by_kernel` and errors see `norm_and_rotate`; `R` is even, and `D` at most.
    """
    _check(q, k, v, gains, (cos, sin), cos.shape[-1])
    if not 2 <= cos.shape[-1] <= q.shape[-1] or cos.shape[-1] % 2:
        raise ValueError(f"2 to {q.shape[-1]} numbers turn, an even count, got {cos.shape[-1]}")
    if (
        query_scale.shape != (len(q), 1, 1)
        or query_scale.dtype != torch.float32
        or query_scale.device != q.device
    ):
        raise ValueError(
            f"query_scale is [{len(q)}, 1, 1] of fp32 on {q.device}, got {[*query_scale.shape]} of "
            f"{query_scale.dtype} on {query_scale.device}"
        )
    if not runs_kernel(q.device, by_kernel):
        return rotate_and_scale_reference(q, k, v, gains, cos, sin, query_scale, eps)
    return _turned(q, k, v, *(gains or (None, None)), cos, sin, query_scale, eps)


def turned(
    x: Float[Tensor, "n heads D"], cos: Float32[Tensor, "n 1 R"], sin: Float32[Tensor, "n 1 R"]
) -> Float32[Tensor, "n heads D"]:
    """Return heads in fp32, the first R numbers of each rotated."""
    x, R = x.float(), cos.shape[-1]
    if x.shape[-1] == R:
        return rotated(x, cos, sin)
    return torch.cat((rotated(x[..., :R], cos, sin), x[..., R:]), dim=-1)


def rotated(
    x: Float[Tensor, "*N H D"], cos: Float32[Tensor, "*N 1 D"], sin: Float32[Tensor, "*N 1 D"]
) -> Float[Tensor, "*N H D"]:
    """Rotate heads by the angles of their rows, in the type of `x`."""
    left, right = x.chunk(2, dim=-1)
    return x * cos.type_as(x) + torch.cat((-right, left), dim=-1) * sin.type_as(x)


def _check(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gains: tuple[Tensor, Tensor] | None,
    angles: tuple[Tensor, Tensor],
    R: int,
) -> None:
    """Raise `ValueError` for heads, gains or angles that do not fit; `R` numbers turn."""
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
    for name, each in zip(("q_gain", "k_gain"), gains or (), strict=False):
        if each.shape != (D,) or not each.is_floating_point():
            raise ValueError(f"{name} is [{D}] floats, got {[*each.shape]} of {each.dtype}")
    for name, each in zip(("cos", "sin"), angles, strict=True):
        if each.shape != (N, 1, R) or each.dtype != torch.float32:
            raise ValueError(
                f"{name} is [{N}, 1, {R}] of fp32, got {[*each.shape]} of {each.dtype}"
            )
    devices = {each.device for each in (q, k, v, *(gains or ()), *angles)}
    if len(devices) > 1:
        raise ValueError(f"heads, gains and angles are on {sorted(map(str, devices))}")


@torch.library.custom_op("dlm::turned_heads", mutates_args=())
def _turned(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_gain: Tensor | None,
    k_gain: Tensor | None,
    cos: Tensor,
    sin: Tensor,
    query_scale: Tensor | None,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Launch `norm_and_rotate`, or with a `query_scale` `rotate_and_scale`."""
    (N, Hq, D), h = q.shape, k.shape[1]
    made = q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)
    rows = (
        each if each is None else each.contiguous()
        for each in (q_gain, k_gain, cos, sin, query_scale)
    )
    inputs: list[Any] = [q, k, v, *rows, *made, q.stride(0), k.stride(0), v.stride(0), eps]
    half = triton.next_power_of_2(max(1, D // 2))
    sizes: dict[str, Any] = {"Q_HEADS": Hq, "KV_HEADS": h, "D": D, "R": cos.shape[-1]}
    sizes |= {"HALF": half, "HEADS": HEADS, "num_warps": HEADS}
    parts = triton.cdiv(Hq, HEADS) + 2 * triton.cdiv(h, HEADS)
    with torch.cuda.device_of(q):
        _turn_kernel[N, parts](*inputs, **sizes)
    return made


@_turned.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


@triton.jit
def _turn_kernel(
    q_ptr,  # [N, Q_HEADS, D] bf16 or fp16
    k_ptr,  # [N, KV_HEADS, D] as q
    v_ptr,
    q_gain_ptr,  # [D] any float; None: queries and keys are not normed
    k_gain_ptr,
    cos_ptr,  # [N, R] fp32
    sin_ptr,
    scale_ptr,  # [N] fp32 of queries, rotated in fp32; None: in their type, and values are normed
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
    R: tl.constexpr,  # numbers of a head that turn, the first ones
    HALF: tl.constexpr,  # D / 2 or more
    HEADS: tl.constexpr,
):
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    cos_ptr += row * R
    sin_ptr += row * R
    plain: tl.constexpr = scale_ptr is not None  # pyright: ignore[reportAssignmentType]
    q_parts: tl.constexpr = (Q_HEADS + HEADS - 1) // HEADS
    kv_parts: tl.constexpr = (KV_HEADS + HEADS - 1) // HEADS
    if part < q_parts:
        x_ptr, y_ptr = q_ptr + row * q_stride, new_q_ptr + row * (Q_HEADS * D)
        scale = tl.load(scale_ptr + row) if plain else 1.0
        _heads(
            x_ptr, y_ptr, q_gain_ptr, cos_ptr, sin_ptr, part, eps, scale, Q_HEADS, D, R, HALF,
            HEADS, q_gain_ptr is not None, plain,
        )  # fmt: skip
    elif part < q_parts + kv_parts:
        x_ptr, y_ptr = k_ptr + row * k_stride, new_k_ptr + row * (KV_HEADS * D)
        part -= q_parts
        _heads(
            x_ptr, y_ptr, k_gain_ptr, cos_ptr, sin_ptr, part, eps, 1.0, KV_HEADS, D, R, HALF, HEADS,
            k_gain_ptr is not None, plain,
        )  # fmt: skip
    else:
        x_ptr, y_ptr = v_ptr + row * v_stride, new_v_ptr + row * (KV_HEADS * D)
        part -= q_parts + kv_parts
        _heads(
            x_ptr, y_ptr, None, cos_ptr, sin_ptr, part, eps, 1.0, KV_HEADS, D, 0, HALF, HEADS,
            not plain, plain,
        )  # fmt: skip


@triton.jit
def _heads(
    x_ptr,  # [COUNT, D], as the result
    y_ptr,
    gain_ptr,  # None: their norm has no gain
    cos_ptr,  # [R]
    sin_ptr,
    part,
    eps,
    scale,
    COUNT: tl.constexpr,
    D: tl.constexpr,
    R: tl.constexpr,  # numbers that turn; 0: none
    HALF: tl.constexpr,
    HEADS: tl.constexpr,
    NORMED: tl.constexpr,
    WIDE: tl.constexpr,  # whether they turn in fp32, and are scaled
):
    dtype = y_ptr.dtype.element_ty
    head = part * HEADS + tl.arange(0, HEADS)[:, None]
    # Everything is loaded as [HEADS, HALF], also gains and angles, so threads need no exchange: a
    # thread has both numbers of a pair. Pairs that do not turn follow those that do.
    i = tl.broadcast_to(tl.arange(0, HALF)[None, :], [HEADS, HALF])
    inside = i < D // 2
    first, apart = i, D // 2
    if R > 0 and R < D:
        first = tl.where(i < R // 2, i, i + R // 2)
        apart = tl.where(i < R // 2, R // 2, (D - R) // 2)
    at, there = head * D + first, inside & (head < COUNT)
    left = tl.load(x_ptr + at, mask=there, other=0.0).to(tl.float32)
    right = tl.load(x_ptr + at + apart, mask=there, other=0.0).to(tl.float32)
    if NORMED:
        inverse = tl.rsqrt(tl.sum(left * left + right * right, 1) / D + eps)[:, None]
        left *= inverse
        right *= inverse
        if gain_ptr is not None:
            left *= tl.load(gain_ptr + first, mask=inside, other=0.0).to(tl.float32)
            right *= tl.load(gain_ptr + apart + first, mask=inside, other=0.0).to(tl.float32)
            left, right = rounded(left, dtype), rounded(right, dtype)
    if R > 0:
        turning = i < R // 2
        if WIDE:
            cos = tl.load(cos_ptr + i, mask=turning, other=1.0)
            sin = tl.load(sin_ptr + i, mask=turning, other=0.0)
            turned = left * cos - right * sin
            cos = tl.load(cos_ptr + R // 2 + i, mask=turning, other=1.0)
            sin = tl.load(sin_ptr + R // 2 + i, mask=turning, other=0.0)
            right = (right * cos + left * sin) * scale
            left = turned * scale
        else:
            cos = rounded(tl.load(cos_ptr + i, mask=turning, other=0.0), dtype)
            sin = rounded(tl.load(sin_ptr + i, mask=turning, other=0.0), dtype)
            turned = rounded(left * cos, dtype) - rounded(right * sin, dtype)
            cos = rounded(tl.load(cos_ptr + R // 2 + i, mask=turning, other=0.0), dtype)
            sin = rounded(tl.load(sin_ptr + R // 2 + i, mask=turning, other=0.0), dtype)
            right = rounded(right * cos, dtype) + rounded(left * sin, dtype)
            left = turned
    tl.store(y_ptr + at, left.to(dtype), mask=there)
    tl.store(y_ptr + at + apart, right.to(dtype), mask=there)
