"""Sums and norms around attention and MLPs, against fp64 with a bound of all roundings."""

from collections.abc import Iterable

import pytest
import torch
from bounded import Bounded, exact
from torch import Tensor

from dlm.kernels.norms import (
    AttentionGains,
    LayerGains,
    add_attention,
    add_attention_reference,
    end_layer,
    end_layer_reference,
)

EPS = 1e-6
DTYPES = [torch.bfloat16, torch.float16]
SIZES = [(0, 64), (1, 1), (3, 200), (5, 64), (2, 2816)]


class Case:
    """Rows between NaNs, gains, and results of experts: their sums, or one for each choice."""

    def __init__(self, N: int, H: int, dtype: torch.dtype, rng: torch.Generator, choices: int = 0):
        def rows() -> Tensor:
            padded = torch.full((N + 2, H), torch.nan, dtype=dtype)
            size = 2.0 ** torch.randint(-3, 4, (N, 1), generator=rng)
            return padded[1:-1].copy_(torch.randn(N, H, generator=rng) * size)

        self.x, self.attended, self.dense, self.routed = (rows() for _ in range(4))
        if choices:
            self.routed = torch.randn(N, choices, H, generator=rng).to(dtype)
        self.gains = [(torch.rand(H, generator=rng) + 0.5).to(dtype) for _ in range(4)]
        self.scalar = (torch.rand(N, 1, generator=rng) + 0.5).to(dtype)

    @property
    def attention(self) -> tuple:
        return self.x, self.attended, AttentionGains(*self.gains), EPS

    @property
    def end(self) -> tuple:
        gains = LayerGains(*self.gains)
        return self.x, self.dense, self.routed, gains, self.scalar, EPS


def after_attention(case: Case) -> list[Bounded]:
    dtype, (attended, dense, routed, router) = case.x.dtype, map(exact, case.gains)
    added = exact(case.attended).normed(EPS).times(attended).stored(dtype)
    x = exact(case.x).plus(added).stored(dtype)
    normed = x.normed(EPS)
    factor = exact(torch.tensor(case.x.shape[1] ** -0.5, dtype=torch.float64))
    scaled = normed.stored(dtype).times(router).stored(dtype).times(factor).stored(dtype)
    return [x, normed.times(dense).stored(dtype), normed.times(routed).stored(dtype), scaled]


def after_layer(case: Case) -> list[Bounded]:
    dtype, (dense, routed, both, following) = case.x.dtype, map(exact, case.gains)
    experts = exact(case.routed)
    if case.routed.ndim == 3:
        total = experts[:, 0]
        for choice in range(1, case.routed.shape[1]):
            total = total.plus(experts[:, choice])
        experts = total.stored(dtype)
    first = exact(case.dense).normed(EPS).times(dense).stored(dtype)
    second = experts.normed(EPS).times(routed).stored(dtype)
    added = first.plus(second).stored(dtype).normed(EPS).times(both).stored(dtype)
    x = exact(case.x).plus(added).stored(dtype).times(exact(case.scalar)).stored(dtype)
    return [x, x.normed(EPS).times(following).stored(dtype)]


def check(case: Case, found: Iterable[Tensor], expected: list[Bounded]) -> None:
    for actual, bound in zip(found, expected, strict=True):
        assert actual.shape == case.x.shape
        assert actual.dtype == case.x.dtype
        assert bound.holds(actual).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("N", "H"), SIZES)
def test_the_result_of_attention_is_normed_and_added_and_the_sum_is_normed(
    by_kernel, N, H, dtype, rng
):
    case = Case(N, H, dtype, rng)

    check(case, add_attention(*case.attention, by_kernel=by_kernel), after_attention(case))


@pytest.mark.parametrize("choices", [0, 1, 3, 8])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("N", "H"), SIZES)
def test_results_of_both_mlps_are_normed_and_added_and_the_sum_is_normed(
    by_kernel, N, H, dtype, choices, rng
):
    case = Case(N, H, dtype, rng, choices)

    check(case, end_layer(*case.end, by_kernel=by_kernel), after_layer(case))


def test_the_bounds_exclude_wrong_results(rng):
    """Gains in another order, and a choice that is left out, are found."""
    case = Case(5, 200, torch.bfloat16, rng, choices=3)
    expected = [after_attention(case), after_layer(case)]
    case.gains = case.gains[1:] + case.gains[:1]
    case.routed[:, 2] = 0

    found = [add_attention_reference(*case.attention), end_layer_reference(*case.end)]

    for results, bounds in zip(found, expected, strict=True):
        for actual, bound in zip(results, bounds, strict=True):
            assert bound.holds(actual).float().mean() < 0.7


def test_a_row_has_the_same_result_in_any_batch(by_kernel, rng):
    case = Case(7, 200, torch.bfloat16, rng, choices=2)

    def results() -> list[Tensor]:
        first = add_attention(*case.attention, by_kernel=by_kernel)
        return [*first, *end_layer(*case.end, by_kernel=by_kernel)]

    whole = results()
    for name in ("x", "attended", "dense", "routed", "scalar"):
        setattr(case, name, getattr(case, name)[4:5])
    alone = results()
    for many, one in zip(whole, alone, strict=True):
        assert torch.equal(many[4:5], one)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("x", lambda x: x.float(), r"x is \[N, H\] of bf16 or fp16, got \[3, 64\] of .*float32"),
        ("attended", lambda a: a[:2], r"attended is \[3, 64\] .* as x, got \[2, 64\]"),
        ("attended", lambda a: a.half(), "of torch.bfloat16 .* got .* of torch.float16"),
        ("gains", lambda g: [*g[:3], g[3][:9]], r"gains are \[64\] floats .*, got \[9\]"),
        ("gains", lambda g: [*g[:3], g[3].int()], "got .* of torch.int32"),
        ("dense", lambda d: d.to("meta"), "dense is .* on cpu as x, got .* on meta"),
        ("routed", lambda r: r[:, :9], r"routed is \[3, 64\] .* got \[3, 9\]"),
        (
            "routed",
            lambda r: r[:, None].float(),
            r"or \[3, k, 64\] of it, .* got \[3, 1, 64\] of .*float32",
        ),
        ("routed", lambda r: r[:, None, :9], r"\[3, k, 64\] of it, .* got \[3, 1, 9\]"),
        ("scalar", lambda s: s[:, 0], r"scalar is \[3, 1\] of torch.bfloat16 .* got \[3\]"),
        ("scalar", lambda s: s.float(), "scalar is .* of torch.float32"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(name, change, message, rng):
    case = Case(3, 64, torch.bfloat16, rng)
    setattr(case, name, change(getattr(case, name)))

    with pytest.raises(ValueError, match=message):
        (add_attention(*case.attention), end_layer(*case.end))


@pytest.mark.gpu
@pytest.mark.parametrize("choices", [0, 8])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("N", "H"), [*SIZES, (256, 2816)])
def test_a_gpu_computes_the_formulas(N, H, dtype, choices, rng):
    case = Case(N, H, dtype, rng, choices)
    expected = [*after_attention(case), *after_layer(case)]
    for name in ("x", "attended", "dense", "routed", "scalar"):
        setattr(case, name, getattr(case, name).cuda())
    case.gains = [gain.cuda() for gain in case.gains]

    check(case, [*add_attention(*case.attention), *end_layer(*case.end)], expected)
