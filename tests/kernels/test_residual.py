"""Results that are added to a residual, and the norm of the sum, against fp64 with a bound of all
roundings."""

import pytest
import torch
from bounded import Bounded, exact
from torch import Tensor

from dlm.kernels.residual import add_and_norm, add_and_norm_reference

EPS = 1e-6
DTYPES = [torch.bfloat16, torch.float16]
SIZES = {  # rows, numbers of each, whether there is a result, choices
    "nothing": (0, 64, True, 0),
    "one number": (1, 1, True, 1),
    "odd": (3, 200, True, 3),
    "choices alone": (5, 64, False, 2),
    "Nemotron 3B": (2, 3072, True, 0),
    "Nemotron 14B": (1, 5120, True, 0),
    "SDAR-30B-A3B": (2, 2048, False, 8),
    "LLaDA2 flash": (1, 4096, True, 8),
}


class Case:
    """Rows between NaNs, a gain, and what is added."""

    def __init__(self, name: str, dtype: torch.dtype, rng: torch.Generator):
        N, H, dense, k = SIZES[name]

        def rows() -> Tensor:
            padded = torch.full((N + 2, H), torch.nan, dtype=dtype)
            size = 2.0 ** torch.randint(-3, 4, (N, 1), generator=rng)
            return padded[1:-1].copy_(torch.randn(N, H, generator=rng) * size)

        self.x = rows()
        self.result = rows() if dense else None
        self.choices = torch.randn(N, k, H, generator=rng).to(dtype) if k else None
        self.gain = (torch.rand(H, generator=rng) + 0.5).to(dtype)

    @property
    def args(self) -> tuple:
        return self.x, self.result, self.choices, self.gain, EPS

    def formula(self) -> list[Bounded]:
        dtype, added = self.x.dtype, None
        if self.choices is not None:
            parts = exact(self.choices)
            added = parts[:, 0]
            for choice in range(1, self.choices.shape[1]):
                added = added.plus(parts[:, choice])
            added = added.stored(dtype)
        if self.result is not None:
            result = exact(self.result)
            added = result if added is None else added.plus(result).stored(dtype)
        assert added is not None
        x = exact(self.x).plus(added).stored(dtype)
        return [x, x.normed(EPS).times(exact(self.gain)).stored(dtype)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", SIZES)
def test_results_are_added_and_the_sum_is_normed(by_kernel, name, dtype, rng):
    case = Case(name, dtype, rng)

    output = add_and_norm(*case.args, by_kernel=by_kernel)

    for actual, bound in zip(output, case.formula(), strict=True):
        assert actual.shape == case.x.shape
        assert actual.dtype == dtype
        assert bound.holds(actual).all()


def test_the_bound_excludes_wrong_results(rng):
    """A choice or a result that is left out, and a gain of ones, are found."""
    case = Case("odd", torch.bfloat16, rng)
    sums, norms = case.formula()
    assert case.choices is not None
    for result, choices in ((None, case.choices), (case.result, case.choices[:, :2])):
        wrong = add_and_norm_reference(case.x, result, choices, case.gain, EPS)
        assert sums.holds(wrong.residual).float().mean() < 0.7
        assert norms.holds(wrong.normed).float().mean() < 0.7
    ones = torch.ones_like(case.gain)
    wrong = add_and_norm_reference(case.x, case.result, case.choices, ones, EPS)
    assert norms.holds(wrong.normed).float().mean() < 0.3


def test_a_row_has_the_same_result_in_any_batch(by_kernel, rng):
    case = Case("odd", torch.bfloat16, rng)
    x, result, choices, gain, eps = case.args
    one = x[1:2], result[1:2], choices[1:2], gain, eps

    alone = add_and_norm(*one, by_kernel=by_kernel)

    together = add_and_norm(*case.args, by_kernel=by_kernel)
    for row, rows in zip(alone, together, strict=True):
        assert torch.equal(row, rows[1:2])


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("x", lambda x: x.float(), r"x is \[N, H\] of bf16 or fp16, got .*float32"),
        ("x", lambda x: x[0], r"x is \[N, H\] of bf16 or fp16, got \[200\]"),
        ("result", lambda r: r[:2], r"result is \[3, 200\] .* as x, got \[2, 200\]"),
        ("result", lambda r: r.half(), "result is .* got .* of torch.float16"),
        ("choices", lambda c: c[:, 0], r"choices are \[3, k, 200\] .* got \[3, 200\]"),
        ("choices", lambda c: c[:, :0], r"choices are .* got \[3, 0, 200\]"),
        ("choices", lambda c: c.to("meta"), "choices are .* on cpu as x, got .* on meta"),
        ("gain", lambda g: g[:9], r"gain is \[200\] floats on cpu, got \[9\]"),
        ("gain", lambda g: g.int(), "gain is .* of torch.int32"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(name, change, message, rng):
    case = Case("odd", torch.bfloat16, rng)
    setattr(case, name, change(getattr(case, name)))

    with pytest.raises(ValueError, match=message):
        add_and_norm(*case.args)


def test_nothing_to_add_is_refused(rng):
    case = Case("odd", torch.bfloat16, rng)
    with pytest.raises(ValueError, match="a result, or one of each choice, must be added"):
        add_and_norm(case.x, None, None, case.gain, EPS)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", SIZES)
def test_a_gpu_computes_the_formula(name, dtype, rng):
    case = Case(name, dtype, rng)
    tensors = (x if x is None else x.cuda() for x in case.args[:-1])

    for actual, bound in zip(add_and_norm(*tensors, EPS), case.formula(), strict=True):
        assert bound.holds(actual).all()
