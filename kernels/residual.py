"""Residuals of a plain decoder: the result of a module is added, and the sum is normed for the next
module, in one launch with one program per row.

Numbers are fp32 inside. They are rounded to the type of `x` wherever plain torch stores a tensor:
after each sum, and after the norm. Rows do not depend on each other.

Shapes: `N` rows of `H` numbers, any `H`; `k` experts for each row.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from dlm.kernels.gpus import runs_kernel
from dlm.kernels.norms import LayerOutput, inverse, normed, options, rounded, summed_choices


def add_and_norm_reference(
    x: Float[Tensor, "N H"],
    result: Float[Tensor, "N H"] | None,
    choices: Float[Tensor, "N k H"] | None,
    gain: Float[Tensor, " H"],
    eps: float,
) -> LayerOutput:
    """Define `add_and_norm` in plain torch."""
    added = torch.zeros_like(x) if result is None else result
    if choices is not None:
        routed = choices.sum(1, dtype=torch.float32).type_as(x)
        added = routed if result is None else routed + result
    x = x + added
    return LayerOutput(x, normed(x, gain, eps))


def add_and_norm(
    x: Float[Tensor, "N H"],
    result: Float[Tensor, "N H"] | None,
    choices: Float[Tensor, "N k H"] | None,
    gain: Float[Tensor, " H"],
    eps: float,
    by_kernel: bool | None = None,
) -> LayerOutput:
    """Add a module's results to the residual `x`, and norm the sum.

    Results are one for each row, or those of each row's experts, which are summed here in fp32, in
    the order of choices; or both. They are of the type of `x`, `gain` is of any float type.
    `by_kernel` overrides the device, as in `dlm.kernels`. Raises `ValueError` for shapes, types and
    devices that do not fit.
    """
    if x.ndim != 2 or not x.shape[1] or x.dtype not in (torch.bfloat16, torch.float16):
        raise ValueError(f"x is [N, H] of bf16 or fp16, got {[*x.shape]} of {x.dtype}")
    N, H = x.shape
    if result is None and choices is None:
        raise ValueError("a result, or one of each choice, must be added")
    if result is not None and _differs(result, x, (N, H)):
        raise ValueError(
            f"result is [{N}, {H}] of {x.dtype} on {x.device} as x, got {[*result.shape]} of "
            f"{result.dtype} on {result.device}"
        )
    if choices is not None and (
        choices.ndim != 3 or not choices.shape[1] or _differs(choices, x, (N, choices.shape[1], H))
    ):
        raise ValueError(
            f"choices are [{N}, k, {H}] of {x.dtype} on {x.device} as x, got {[*choices.shape]} of "
            f"{choices.dtype} on {choices.device}"
        )
    if gain.shape != (H,) or not gain.is_floating_point() or gain.device != x.device:
        raise ValueError(
            f"gain is [{H}] floats on {x.device}, got {[*gain.shape]} of {gain.dtype} on "
            f"{gain.device}"
        )
    if not runs_kernel(x.device, by_kernel):
        return add_and_norm_reference(x, result, choices, gain, eps)
    return LayerOutput(*_add_and_norm(x, result, choices, gain, eps))


def _differs(tensor: Tensor, x: Tensor, shape: tuple[int, ...]) -> bool:
    return tensor.shape != shape or tensor.dtype != x.dtype or tensor.device != x.device


@torch.library.custom_op("dlm::add_and_norm", mutates_args=())
def _add_and_norm(
    x: Tensor, result: Tensor | None, choices: Tensor | None, gain: Tensor, eps: float
) -> list[Tensor]:
    made = [x.new_empty(x.shape) for _ in LayerOutput._fields]
    inputs = [
        each if each is None else each.contiguous() for each in (x, result, choices, gain, *made)
    ]
    constants: dict[str, Any] = {"CHOICES": 0 if choices is None else choices.shape[1]}
    constants |= options(x.shape[1])
    with torch.cuda.device_of(x):
        _add_and_norm_kernel[len(x),](*inputs, eps=eps, **constants)
    return made


@_add_and_norm.register_fake
def _(x: Tensor, *_: Any) -> list[Tensor]:
    return [x.new_empty(x.shape) for _ in LayerOutput._fields]


@triton.jit
def _add_and_norm_kernel(
    x_ptr,  # [N, H] bf16 or fp16
    result_ptr,  # [N, H] as x, or None
    choices_ptr,  # [N, CHOICES, H] as x, or None
    gain_ptr,  # [H] any float
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
    gain = tl.load(gain_ptr + at, mask=there, other=0.0).to(tl.float32)
    x = tl.load(x_ptr + here, mask=there, other=0.0).to(tl.float32)
    added = tl.zeros([BLOCK], tl.float32)
    if CHOICES > 0:
        added = summed_choices(choices_ptr, row, at, there, H, CHOICES, dtype)
    if result_ptr is not None:
        result = tl.load(result_ptr + here, mask=there, other=0.0).to(tl.float32)
        added = rounded(added + result, dtype) if CHOICES > 0 else result
    x = rounded(x + added, dtype)
    tl.store(residual_ptr + here, x.to(dtype), mask=there)
    tl.store(normed_ptr + here, (x * inverse(x, H, eps) * gain).to(dtype), mask=there)
