"""Heads that are normed and rotated, against fp64 with a bound of all roundings."""

import pytest
import torch
from bounded import Bounded, exact
from torch import Tensor

from dlm.kernels.rotary import (
    norm_and_rotate,
    norm_and_rotate_reference,
    rotate_and_scale,
    rotate_and_scale_reference,
)

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


PLAIN = {  # rows, heads of queries, of keys, numbers of each, of them that turn, whether normed
    "nothing": (0, 4, 2, 32, 32, True),
    "least": (1, 1, 1, 2, 2, False),
    "odd": (3, 5, 3, 24, 10, True),
    "Nemotron": (2, 32, 8, 128, 128, False),
    "SDAR": (2, 32, 4, 128, 128, True),
    "LLaDA2": (2, 16, 4, 128, 64, True),
}


class Case:
    """Heads that are parts of wider rows, whose other numbers are NaN."""

    def __init__(self, size: tuple, dtype: torch.dtype, rng: torch.Generator):
        N, Hq, h, D, shared = size
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
    case = Case(SIZES[name], dtype, rng)

    found = norm_and_rotate(*case.args, by_kernel=by_kernel)

    before = case.q, case.k, case.v
    for actual, given, expected in zip(found, before, formula(case), strict=True):
        assert actual.shape == given.shape
        assert actual.dtype == dtype
        assert actual.is_contiguous()
        assert expected.holds(actual).all()


def test_the_bound_excludes_wrong_results(rng):
    """Negative angles and swapped gains are found."""
    case = Case(SIZES["no values"], torch.bfloat16, rng)
    expected = formula(case)
    cos, sin = case.angles
    for q, k in (
        norm_and_rotate_reference(*case.args[:-2], -sin, EPS)[:2],
        norm_and_rotate_reference(case.q, case.k, case.v, *case.gains[::-1], cos, sin, EPS)[:2],
    ):
        assert expected[0].holds(q).float().mean() < 0.3
        assert expected[1].holds(k).float().mean() < 0.3


def test_a_row_has_the_same_result_in_any_batch(by_kernel, rng):
    case = Case(SIZES["odd"], torch.bfloat16, rng)
    q, k, v, q_gain, k_gain, cos, sin, eps = case.args
    rows = [x[1:2] for x in (q, k, v)]
    turns = cos[1:2], sin[1:2]

    alone = norm_and_rotate(*rows, q_gain, k_gain, *turns, eps, by_kernel=by_kernel)

    together = norm_and_rotate(*case.args, by_kernel=by_kernel)
    for one, many in zip(alone, together, strict=True):
        assert torch.equal(one, many[1:2])


class PlainCase(Case):
    """Heads of a plain decoder: a part of their numbers turns in fp32, and queries are scaled."""

    def __init__(self, name: str, dtype: torch.dtype, rng: torch.Generator):
        N, Hq, h, D, self.turning, self.normed = PLAIN[name]
        super().__init__((N, Hq, h, D, False), dtype, rng)
        self.angles = tuple(angle[..., : self.turning] for angle in self.angles)
        self.scale = torch.rand(N, 1, 1, generator=rng) + 0.5

    @property
    def args(self) -> tuple:
        gains = (self.gains[0], self.gains[1]) if self.normed else None
        return self.q, self.k, self.v, gains, *self.angles, self.scale, EPS

    def formula(self) -> list[Bounded]:
        dtype, heads = self.q.dtype, [exact(self.q), exact(self.k)]
        if self.normed:
            heads = [
                x.normed(EPS).times(exact(gain)).stored(dtype)
                for x, gain in zip(heads, self.gains, strict=True)
            ]
        cos, sin = map(exact, self.angles)
        q, k = (turned(x, cos, sin, self.turning) for x in heads)
        return [q.times(exact(self.scale)).stored(dtype), k.stored(dtype), exact(self.v)]


def turned(x: Bounded, cos: Bounded, sin: Bounded, turning: int) -> Bounded:
    """Return heads whose first numbers turn, without a rounding between."""
    part, half = x[..., :turning], turning // 2
    sign = torch.ones(part.value.shape, dtype=torch.float64)
    sign[..., :half] = -1
    swapped = Bounded(part.value.roll(half, -1) * sign, part.off.roll(half, -1))
    part = part.times(cos).plus(swapped.times(sin))
    joined = zip(part, x[..., turning:], strict=True)
    return Bounded(*(torch.cat(both, -1) for both in joined))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", PLAIN)
def test_a_part_of_a_head_turns_in_fp32_and_queries_are_scaled(by_kernel, name, dtype, rng):
    case = PlainCase(name, dtype, rng)

    heads = rotate_and_scale(*case.args, by_kernel=by_kernel)

    before = case.q, case.k, case.v
    for actual, given, expected in zip(heads, before, case.formula(), strict=True):
        assert actual.shape == given.shape
        assert actual.dtype == dtype
        assert actual.is_contiguous()
        assert expected.holds(actual).all()


def test_the_bound_of_a_part_excludes_wrong_results(rng):
    """Negative angles, another part, a scale that is left out, and heads that are not normed are
    found."""
    case = PlainCase("LLaDA2", torch.bfloat16, rng)
    q, k, _ = case.formula()
    cos, sin = case.angles
    heads, gains = (case.q, case.k, case.v), (case.gains[0], case.gains[1])
    for args, part in (
        ((gains, cos, -sin, case.scale), slice(0, 64)),
        ((gains, cos[..., :32], sin[..., :32], case.scale), slice(16, 64)),
        ((None, cos, sin, case.scale), slice(0, 128)),
    ):
        wrong = rotate_and_scale_reference(*heads, *args, EPS)
        assert q.holds(wrong[0])[..., part].float().mean() < 0.3
        assert k.holds(wrong[1])[..., part].float().mean() < 0.3
    unscaled = rotate_and_scale_reference(*heads, gains, cos, sin, torch.ones_like(case.scale), EPS)
    assert q.holds(unscaled[0]).float().mean() < 0.3


def test_a_row_of_a_plain_decoder_has_the_same_result_in_any_batch(by_kernel, rng):
    case = PlainCase("odd", torch.bfloat16, rng)
    q, k, v, gains, cos, sin, scale, eps = case.args
    q, k, v, cos, sin, scale = (x[1:2] for x in (q, k, v, cos, sin, scale))

    alone = rotate_and_scale(q, k, v, gains, cos, sin, scale, eps, by_kernel=by_kernel)

    together = rotate_and_scale(*case.args, by_kernel=by_kernel)
    for one, many in zip(alone, together, strict=True):
        assert torch.equal(one, many[1:2])


@pytest.mark.parametrize(
    ("at", "change", "message"),
    [
        (0, lambda q: q.float(), r"q is \[N, Hq, D\] of bf16 or fp16, .* of torch.float32"),
        (3, lambda gains: (gains[0], gains[1][:9]), r"k_gain is \[24\] floats, got \[9\]"),
        (4, lambda cos: cos[..., :8], r"sin is \[3, 1, 8\] of fp32, got \[3, 1, 10\]"),
        (6, lambda scale: scale[:, 0], r"query_scale is \[3, 1, 1\] of fp32 .* got \[3, 1\]"),
        (6, lambda scale: scale.double(), "query_scale is .* got .* of torch.float64"),
    ],
)
def test_arguments_of_a_part_that_do_not_fit_are_refused(at, change, message, rng):
    args = [*PlainCase("odd", torch.bfloat16, rng).args]
    args[at] = change(args[at])

    with pytest.raises(ValueError, match=message):
        rotate_and_scale(*args)


@pytest.mark.parametrize("turning", [0, 9, 26])
def test_an_odd_part_and_more_numbers_than_a_head_has_are_refused(turning, rng):
    args = [*PlainCase("odd", torch.bfloat16, rng).args]
    args[4] = args[5] = torch.ones(3, 1, turning)

    with pytest.raises(ValueError, match=f"2 to 24 numbers turn, an even count, got {turning}"):
        rotate_and_scale(*args)


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
    args = [*Case(SIZES["odd"], torch.bfloat16, rng).args]
    args[at] = change(args[at])

    with pytest.raises(ValueError, match=message):
        norm_and_rotate(*args)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", SIZES)
def test_a_gpu_computes_the_formula(name, dtype, rng):
    case = Case(SIZES[name], dtype, rng)
    expected = formula(case)

    found = norm_and_rotate(*(part.cuda() for part in case.args[:-1]), EPS)

    for actual, bound in zip(found, expected, strict=True):
        assert bound.holds(actual).all()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", PLAIN)
def test_a_gpu_turns_a_part_of_a_head(name, dtype, rng):
    case = PlainCase(name, dtype, rng)
    q, k, v, gains, cos, sin, scale, eps = case.args
    q, k, v, cos, sin, scale = (x.cuda() for x in (q, k, v, cos, sin, scale))
    gains = None if gains is None else tuple(gain.cuda() for gain in gains)

    heads = rotate_and_scale(q, k, v, gains, cos, sin, scale, eps)

    for actual, bound in zip(heads, case.formula(), strict=True):
        assert bound.holds(actual).all()
