"""Heads that are normed and rotated, against fp64 with a bound of all roundings."""

import pytest
import torch
from bounded import Bounded, exact
from torch import Tensor

from dlm.kernels.rotary import norm_and_rotate, norm_and_rotate_reference

EPS = 1e-6
DTYPES = [torch.bfloat16, torch.float16]
SIZES = {  # rows, heads of queries, of keys, numbers of each; whether values are the keys
    "nothing": (0, 4, 2, 32, False),
    "one row": (1, 1, 1, 2, False),
    "odd": (3, 5, 3, 24, False),
    "no values": (3, 6, 2, 32, True),
    "sliding": (2, 16, 8, 256, False),
    "full": (2, 16, 2, 512, True),
}


class Case:
    """Heads that are parts of wider rows, whose other numbers are NaN."""

    def __init__(self, name: str, dtype: torch.dtype, rng: torch.Generator):
        N, Hq, h, D, shared = SIZES[name]
        sizes = [Hq * D, h * D] + [h * D] * (not shared)
        rows = torch.full((N, sum(sizes) + 16), torch.nan, dtype=dtype)[:, 8:-8]
        rows.copy_(torch.randn(N, sum(sizes), generator=rng) * 3)
        self.q, self.k, *v = (part.unflatten(-1, (-1, D)) for part in rows.split(sizes, -1))
        self.v = v[0] if v else self.k
        self.gains = [(torch.rand(D, generator=rng) + 0.5).to(dtype) for _ in range(2)]
        angle = torch.rand(N, 1, D, generator=rng) * 6.3  # not the same in both halves
        self.angles = angle.cos(), angle.sin()

    @property
    def args(self) -> tuple:
        return self.q, self.k, self.v, *self.gains, *self.angles, EPS


def formula(case: Case) -> list[Bounded]:
    dtype = case.q.dtype
    q, k = (
        rotated(exact(x).normed(EPS).times(exact(gain)).stored(dtype), *case.angles, dtype)
        for x, gain in zip((case.q, case.k), case.gains, strict=True)
    )
    return [q, k, exact(case.v).normed(EPS).stored(dtype)]


def rotated(x: Bounded, cos: Tensor, sin: Tensor, dtype: torch.dtype) -> Bounded:
    half = x.value.shape[-1] // 2
    sign = torch.ones(x.value.shape, dtype=torch.float64)
    sign[..., :half] = -1
    swapped = Bounded(x.value.roll(half, -1) * sign, x.off.roll(half, -1))
    one, other = (
        part.times(exact(angle.to(dtype))).stored(dtype)
        for part, angle in ((x, cos), (swapped, sin))
    )
    return one.plus(other).stored(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", SIZES)
def test_queries_and_keys_are_normed_and_rotated_and_values_normed(by_kernel, name, dtype, rng):
    case = Case(name, dtype, rng)

    found = norm_and_rotate(*case.args, by_kernel=by_kernel)

    before = case.q, case.k, case.v
    for actual, given, expected in zip(found, before, formula(case), strict=True):
        assert actual.shape == given.shape
        assert actual.dtype == dtype
        assert actual.is_contiguous()
        assert expected.holds(actual).all()


def test_the_bound_excludes_wrong_results(rng):
    """Negative angles and swapped gains are found."""
    case = Case("no values", torch.bfloat16, rng)
    expected = formula(case)
    cos, sin = case.angles
    for q, k in (
        norm_and_rotate_reference(*case.args[:-2], -sin, EPS)[:2],
        norm_and_rotate_reference(case.q, case.k, case.v, *case.gains[::-1], cos, sin, EPS)[:2],
    ):
        assert expected[0].holds(q).float().mean() < 0.3
        assert expected[1].holds(k).float().mean() < 0.3


def test_a_row_has_the_same_result_in_any_batch(by_kernel, rng):
    case = Case("odd", torch.bfloat16, rng)
    q, k, v, q_gain, k_gain, cos, sin, eps = case.args
    rows = [x[1:2] for x in (q, k, v)]
    turns = cos[1:2], sin[1:2]

    alone = norm_and_rotate(*rows, q_gain, k_gain, *turns, eps, by_kernel=by_kernel)

    together = norm_and_rotate(*case.args, by_kernel=by_kernel)
    for one, many in zip(alone, together, strict=True):
        assert torch.equal(one, many[1:2])


@pytest.mark.parametrize(
    ("at", "change", "message"),
    [
        (0, lambda q: q.float(), r"q is \[N, Hq, D\] of bf16 or fp16, .* of torch.float32"),
        (0, lambda q: q[..., :9], r"D even, got \[3, 5, 9\]"),
        (0, lambda q: q.transpose(1, 2).contiguous().transpose(1, 2), "row of q must be adjacent"),
        (1, lambda k: k[:2], r"k is \[3, h, 24\] of torch.bfloat16, got \[2, 3, 24\]"),
        (2, lambda v: v[:, :2], r"v is \[3, 3, 24\] as k, got \[3, 2, 24\]"),
        (2, lambda v: v.half(), "v is .* of torch.bfloat16, got .* of torch.float16"),
        (3, lambda g: g[:9], r"q_gain is \[24\] floats, got \[9\]"),
        (4, lambda g: g.long(), "k_gain is .* of torch.int64"),
        (5, lambda c: c[:, 0], r"cos is \[3, 1, 24\] of fp32, got \[3, 24\]"),
        (6, lambda s: s.double(), "sin is .* of torch.float64"),
        (6, lambda s: s.to("meta"), r"are on \['cpu', 'meta'\]"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(at, change, message, rng):
    args = [*Case("odd", torch.bfloat16, rng).args]
    args[at] = change(args[at])

    with pytest.raises(ValueError, match=message):
        norm_and_rotate(*args)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", SIZES)
def test_a_gpu_computes_the_formula(name, dtype, rng):
    case = Case(name, dtype, rng)
    expected = formula(case)

    found = norm_and_rotate(*(part.cuda() for part in case.args[:-1]), EPS)

    for actual, bound in zip(found, expected, strict=True):
        assert bound.holds(actual).all()
