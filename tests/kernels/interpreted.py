"""Run a few operations in Triton's interpreter, first as it is, then patched, and print errors.

test_interpreter.py runs this as its own process: a patch cannot be taken back. Each line is
"vanilla" or "patched", the name of an operation, and its largest error, relative to torch.
"""

import interpreter
import torch
import triton
import triton.language as tl


@triton.jit
def _dot(a, b, c, N: tl.constexpr):
    i = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    tl.store(c + i, tl.dot(tl.load(a + i), tl.load(b + i)))


@triton.jit
def _cast(a, b, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(b + i, tl.load(a + i).to(b.dtype.element_ty))


@triton.jit
def _dot_scaled(a, a_scale, b, b_scale, c, N: tl.constexpr):
    n, k, s = tl.arange(0, N)[:, None], tl.arange(0, N // 2)[None, :], tl.arange(0, N // 16)
    s = s[None, :] + n * (N // 16)
    k = k + n * (N // 2)
    x, y = tl.load(a + k), tl.load(b + k)
    xs, ys = tl.load(a_scale + s), tl.load(b_scale + s)
    acc = tl.zeros([N, N], tl.float32)
    acc = tl.dot_scaled(x, xs, "e2m1", tl.trans(y), ys, "e2m1", acc)
    tl.store(c + n * N + tl.arange(0, N)[None, :], acc)


def error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the largest difference, in units of the largest number; a NaN differs by one."""
    actual, expected = actual.double(), expected.double()
    return float(((actual - expected).nan_to_num(1).abs() / expected.abs().max()).max())


def dot(dtype: torch.dtype) -> float:
    a, b = torch.randn(2, 32, 32).to(dtype)
    _dot[(1,)](a, b, c := torch.empty(32, 32), 32)
    return error(c, a.double() @ b.double())


def cast(dtype: torch.dtype) -> float:
    """Return the share of wrong casts of random numbers, ties, and numbers that are too large."""
    values = torch.cat([torch.randn(1000) * 30, torch.tensor([-31.48, 500.0, 1.00390625] * 8)])
    _cast[(1,)](values, out := torch.empty(1024).to(dtype), 1024)
    big = torch.finfo(dtype).max
    return float((out.float() != values.clamp(-big, big).to(dtype).float()).float().mean())


def dot_scaled() -> float:
    a, b = torch.randint(256, (2, 64, 32), dtype=torch.uint8)
    a_scale, b_scale = (torch.rand(2, 64, 4) * 9 + 0.1).to(torch.float8_e4m3fn)
    _dot_scaled[(1,)](a, a_scale, b, b_scale, c := torch.empty(64, 64), 64)
    return error(c, value(a, a_scale) @ value(b, b_scale).T)


def value(packed: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    numbers = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=torch.float64)
    codes = torch.stack([packed & 15, packed >> 4], -1).flatten(1).long()
    return torch.cat([numbers, -numbers])[codes] * scale.double().repeat_interleave(16, 1)


if __name__ == "__main__":
    for mode in ("vanilla", "patched"):
        torch.manual_seed(0)
        if mode == "patched":
            interpreter.install()
        for name, check in {
            "bf16 dot": lambda: dot(torch.bfloat16),
            "fp16 dot": lambda: dot(torch.float16),
            "bf16 cast": lambda: cast(torch.bfloat16),
            "e4m3 cast": lambda: cast(torch.float8_e4m3fn),
            "dot_scaled": dot_scaled,
        }.items():
            try:
                print(mode, name, check(), sep=": ")
            except Exception:
                print(mode, name, "inf", sep=": ")
