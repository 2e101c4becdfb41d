"""Activation of a gate times up, against fp64.

With u = 2^-24 and z = 2 sqrt(2 / pi) (g + c g^3): the error of z is 4 u |z|, and that of s, its
sigmoid, is s (1 - s) times as much and 4 u s, where s (1 - s) |z| < 0.3. GELU is g s; it is rounded
to the type of the gate, and so is the product. SiLU has z = g.
"""

import pytest
import torch
import torch.nn.functional as F
from bounded import Bounded, U, exact
from torch import Tensor

from dlm.kernels.norms import Activation, gated, gated_reference

DTYPES = [torch.bfloat16, torch.float16]
SIZES = [(0, 8), (1, 1), (3, 77), (2, 2112), (5, 64)]
# Rows and numbers of the MLPs of SDAR-4B, and of Nemotron-Labs-Diffusion 3B, 8B and 14B.
PUBLISHED = [(4, 9728), (2, 9216), (1, 14336), (1, 16384)]


def halves(N: int, M: int, dtype: torch.dtype, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return gate and up, parts of one product, between NaNs; GELU is linear or 0 at some gates."""
    padded = torch.full((N, 2 * M + 16), torch.nan, dtype=dtype)
    size = 10.0 ** torch.randint(-2, 3, (N, 2 * M), generator=rng)
    padded[:, 8:-8] = torch.randn(N, 2 * M, generator=rng) * size
    gate, up = padded[:, 8:-8].chunk(2, -1)
    return gate, up


def formula(gate: Tensor, up: Tensor, activation: Activation = "gelu_tanh") -> Bounded:
    g = gate.double()
    value = F.silu(g) if activation == "silu" else F.gelu(g, approximate="tanh")
    # The error of torch's 1 + tanh is u; the least sigmoid is e^-80.
    off = gate.double().abs() * 8 * U
    return Bounded(value, off).stored(gate.dtype).times(exact(up)).stored(gate.dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("activation", "N", "M"),
    [(activation, *size) for activation in ("gelu_tanh", "silu") for size in SIZES]
    + [("silu", *size) for size in PUBLISHED],
)
def test_a_gate_s_activation_is_multiplied_by_up(by_kernel, activation, N, M, dtype, rng):
    gate, up = halves(N, M, dtype, rng)

    y = gated(gate, up, activation, by_kernel=by_kernel)

    assert y.shape == (N, M)
    assert y.dtype == dtype
    assert formula(gate, up, activation).holds(y).all()


def test_the_bound_excludes_wrong_results(rng):
    """Swapped gate and up, another activation, and the GELU without tanh, are found."""
    gate, up = halves(5, 200, torch.bfloat16, rng)
    expected = formula(gate, up)
    assert expected.holds(gated_reference(up, gate)).float().mean() < 0.5
    assert expected.holds(gated_reference(gate, up, "silu")).float().mean() < 0.9
    wide, factor = halves(5, 200, torch.float16, rng)
    other = F.gelu(wide) * factor
    assert formula(wide, factor).holds(other).float().mean() < 0.95


def test_a_row_has_the_same_result_in_any_batch(by_kernel, rng):
    gate, up = halves(5, 77, torch.bfloat16, rng)
    alone = gated(gate[3:4], up[3:4], by_kernel=by_kernel)
    assert torch.equal(alone, gated(gate, up, by_kernel=by_kernel)[3:4])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda g, u: (g.float(), u), r"gate is \[N, M\] of bf16 or fp16, got .* torch.float32"),
        (lambda g, u: (g[0], u), r"got \[8\]"),
        (lambda g, u: (g, u[:2]), r"up is \[3, 8\] of torch.bfloat16 on cpu as gate, got \[2, 8\]"),
        (lambda g, u: (g, u.to("meta")), "got .* on meta"),
        (lambda g, u: (g, u.T.contiguous().T), "a row of up must be adjacent"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(change, message, rng):
    with pytest.raises(ValueError, match=message):
        gated(*change(*halves(3, 8, torch.bfloat16, rng)))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("N", "M"), [*SIZES, (256, 2112)])
def test_a_gpu_computes_the_formula(N, M, dtype, rng):
    gate, up = halves(N, M, dtype, rng)
    halved = torch.cat((gate, up), -1).cuda().chunk(2, -1)
    for activation in ("gelu_tanh", "silu"):
        assert formula(gate, up, activation).holds(gated(*halved, activation)).all()
