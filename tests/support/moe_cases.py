"""Tokens that choose among small experts, in ways that kernels must get right."""

import torch
from bounded import U
from torch import Tensor

from dlm.kernels.moe import Stack
from dlm.kernels.norms import Activation, activated
from dlm.kernels.nvfp4 import NVFP4, dequantize, quantize
from dlm.kernels.tiles import tiled

DTYPES = [torch.bfloat16, torch.float16]
CHOICES = {  # tokens, choices each, experts; and how tokens choose
    "one token": (1, 2, 5, "spread"),
    "one expert": (19, 1, 1, "spread"),
    "spread": (23, 3, 6, "spread"),
    "all in one": (40, 1, 5, "last"),
    "more than a tile each": (150, 2, 3, "spread"),
    "mostly empty": (2, 2, 33, "spread"),
    "twice the same": (5, 3, 4, "last"),
}


class Case:
    """Tokens, their experts, and weights of H = `hidden` and I = `inner` in a type or in NVFP4."""

    def __init__(
        self,
        name: str,
        dtype: torch.dtype,
        four_bit: bool,
        rng: torch.Generator,
        activation: Activation = "gelu_tanh",
        hidden: int = 128,
        inner: int = 64,
    ):
        N, k, E, how = CHOICES[name]
        self.activation: Activation = activation
        padded = torch.full((N + 2, hidden + 32), torch.nan, dtype=dtype)
        self.x = padded[1:-1, 16:-16].copy_(torch.randn(N, hidden, generator=rng))
        self.weight = torch.rand(N, k, generator=rng)
        self.expert = torch.rand(N, E, generator=rng).argsort(-1)[:, :k].contiguous()
        if how == "last":
            self.expert = torch.full((N, k), E - 1)
        gate_up = torch.randn(E, 2 * inner, hidden, generator=rng) / 8
        gate_up[:, inner:] *= 3  # so that gate and up have scales of their own
        down = torch.randn(E, hidden, inner, generator=rng) / 8
        self.gate_up: Stack = quantized(gate_up, 2) if four_bit else gate_up.to(dtype)
        self.down: Stack = quantized(down, 1) if four_bit else down.to(dtype)

    @property
    def args(self) -> tuple:
        return self.x, self.weight, self.expert, self.gate_up, self.down

    @property
    def args_of_kernels(self) -> tuple:
        return *self.args[:3], *(prepared(stack) for stack in self.args[3:])


def prepared(stack: Stack) -> Stack:
    """Return the weights in the layout of the kernels."""
    return tiled(stack) if isinstance(stack, NVFP4) else stack


def quantized(stack: Tensor, parts: int) -> NVFP4:
    each = [[quantize(part) for part in matrix.chunk(parts)] for matrix in stack]
    packed = torch.stack([torch.cat([part.packed for part in parts]) for parts in each])
    scale = torch.stack([torch.cat([part.scale for part in parts]) for parts in each])
    scale_2 = torch.stack([torch.stack([part.scale_2 for part in parts]) for parts in each])
    return NVFP4(packed, scale, scale_2)


def numbers(stack: Stack, e: int, part: int, parts: int) -> Tensor:
    if isinstance(stack, Tensor):
        return stack[e].chunk(parts)[part].double()
    one = NVFP4(stack.packed[e], stack.scale[e], stack.scale_2[e, part])
    return dequantize(one).chunk(parts)[part].double()


def first_product(case: Case, e: int, x: Tensor, terms: int) -> tuple[Tensor, Tensor]:
    """Return h of an expert for a row in fp64, and the largest error of sums of `terms` products in
    fp32 and a rounding of h. GELU is never steeper than 1.13, and SiLU than 1.1."""
    gate, up = (numbers(case.gate_up, e, part, 2) for part in range(2))
    g, g_off = gate @ x, terms * U * (gate.abs() @ x.abs())
    u, u_off = up @ x, terms * U * (up.abs() @ x.abs())
    h = activated(g, case.activation) * u
    share = torch.finfo(case.x.dtype).eps / 2 + 8 * U
    return h, 1.13 * g_off * u.abs() + h.abs() * share + (g.abs() + g_off) * u_off
