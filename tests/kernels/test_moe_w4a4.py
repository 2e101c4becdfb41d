"""Both products of W4A4 experts against fp64, each with its own inputs.

Results of the first are quantised, where an error of a bit may become another code: the second is
computed from these codes. Bounds are those of test_moe.py.
"""

from dataclasses import replace

import pytest
import torch
from bounded import U
from exhaustive import by_default
from moe_cases import CHOICES, DTYPES, Case, first_product, numbers

from dlm.kernels import moe as kernels
from dlm.kernels.configurations import DOWN_W4A4, GATE_UP_W4A4
from dlm.kernels.moe import moe, moe_reference
from dlm.kernels.moe_w4a4 import run_gate_up_w4a4
from dlm.kernels.nvfp4 import dequantize, quantize, tensor_scale
from dlm.kernels.routing import route

INNER = 64
SM = torch.cuda.get_device_capability()[0] if torch.cuda.is_available() else 12
TILES = GATE_UP_W4A4.candidates(SM, {})


def four_bit(name: str, dtype: torch.dtype, rng: torch.Generator) -> Case:
    case = Case(name, dtype, True, rng)
    case.x = case.x.contiguous()
    return case


def scales_of(case: Case) -> torch.Tensor:
    """Return scales of the inputs of both products, as a calibration would find them."""
    h = torch.tensor(40.0)
    return torch.stack((tensor_scale(case.x), h / (6 * 448)))


def first_products(case: Case, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return h of each slot in fp64, in the order of choices, and the largest error in fp32."""
    eps = torch.finfo(case.x.dtype).eps / 2
    found = [
        first_product(case, e, x[n].double(), terms=130)
        for n, chosen in enumerate(case.expert.tolist())
        for e in chosen
    ]
    h, off = map(torch.stack, zip(*found, strict=True))
    return h, off + eps


@pytest.mark.parametrize("dtype", by_default(DTYPES, 1), ids=str)
@pytest.mark.parametrize("name", CHOICES)
def test_both_products_are_those_of_their_quantised_inputs(name, dtype, rng):
    case = four_bit(name, dtype, rng)
    scales, (N, k) = scales_of(case), case.expert.shape
    sorted_slots = route(case.expert, len(case.down.packed))
    tile = TILES[-1]

    q = quantize(case.x, scales[0], by_kernel=True)
    h = run_gate_up_w4a4(q, k, sorted_slots, case.gate_up, dtype, tile)
    y = moe(*case.args, scales, by_kernel=True)

    expected, off = first_products(case, dequantize(q))
    by_choice = torch.empty_like(h).index_copy_(0, sorted_slots.order, h)
    assert h.dtype == y.dtype == dtype
    assert ((by_choice.double() - expected).abs() <= off).all()
    eps = torch.finfo(dtype).eps / 2
    inner = dequantize(quantize(by_choice, scales[1])).double().view(N, k, INNER)
    for n, chosen in enumerate(case.expert.tolist()):
        made = torch.stack(
            [
                case.weight[n, i].double() * (numbers(case.down, e, 0, 1) @ inner[n, i])
                for i, e in enumerate(chosen)
            ]
        )
        size = sum(
            case.weight[n, i] * (numbers(case.down, e, 0, 1).abs() @ inner[n, i].abs())
            for i, e in enumerate(chosen)
        )
        error = (y[n].double() - made.sum(0)).abs()
        assert (error <= 2 * eps * made.abs().sum(0) + 80 * U * size + eps).all()


@pytest.mark.parametrize("tile", TILES, ids=str)
def test_every_configuration_has_the_same_result(tile, monkeypatch, rng):
    """Columns are added in the same order whatever the tile is."""
    case = four_bit("more than a tile each", torch.bfloat16, rng)
    args = *case.args, scales_of(case), True
    by_rule = moe(*args)
    for kernel in (GATE_UP_W4A4, DOWN_W4A4):
        always = replace(kernel, rule=lambda target, shape, tiles: tile)
        monkeypatch.setattr(kernels, kernel.name.upper(), always)

    assert torch.equal(moe(*args), by_rule)


def test_on_a_cpu_activations_are_rounded(rng):
    case = four_bit("spread", torch.bfloat16, rng)
    scales = scales_of(case)

    y = moe(*case.args, scales)

    rounded = dequantize(quantize(case.x, scales[0])).bfloat16()
    near = moe_reference(rounded, *case.args[1:])  # h is not quantised
    far = moe_reference(*case.args)
    distance = [float((y - other).float().norm() / y.float().norm()) for other in (near, far)]
    assert 0.01 < distance[0] < distance[1] < 0.25


@pytest.mark.parametrize("activation", ["gelu_tanh", "silu"])
def test_kernels_are_near_the_result_on_a_cpu(activation, rng):
    """Some codes differ, where the numbers that are quantised differ by a bit."""
    case = four_bit("spread", torch.bfloat16, rng)
    args = *case.args, scales_of(case)
    one, other = (moe(*args, by_kernel, activation).float() for by_kernel in (True, False))
    assert (one - other).norm() < 0.01 * other.norm()


def test_a_token_has_the_same_result_to_the_bit_in_any_batch(rng):
    case = four_bit("more than a tile each", torch.bfloat16, rng)
    scales = scales_of(case)
    together = moe(*case.args, scales, by_kernel=True)
    for some in (slice(0, 1), slice(3, 40)):
        args = case.x[some], case.weight[some], case.expert[some]
        alone = moe(*args, case.gate_up, case.down, scales, by_kernel=True)
        assert torch.equal(alone, together[some])


def test_a_batch_without_tokens_is_no_error(by_kernel, rng):
    case = four_bit("spread", torch.bfloat16, rng)
    none = case.x[:0], case.weight[:0], case.expert[:0], case.gate_up, case.down
    assert moe(*none, scales_of(case), by_kernel=by_kernel).shape == (0, 128)


@pytest.mark.parametrize(
    ("scales", "message"),
    [
        (torch.ones(3), r"two of fp32 on cpu, got \[3\]"),
        (torch.ones(2).double(), "of torch.float64"),
    ],
)
def test_scales_that_do_not_fit_are_refused(scales, message, rng):
    with pytest.raises(ValueError, match=message):
        moe(*four_bit("spread", torch.bfloat16, rng).args, scales)


def test_a_gpu_without_block_scales_is_refused(rng, monkeypatch):
    monkeypatch.setattr("dlm.kernels.gpus.capability", lambda device: (9, 0))
    with pytest.raises(ValueError, match=r"SM 10.0 and 12.0, this one is of SM 9.0"):
        moe(*four_bit("spread", torch.bfloat16, rng).args, torch.ones(2))


def test_kernels_refuse_nvfp4_in_tiles(rng):
    case = four_bit("spread", torch.bfloat16, rng)
    with pytest.raises(ValueError, match="W4A4 takes stacks of NVFP4 in rows, as files have them"):
        moe(*case.args_of_kernels, scales_of(case), by_kernel=True)


def test_the_operator_can_be_traced(rng):
    case = four_bit("spread", torch.bfloat16, rng)
    sorted_slots = route(case.expert, len(case.down.packed))
    args = case.x, case.weight, *sorted_slots, [*case.gate_up], [*case.down], scales_of(case)
    tiles = [kernel.numbers(TILES[-1]) for kernel in (GATE_UP_W4A4, DOWN_W4A4)]
    torch.library.opcheck(kernels._choices, (*args, *tiles, False), test_utils="test_faketensor")
