"""Bounds of errors in fp32 are carried through the formula, in fp64, beside the exact result.

With u = 2^-24: the error of a sum of K products is K u times the sum of their sizes. Inputs of the
second product are rounded to the type of `x`, as is the result.
"""

import pytest
import torch
from bounded import U
from exhaustive import by_default
from moe_cases import CHOICES, DTYPES, Case, first_product, numbers, prepared, quantized
from torch import Tensor

from dlm.kernels import moe as kernels
from dlm.kernels.moe import moe, moe_reference
from dlm.kernels.tiles import BY_SM


def exact(case: Case) -> tuple[Tensor, Tensor]:
    """Return the result in fp64, by token and choice, and the largest error that fp32 may have."""
    eps, y = torch.finfo(case.x.dtype).eps / 2, torch.zeros(case.x.shape, dtype=torch.float64)
    off = torch.zeros_like(y)
    for n, chosen in enumerate(case.expert.tolist()):
        for choice, e in enumerate(chosen):
            h, h_off = first_product(case, e, case.x[n].double(), case.x.shape[1])
            h_off += torch.finfo(case.x.dtype).tiny
            down, weight = numbers(case.down, e, 0, 1), case.weight[n, choice].double()
            made = weight * (down @ h)
            made_off = weight * (down.abs() @ (h_off + (len(h) + 4) * U * h.abs()))
            y[n] += made
            off[n] += made_off * (1 + eps) + eps * made.abs() + torch.finfo(case.x.dtype).tiny
    return y, off * 1.01 + y.abs() * (eps + 8 * U)


def check(case: Case, y: Tensor) -> None:
    expected, off = exact(case)
    assert ((y.double() - expected).abs() <= off).all()


@pytest.mark.parametrize(
    ("dtype", "four_bit"),
    by_default(
        [
            (torch.bfloat16, True),
            (torch.float16, False),
            (torch.bfloat16, False),
            (torch.float16, True),
        ],
        2,
    ),
    ids=str,
)
@pytest.mark.parametrize("name", CHOICES)
def test_the_result_of_a_token_is_the_weighted_sum_of_its_experts(
    name, by_kernel, dtype, four_bit, rng
):
    case = Case(name, dtype, four_bit, rng)

    args = case.args_of_kernels if by_kernel else case.args
    y = moe(*args, by_kernel=by_kernel)

    assert y.dtype == dtype
    check(case, y)


@pytest.mark.parametrize(("dtype", "four_bit"), [(torch.bfloat16, True), (torch.float16, False)])
@pytest.mark.parametrize("name", ["spread", "mostly empty"])
def test_the_activation_may_be_silu(name, by_kernel, dtype, four_bit, rng):
    case = Case(name, dtype, four_bit, rng, "silu")

    args = case.args_of_kernels if by_kernel else case.args
    check(case, moe(*args, by_kernel=by_kernel, activation="silu"))
    expected, off = exact(case)
    by_gelu = moe_reference(*case.args).double()
    assert ((by_gelu - expected).abs() > off).float().mean() > 0.5


@pytest.mark.parametrize(
    ("inner", "four_bit"), by_default([(512, True), (768, False), (512, False), (768, True)])
)
def test_experts_as_wide_as_those_of_qwen3_and_llada2_are_summed(inner, four_bit, rng):
    case = Case("one token", torch.bfloat16, four_bit, rng, "silu", 2048, inner)

    check(case, moe(*case.args_of_kernels, by_kernel=True, activation="silu"))


@pytest.mark.parametrize("four_bit", ["gate_up", "down"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_one_of_both_stacks_may_have_four_bits(by_kernel, dtype, four_bit, rng):
    case, other = Case("spread", dtype, False, rng), Case("spread", dtype, True, rng)
    setattr(case, four_bit, getattr(other, four_bit))

    check(case, moe(*(case.args_of_kernels if by_kernel else case.args), by_kernel=by_kernel))


@pytest.mark.parametrize("name", ["spread", "more than a tile each"])
@pytest.mark.parametrize("sm", BY_SM)
def test_every_layout_of_a_product_gives_the_same_sums(sm, name, monkeypatch, rng):
    monkeypatch.setattr(kernels, "major", lambda device: sm)
    case = Case(name, torch.bfloat16, True, rng)

    check(case, moe(*case.args_of_kernels, by_kernel=True))


@pytest.mark.parametrize("four_bit", ["gate_up", "down"])
def test_kernels_refuse_nvfp4_that_is_not_in_tiles(four_bit, rng):
    case = Case("spread", torch.bfloat16, True, rng)
    for name in {"gate_up", "down"} - {four_bit}:
        setattr(case, name, prepared(getattr(case, name)))

    with pytest.raises(ValueError, match="take NVFP4 in tiles: `tiled` makes them of a stack"):
        moe(*case.args, by_kernel=True)


def test_the_bound_excludes_wrong_results(rng):
    """A smallest choice that is left out, and swapped gate and up, are found."""
    case = Case("spread", torch.bfloat16, False, rng)
    expected, off = exact(case)
    smallest = case.weight.scatter(1, case.weight.argmin(1, keepdim=True), 0)
    swapped = torch.cat(case.gate_up.chunk(2, 1)[::-1], 1)

    for args in (
        (case.x, smallest, *case.args[2:]),
        (*case.args[:3], swapped, case.down),
    ):
        assert ((moe_reference(*args).double() - expected).abs() > off).float().mean() > 0.5


def test_the_kernels_are_deterministic(rng):
    case = Case("spread", torch.bfloat16, True, rng)

    args = case.args_of_kernels
    assert torch.equal(moe(*args, by_kernel=True), moe(*args, by_kernel=True))


def test_a_token_has_nearly_the_same_result_in_any_batch(rng):
    case = Case("more than a tile each", torch.bfloat16, False, rng)
    x, weight, expert, *weights = case.args

    alone = moe(x[70:71], weight[70:71], expert[70:71], *weights, by_kernel=True)

    together = moe(*case.args, by_kernel=True)[70:71]
    torch.testing.assert_close(alone, together, rtol=2**-7, atol=1e-4)


@pytest.mark.parametrize("four_bit", [False, True], ids=["", "nvfp4"])
def test_a_batch_without_tokens_is_no_error(by_kernel, four_bit, rng):
    case = Case("spread", torch.bfloat16, four_bit, rng)

    stacks = (case.args_of_kernels if by_kernel else case.args)[3:]
    y = moe(*(part[:0] for part in case.args[:3]), *stacks, by_kernel=by_kernel)

    assert y.shape == (0, 128)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("x", lambda x: x.float(), r"bf16 or fp16, H % 64 == 0, got \[23, 128\] of torch.float32"),
        ("x", lambda x: x[:, :96], r"H % 64 == 0, got \[23, 96\]"),
        ("x", lambda x: x[:, ::2], "row of x must be adjacent"),
        ("x", lambda x: x[:, :64], r"gate_up is \[E, 2 I, 64\] and down \[E, 64, I\]"),
        ("x", lambda x: x[:5], r"expert is \[5, k\] of int64, got \[23, 3\]"),
        ("expert", lambda e: e.int(), "of int64, got .* of torch.int32"),
        ("weight", lambda w: w[:, :2], r"weight is \[23, 3\] of fp32, got \[23, 2\]"),
        ("weight", lambda w: w.half(), "of fp32, got .* of torch.float16"),
        ("gate_up", lambda w: w.half(), "gate_up is a contiguous stack .* of torch.bfloat16"),
        ("gate_up", lambda w: w[:, ::2], "gate_up is a contiguous stack"),
        ("gate_up", lambda w: w[:4].contiguous(), r"down \[E, 128, I\].*got \[\[4, 128"),
        ("gate_up", lambda w: quantized(w.float(), 1), "2 tensor scales an expert, got"),
        ("down", lambda w: w[..., :32].contiguous(), r"I % 64 == 0, got"),
        ("down", lambda w: quantized(w.float(), 1)._replace(scale=w), "down is a contiguous stack"),
        ("down", lambda w: w.to("meta"), "x is on cpu, and not all else"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(name, change, message, rng):
    case = Case("spread", torch.bfloat16, False, rng)
    setattr(case, name, change(getattr(case, name)))

    with pytest.raises(ValueError, match=message):
        moe(*case.args)


@pytest.mark.gpu
@pytest.mark.parametrize("four_bit", [False, True], ids=["", "nvfp4"])
@pytest.mark.parametrize("name", CHOICES)
def test_a_gpu_computes_the_formula(name, four_bit, rng):
    case = Case(name, torch.bfloat16, four_bit, rng)
    sent = [
        part.cuda() if isinstance(part, Tensor) else type(part)(*(each.cuda() for each in part))
        for part in case.args_of_kernels
    ]

    check(case, moe(*sent).cpu())
