"""Paged cache: the places of a pass's tokens, and the copies to them.

All requests share one pool of pages of `p` tokens, and a table maps requests to pages. Pages are of
the activations' type or e4m3; their numbers times a scale are the keys or values. Numbers stored as
e4m3 saturate at 448. This module does not know which request may use which page.

fp8 is written as bytes, and also read as bytes on GPUs before SM 8.9, where Triton has no such
type.

`sent` copies several tensors from the host to a device in one copy, without waiting.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Float32, Int32, Int64
from torch import Tensor

from dlm.kernels.gpus import runs_kernel
from dlm.kernels.pinned import PinnedMemory

_E4M3 = torch.float8_e4m3fn
_LARGEST = torch.finfo(_E4M3).max


CANVAS, CAUSAL, IMAGE = range(3)
"""Kinds of segments. The tokens of a canvas are not cached; each sees the cached tokens before the
canvas, and all of the canvas. Those of the others are cached, and see the cached tokens before the
segment: with `CAUSAL` also those of the segment up to themselves, or up to the end of their block
where blocks are cached whole, with `IMAGE` all of it."""


class Segment(NamedTuple):
    """Adjacent tokens of one request in a pass."""

    row: int  # index of its first token in the packed axis
    tokens: int
    position: int  # position of its first token; for a canvas the number of cached tokens
    kind: int  # CANVAS, CAUSAL or IMAGE
    page: int  # of the request, with which its row of the table begins


class Paging(NamedTuple):
    """Places of the tokens of a pass, for layers that keep the same tokens."""

    segments: tuple[Segment, ...]
    numbers: Int32[Tensor, "5 S"]  # the segments on the device: a row for each of their fields
    table: Int32[Tensor, "S w"]  # pages of the pool, by segment and page of the request
    rows: Int64[Tensor, " n"]  # tokens to be cached, in the packed axis
    places: Int64[Tensor, " n"]  # places of these in the pool: page * p + offset


class Pages(NamedTuple):
    """Pool of one layer. A stored number times a scale is a key or a value."""

    keys: (
        Tensor  # [pages, p, h, D] of the activations' type, or of e4m3; for kernels, also its bytes
    )
    values: Tensor
    k_scale: Float32[Tensor, "1"]
    v_scale: Float32[Tensor, "1"]


def append_(
    pages: Pages,
    k: Float[Tensor, "N h D"],
    v: Float[Tensor, "N h D"],
    paging: Paging,
    by_kernel: bool | None = None,
) -> None:
    """Store the keys and values of `paging.rows`, divided by their scales, rounded to nearest even.
    `by_kernel` overrides the device, as in `dlm.kernels`. Raises `ValueError` for shapes and types
    that do not fit."""
    check_pages(pages, k, v)
    if runs_kernel(k.device, by_kernel):
        _append(*pages, k, v, paging.rows, paging.places)
        return
    for pool, scale, x in ((pages.keys, pages.k_scale, k), (pages.values, pages.v_scale, v)):
        stored = x[paging.rows].float() / scale
        if pool.dtype == _E4M3:
            stored = stored.clamp(-_LARGEST, _LARGEST)  # not every version of torch saturates
        pool.flatten(0, 1).view(torch.uint8)[paging.places] = stored.to(pool.dtype).view(
            torch.uint8
        )


def check_pages(pages: Pages, k: Tensor, v: Tensor) -> None:
    """Raise `ValueError` unless pages, and new keys and values, fit each other."""
    if k.ndim != 3 or k.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        raise ValueError(f"k is [N, h, D] of fp32, bf16 or fp16, got {[*k.shape]} of {k.dtype}")
    if v.shape != k.shape or v.dtype != k.dtype:
        raise ValueError(f"v is {[*k.shape]} of {k.dtype} as k, got {[*v.shape]} of {v.dtype}")
    for name, pool in (("keys", pages.keys), ("values", pages.values)):
        if pool.ndim != 4 or pool.shape[2:] != k.shape[1:] or not pool.is_contiguous():
            raise ValueError(
                f"pages of {name} are contiguous [pages, p, {k.shape[1]}, {k.shape[2]}], "
                f"got {[*pool.shape]} with strides {pool.stride()}"
            )
        if pool.dtype not in (torch.float32, torch.bfloat16, torch.float16, _E4M3, torch.uint8):
            raise ValueError(f"pages of {name} are of {pool.dtype}")
    if pages.keys.shape != pages.values.shape or pages.keys.dtype != pages.values.dtype:
        raise ValueError(
            f"pages of values are {[*pages.values.shape]} of {pages.values.dtype}, "
            f"of keys {[*pages.keys.shape]} of {pages.keys.dtype}"
        )
    for name, scale in (("k_scale", pages.k_scale), ("v_scale", pages.v_scale)):
        if scale.dtype != torch.float32 or scale.numel() != 1:
            raise ValueError(f"{name} is one fp32, got {[*scale.shape]} of {scale.dtype}")
    devices = {x.device for x in (*pages, k, v)}
    if len(devices) > 1:
        raise ValueError(f"pages, scales, k and v are on {sorted(map(str, devices))}")


@torch.library.custom_op("dlm::append_", mutates_args=("keys", "values"))
def _append(
    keys: Tensor,
    values: Tensor,
    k_scale: Tensor,
    v_scale: Tensor,
    k: Tensor,
    v: Tensor,
    rows: Tensor,
    places: Tensor,
) -> None:
    size = k.shape[1] * k.shape[2]
    if keys.dtype == _E4M3:
        keys, values = keys.view(torch.uint8), values.view(torch.uint8)
    constants: dict[str, Any] = {"SIZE": size, "BLOCK": triton.next_power_of_2(size)}
    inputs = k.contiguous(), v.contiguous(), k_scale, v_scale, rows, places
    with torch.cuda.device_of(k):
        _append_kernel[len(rows), 2](*inputs, keys, values, **constants)


@_append.register_fake
def _(*_: Any) -> None:
    pass


@triton.jit
def e4m3_bytes(x):
    """Return fp32 as e4m3: to nearest even, saturating; a NaN stays NaN."""
    size = tl.minimum(tl.abs(tl.where(x == x, x, 0.0)), 448.0)
    bits = size.to(tl.uint32, bitcast=True)
    normal = ((bits + 0x7FFFF + ((bits >> 20) & 1)) >> 20) - (120 << 3)
    tiny = (size + 16384.0).to(tl.uint32, bitcast=True) - 0x46800000  # in units of 2^-9
    code = tl.where(size < 0.015625, tiny, normal)
    sign = (x.to(tl.uint32, bitcast=True) >> 24) & 0x80
    return (tl.where(x == x, code, 0x7F) | sign).to(tl.uint8)


@triton.jit
def decoded(x, dtype: tl.constexpr):
    """Return numbers of a page in `dtype`; they may be stored as e4m3 or its bytes. This is exact,
    except that the bytes of a NaN become 480."""
    if x.dtype == tl.uint8:
        bits = ((x & 0x7F).to(tl.uint16) << 7) | ((x & 0x80).to(tl.uint16) << 8)
        y = (bits.to(tl.float16, bitcast=True) * 256.0).to(dtype)  # the bias is 8 less
    else:
        y = x.to(dtype)
    return y


@triton.jit
def _append_kernel(
    k_ptr,  # [N, SIZE] any float
    v_ptr,
    k_scale_ptr,  # [1] fp32
    v_scale_ptr,
    rows_ptr,  # [n] int64
    places_ptr,  # [n] int64
    keys_ptr,  # [places, SIZE] as k, or the bytes of e4m3
    values_ptr,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    if tl.program_id(1) == 0:
        _append_row(k_ptr, k_scale_ptr, rows_ptr, places_ptr, keys_ptr, SIZE, BLOCK)
    else:
        _append_row(v_ptr, v_scale_ptr, rows_ptr, places_ptr, values_ptr, SIZE, BLOCK)


@triton.jit
def _append_row(
    x_ptr, scale_ptr, rows_ptr, places_ptr, pages_ptr, SIZE: tl.constexpr, BLOCK: tl.constexpr
):
    row, place = tl.load(rows_ptr + tl.program_id(0)), tl.load(places_ptr + tl.program_id(0))
    index = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * SIZE + index, mask=index < SIZE, other=0.0).to(tl.float32)
    x = tl.div_rn(x, tl.load(scale_ptr))
    if pages_ptr.dtype.element_ty == tl.uint8:
        stored = e4m3_bytes(x)
    else:
        stored = x.to(pages_ptr.dtype.element_ty)
    tl.store(pages_ptr + place * SIZE + index, stored, mask=index < SIZE)


_ALIGNED = 16  # bytes: kernels are compiled again for tensors with another alignment


def sent(
    tensors: Iterable[Tensor], device: torch.device, memory: PinnedMemory | None = None
) -> list[Tensor]:
    """Return copies of host tensors on `device`, as parts of one allocation. They are copied to a
    GPU from pinned memory, that of `memory` if it is given: the host would otherwise wait for all
    earlier work of the device."""
    tensors = list(tensors)
    sizes = [-(-tensor.nbytes // _ALIGNED) * _ALIGNED for tensor in tensors]
    cuda = device.type == "cuda" and torch.cuda.is_available()  # false while a pass is traced
    if cuda and memory is not None:
        with memory.lend(sum(sizes)) as joined:
            _join(joined, tensors, sizes)
            there = joined.to(device, non_blocking=True)
    else:
        joined = torch.empty(sum(sizes), dtype=torch.uint8, device="cpu", pin_memory=cuda)
        _join(joined, tensors, sizes)
        there = joined.to(device, non_blocking=True)
    return [
        piece[: tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        for piece, tensor in zip(there.split(sizes), tensors, strict=True)
    ]


def _join(joined: Tensor, tensors: Sequence[Tensor], sizes: Sequence[int]) -> None:
    """Write the bytes of `tensors` one after the other, each in its own size."""
    memory, begin = joined.numpy(), 0
    for tensor, size in zip(tensors, sizes, strict=True):
        if tensor.numel():  # an empty one from numpy may have strides of 0
            flat = tensor.contiguous().flatten().view(torch.uint8)
            memory[begin : begin + tensor.nbytes] = flat.numpy()
        begin += size
