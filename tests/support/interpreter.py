"""Make Triton's interpreter compute what a GPU computes. For tests only; Triton 3.6 to 3.9.

What it does wrong: it multiplies matrices of bf16 as the integers that their bits are; it cuts fp32
off to bf16, where a GPU rounds to nearest even; casts to fp8 lose carries and do not saturate; and
`tl.dot_scaled` is missing, or reads every scale as a power of two.

What takes it a third of its time: at each call of each function it looks at all names of Triton's
language for those to replace, and for each array it lists all types again.
"""

import inspect
from functools import cache
from typing import Any

import numpy as np
import torch
import triton.language as tl
from torch import Tensor
from triton.language.semantic import TritonSemantic
from triton.runtime import interpreter
from triton.runtime.interpreter import TensorHandle

_FLOATS = {
    tl.float64: torch.float64,
    tl.float32: torch.float32,
    tl.float16: torch.float16,
    tl.bfloat16: torch.bfloat16,
    tl.float8e4nv: torch.float8_e4m3fn,
    tl.float8e5: torch.float8_e5m2,
}
_BITS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
_E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=np.float32)


def install() -> None:
    """Patch the interpreter of this process. A second call changes nothing."""
    if hasattr(interpreter, "_unpatched"):
        return
    builder, convert = interpreter.InterpreterBuilder, interpreter._convert_float
    dot, dot_scaled = builder.create_dot, TritonSemantic.dot_scaled

    def convert_float(data: np.ndarray, source: Any, target: Any, rounding: Any) -> np.ndarray:
        if source.scalar not in _FLOATS or target.scalar not in _FLOATS or "RTZ" in str(rounding):
            return convert(data, source, target, rounding)
        return _bits(_tensor(data, source.scalar), target.scalar)

    def create_dot(self: Any, a: Any, b: Any, acc: Any, *args: Any) -> TensorHandle:
        if not (a.dtype.scalar.is_floating() and acc.dtype.scalar == tl.float32):
            return dot(self, a, b, acc, *args)
        return TensorHandle(_float32(a) @ _float32(b) + acc.data, tl.float32)

    def with_constexpr_formats(self: Any, *args: Any) -> Any:
        args = [tl.constexpr(arg) if isinstance(arg, str) else arg for arg in args]
        return dot_scaled(self, *args)

    numpy_type = interpreter._get_np_dtype

    @cache
    def builtins_of(module: Any) -> list[str]:
        members = inspect.getmembers(module)
        return [name for name, member in members if tl.core.is_builtin(member)]

    def patch_builtin(module: Any, *args: Any) -> None:
        for name in builtins_of(module):
            member = getattr(module, name)
            if tl.core.is_builtin(member):  # not replaced for the function that calls this one
                interpreter._patch_attr(module, name, member, *args)

    @cache
    def numpy_type_of(scalar: Any) -> np.dtype:
        return numpy_type(scalar)

    def cached_numpy_type(kind: Any) -> np.dtype:
        scalar = kind.scalar
        return numpy_type(scalar) if scalar.is_ptr() else numpy_type_of(scalar)

    interpreter._patch_builtin = patch_builtin
    interpreter._get_np_dtype = cached_numpy_type
    interpreter._unpatched = convert
    interpreter._convert_float = convert_float
    builder.create_dot = create_dot
    builder.create_dot_scaled = _create_dot_scaled
    TritonSemantic.dot_scaled = with_constexpr_formats


def _create_dot_scaled(
    self: Any, a: Any, a_scale: Any, a_format: Any, b: Any, b_scale: Any, b_format: Any,
    fast_math: bool, a_packs_k: bool, b_packs_k: bool, acc: Any,
) -> TensorHandle:  # fmt: skip
    """b is [K, N] and its scales are [N, K / group]."""
    if not (a_packs_k and b_packs_k):
        raise NotImplementedError("matrices that are packed along another axis than K")
    left = _scaled(_operand(a, a_format), a_scale)
    right = _scaled(_operand(b, b_format, axis=-2).swapaxes(-1, -2), b_scale).swapaxes(-1, -2)
    return TensorHandle(left @ right + acc.data, tl.float32)


def _operand(handle: TensorHandle, form: Any, axis: int = -1) -> np.ndarray:
    """The values of a matrix in fp32; of two e2m1 in a byte, the lower four bits come first."""
    if "E2M1" not in str(form).upper():
        return _float32(handle)
    codes = handle.data.view(np.uint8)
    codes = np.stack([codes & 15, codes >> 4], axis=codes.ndim if axis == -1 else axis)
    shape = [*handle.data.shape]
    shape[axis] *= 2
    codes = codes.reshape(shape)
    return np.where(codes & 8, -1, 1).astype(np.float32) * _E2M1[codes & 7]


def _scaled(values: np.ndarray, scale: TensorHandle | None) -> np.ndarray:
    """Each group of the last axis times its scale: e4m3, or the exponent of a power of two."""
    if scale is None:
        return values
    if scale.dtype.scalar == tl.float8e4nv:
        factor = _float32(scale)
    else:
        factor = np.exp2(scale.data.view(np.uint8).astype(np.float32) - 127)
    return values * np.repeat(factor, values.shape[-1] // factor.shape[-1], axis=-1)


def _float32(handle: TensorHandle) -> np.ndarray:
    return _tensor(handle.data, handle.dtype.scalar).float().numpy()


def _tensor(data: np.ndarray, kind: Any) -> Tensor:
    dtype = _FLOATS[kind]
    # A copy, as torch warns of arrays that may not be written; its bytes as torch reads them.
    return (
        torch.from_numpy(np.array(data, order="C").view(np.uint8).reshape(-1))
        .view(dtype)
        .view(data.shape)
    )


def _bits(values: Tensor, kind: Any) -> np.ndarray:
    """Round like cvt.rn.satfinite: to nearest even, and to fp8 never beyond its largest number."""
    dtype = _FLOATS[kind]
    if dtype.itemsize == 1:
        largest = torch.finfo(dtype).max
        values = values.float().clamp(-largest, largest)
    bits = values.to(dtype).contiguous().flatten().view(torch.uint8).numpy()
    return bits.view(_BITS[dtype.itemsize]).reshape(tuple(values.shape))
