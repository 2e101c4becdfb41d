"""Activation of a gated MLP in one launch: GELU of the gate, by tanh, times up.

Numbers are fp32 inside. The GELU is rounded to the type of `gate` before it is multiplied, as plain
torch rounds it.
"""

from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from dlm.kernels.norms import contiguous_like, rounded

BLOCK = 1024  # numbers of a row for a program; 8 a thread


def gated_gelu_reference(
    gate: Float[Tensor, "N M"], up: Float[Tensor, "N M"]
) -> Float[Tensor, "N M"]:
    """Definition of `gated_gelu` in plain torch."""
    return F.gelu(gate, approximate="tanh") * up


def gated_gelu(
    gate: Float[Tensor, "N M"], up: Float[Tensor, "N M"], by_kernel: bool | None = None
) -> Float[Tensor, "N M"]:
    """Multiply GELU(gate) by up; both may be halves of one product's rows.

    Rows are adjacent and may lie apart; the result is contiguous. `by_kernel` overrules the device:
    a kernel runs on the CPU if it is interpreted, for which `TRITON_INTERPRET=1` is in the
    environment before this file is imported. Raises `ValueError` for shapes, types and devices that
    do not fit.
    """
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
    if not (gate.device.type != "cpu" if by_kernel is None else by_kernel):
        return gated_gelu_reference(gate, up)
    return _gated_gelu(gate, up)


@torch.library.custom_op("dlm::gated_gelu", mutates_args=())
def _gated_gelu(gate: Tensor, up: Tensor) -> Tensor:
    N, M = gate.shape
    made = contiguous_like(gate)
    constants: dict[str, Any] = {"M": M, "BLOCK": BLOCK, "num_warps": 4}
    with torch.cuda.device_of(gate):
        _gated_gelu_kernel[N, triton.cdiv(M, BLOCK)](
            gate, up, made, gate.stride(0), up.stride(0), **constants
        )
    return made


@_gated_gelu.register_fake
def _(gate: Tensor, up: Tensor) -> Tensor:
    return contiguous_like(gate)


@triton.jit
def gelu_tanh(x):
    """Compute GELU by tanh, x * (1 + tanh(z)) / 2 = x * sigmoid(2 z) with
    z = sqrt(2 / pi) (x + c x^3), in fp32."""
    z2 = 1.5957691216057308 * x * (1 + 0.044715 * x * x)
    return x * tl.sigmoid(tl.maximum(z2, -80.0))  # e^80 is no infinity


@triton.jit
def _gated_gelu_kernel(
    gate_ptr,  # [N, M] bf16 or fp16
    up_ptr,  # [N, M] as gate
    y_ptr,  # [N, M] as gate
    gate_stride,  # elements from row to row
    up_stride,
    M: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row, at = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = at < M
    dtype = y_ptr.dtype.element_ty
    gate = tl.load(gate_ptr + row * gate_stride + at, mask=there, other=0.0).to(tl.float32)
    up = tl.load(up_ptr + row * up_stride + at, mask=there, other=0.0).to(tl.float32)
    y = rounded(gelu_tanh(gate), dtype) * up
    tl.store(y_ptr + row * M + at, y.to(dtype), mask=there)
