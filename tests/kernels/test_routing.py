"""Choices of experts, and slots sorted by expert."""

import pytest
import torch
from bounded import U
from torch import Tensor

from dlm.kernels.routing import (
    choose,
    choose_in_groups,
    choose_in_groups_reference,
    choose_reference,
    route,
    sort_slots,
)

DTYPES = [torch.bfloat16, torch.float16]
SIZES = [(0, 4, 2), (1, 1, 1), (3, 5, 5), (7, 37, 3), (4, 128, 8), (2, 256, 8)]  # N, E, k
GROUPED = {  # tokens, experts, of a token, groups, of a token
    "none": (0, 4, 2, 2, 1),
    "one": (1, 1, 1, 1, 1),
    "groups of one": (3, 5, 2, 5, 3),
    "odd": (7, 21, 4, 3, 2),
    "all": (5, 6, 6, 2, 2),
    "LLaDA2": (3, 256, 8, 8, 4),
}
SLOTS = {  # tokens, choices, experts, and the first that is chosen
    "none": (0, 2, 5, 0),
    "one": (1, 1, 1, 0),
    "spread": (23, 3, 6, 0),
    "last alone": (40, 1, 5, 4),
    "mostly empty": (2, 2, 33, 0),
    "several blocks": (700, 8, 7, 0),
    "a whole block": (256, 8, 3, 0),
}


def drawn(N: int, E: int, dtype: torch.dtype, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return logits, a quarter of them equal to others, and scales of experts."""
    logits = torch.randn(N, E, generator=rng) * 3
    equal = torch.rand(N, E, generator=rng) < 0.25
    logits = torch.where(equal, logits.round(), logits)
    return logits.to(dtype), (torch.rand(E, generator=rng) + 0.5).to(dtype)


def check(weight: Tensor, expert: Tensor, logits: Tensor, scale: Tensor, k: int) -> None:
    """Assert in fp64: the error of exp(x) is 4 u, and u of x; that of a sum is k u."""
    x = logits.double()
    best = sorted_by_size(x)[:, :k]
    assert torch.equal(expert, best)
    chosen = x.gather(1, best).softmax(-1) * scale.double()[best]
    span = (x.amax(-1, keepdim=True) - x.amin(-1, keepdim=True)) if x.numel() else x[:, :1]
    assert weight.dtype == torch.float32
    assert (
        (weight.double() - chosen).abs() <= chosen * (logits.shape[1] + 16 + 4 * span) * U
    ).all()


def sorted_by_size(x: Tensor) -> Tensor:
    """Return experts by descending logits, of equal ones the lower first, as Python sorts them."""
    rows = [sorted(range(len(row)), key=lambda e: (-row[e], e)) for row in x.tolist()]
    return torch.tensor(rows, dtype=torch.int64).view(x.shape)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("N", "E", "k"), SIZES)
def test_the_highest_logits_are_chosen_and_weighted(by_kernel, N, E, k, dtype, rng):
    logits, scale = drawn(N, E, dtype, rng)

    weight, expert = choose(logits, scale, k, by_kernel=by_kernel)

    assert weight.shape == expert.shape == (N, k)
    assert expert.dtype == torch.int64
    check(weight, expert, logits, scale, k)


def test_weights_without_scales_of_experts_are_a_softmax(by_kernel, rng):
    logits, _ = drawn(7, 37, torch.bfloat16, rng)

    weight, expert = choose(logits, None, 3, by_kernel=by_kernel)

    check(weight, expert, logits, torch.ones(37), 3)


class Grouped:
    """Logits of which a quarter are equal to others, biases, and the numbers of a choice."""

    def __init__(self, name: str, rng: torch.Generator):
        N, E, self.k, self.groups, self.groups_per_token = GROUPED[name]
        logits = torch.randn(N, E, generator=rng)
        equal = torch.rand(N, E, generator=rng) < 0.25
        self.logits = torch.where(equal, logits.round(), logits)
        self.bias = (torch.randn(E, generator=rng) / 4).round(decimals=1)

    @property
    def args(self) -> tuple:
        return self.logits, self.bias, self.k, self.groups, self.groups_per_token, 2.5

    def holds(self, weight: Tensor, expert: Tensor) -> bool:
        """Whether choices are the best ones in fp64, or differ from them by rounding; a sigmoid is
        off by 4 u, a sum of `k` by k u."""
        scores = self.logits.double().sigmoid()
        biased, tie = scores + self.bias.double(), 8 * U
        size = biased.shape[1] // self.groups
        for row, chosen in zip(biased.tolist(), expert.tolist(), strict=True):
            groups = [sorted(row[g * size :][:size])[-2:] for g in range(self.groups)]
            order = sorted(range(self.groups), key=lambda g: -sum(groups[g]))
            allowed = {e // size for e in chosen}
            least = sum(groups[order[self.groups_per_token - 1]])
            if any(sum(groups[g]) < least - tie for g in allowed):
                return False
            best = [e for e in range(len(row)) if e // size in order[: self.groups_per_token]]
            best = sorted((row[e] for e in best), reverse=True)[: self.k]
            if len({*chosen}) < self.k or any(
                abs(row[e] - score) > tie for e, score in zip(chosen, best, strict=True)
            ):
                return False
        picked = scores.gather(1, expert)
        exact = picked / picked.sum(-1, keepdim=True) * 2.5
        return bool(((weight.double() - exact).abs() <= exact * (16 + 2 * self.k) * U).all())


@pytest.mark.parametrize("name", GROUPED)
def test_experts_are_chosen_of_the_best_groups_by_biased_sigmoids(by_kernel, name, rng):
    case = Grouped(name, rng)

    weight, expert = choose_in_groups(*case.args, by_kernel=by_kernel)

    assert weight.shape == expert.shape == (len(case.logits), case.k)
    assert (weight.dtype, expert.dtype) == (torch.float32, torch.int64)
    assert case.holds(weight, expert)


def test_wrong_choices_in_groups_are_found(rng):
    """A bias that is left out or is part of the weights, another number of groups, and weights that
    are slightly too small."""
    case = Grouped("odd", rng)
    logits, bias, k, groups, per_token, scale = case.args
    weight, expert = choose_in_groups_reference(*case.args)
    assert case.holds(weight, expert)
    for wrong in (
        choose_in_groups_reference(logits, 0 * bias, k, groups, per_token, scale),
        choose_in_groups_reference(logits, bias, k, groups, groups, scale),
        choose_in_groups_reference(logits, bias, k, 7, 4, scale),
        (weight * (1 - 2**-16), expert),
        (weight, expert.flip(-1)),
    ):
        assert not case.holds(*wrong)


def test_the_lower_of_equal_experts_and_groups_comes_first(by_kernel):
    logits, bias = torch.zeros(2, 12), torch.zeros(12)
    logits[1, 7] = logits[1, 4] = 1
    expert = choose_in_groups(logits, bias, 3, 4, 2, 1.0, by_kernel=by_kernel).expert
    assert expert.tolist() == [[0, 1, 2], [4, 7, 3]]


def test_a_nan_among_groups_gives_valid_experts_and_weights_of_nan(by_kernel):
    logits = torch.zeros(2, 12)
    logits[0, 8] = torch.nan
    weight, expert = choose_in_groups(logits, torch.zeros(12), 3, 4, 2, 1.0, by_kernel=by_kernel)
    assert weight[0].isnan().all()
    assert expert[0, 0] == 8
    assert ((expert >= 0) & (expert < 12)).all()
    assert not weight[1].isnan().any()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({0: lambda logits: logits.half()}, r"logits are \[N, E\] of fp32, got .* torch.float16"),
        ({3: lambda groups: 4}, "groups must divide the experts, of at most 4096, got 4 of 21"),
        ({4: lambda chosen: 4}, "groups_per_token must be 1 to 3, got 4"),
        ({2: lambda k: 15}, "k must be 1 to 14, the experts of a token's groups, got 15"),
        ({1: lambda bias: bias[:5]}, r"bias is \[21\] of fp32 on cpu, got \[5\]"),
        ({1: lambda bias: bias.double()}, "got .* of torch.float64"),
    ],
)
def test_arguments_of_a_choice_in_groups_that_do_not_fit_are_refused(change, message, rng):
    args = [*Grouped("odd", rng).args]
    for at, changed in change.items():
        args[at] = changed(args[at])
    with pytest.raises(ValueError, match=message):
        choose_in_groups(*args)


def test_the_bound_excludes_wrong_results(rng):
    """A scale that is left out, and weights that are slightly too small, are found."""
    logits, scale = drawn(7, 37, torch.bfloat16, rng)
    weight, expert = choose_reference(logits, scale, 3)
    for wrong in (weight / scale.float()[expert], weight * (1 - 2**-16)):
        with pytest.raises(AssertionError):
            check(wrong, expert, logits, scale, 3)


def test_the_lower_of_experts_with_equal_logits_comes_first_also_at_zeros_of_both_signs(by_kernel):
    inf = float("inf")
    rows = [[-1, 0.0, -0.0, 0.0, -2], [-inf, -inf, 5, 5, -inf], [-0.0, 1e-7, 0.0, -1e-7, -3]]
    for dtype in DTYPES:
        logits = torch.tensor(rows).to(dtype)
        expert = choose(logits, torch.ones(5, dtype=dtype), 4, by_kernel=by_kernel).expert
        assert expert.tolist() == [[1, 2, 3, 0], [2, 3, 0, 1], [1, 0, 2, 3]]


def test_all_finite_numbers_of_a_type_are_ordered():
    """A row has 256 of them."""
    for dtype in DTYPES:
        every = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(dtype)
        every = every[every.isfinite()]
        few = every[torch.arange(0, len(every) // 4096 * 4096, 1).view(-1, 256).T][:, ::8].T
        expert = choose(few.contiguous(), torch.ones(256), 1, by_kernel=True).expert
        assert torch.equal(expert, sorted_by_size(few.double())[:, :1])


@pytest.mark.parametrize("sign", [1, -1])
def test_a_row_with_a_nan_has_valid_experts_and_weights_of_nan(by_kernel, sign):
    logits = torch.tensor([[1.0, 2, sign * torch.nan, 3], [1, 2, 3, 4]]).bfloat16()
    weight, expert = choose(logits, torch.ones(4), 2, by_kernel=by_kernel)
    assert weight[0].isnan().all()
    assert expert[0, 0] == 2
    assert ((expert >= 0) & (expert < 4)).all()
    assert expert[1].tolist() == [3, 2]
    assert not weight[1].isnan().any()


def test_a_token_has_the_same_choices_in_any_batch(by_kernel, rng):
    logits, scale = drawn(7, 37, torch.bfloat16, rng)
    alone = choose(logits[4:5], scale, 3, by_kernel=by_kernel)
    for one, many in zip(alone, choose(logits, scale, 3, by_kernel=by_kernel), strict=True):
        assert torch.equal(one, many[4:5])


def test_a_route_sorts_slots_by_expert_and_keeps_the_order_of_tokens():
    order, starts = route(torch.tensor([[3, 1], [1, 5], [3, 1]]), 6)

    assert order.tolist() == [1, 2, 5, 0, 4, 3]
    assert starts.tolist() == [0, 0, 3, 3, 5, 5, 6]


@pytest.mark.parametrize("name", SLOTS)
def test_slots_are_sorted_by_expert_in_the_order_of_tokens(by_kernel, name, rng):
    N, k, E, least = SLOTS[name]
    expert = torch.randint(least, E, (N, k), generator=rng)

    found = sort_slots(expert, E, by_kernel=by_kernel)

    for actual, expected in zip(found, route(expert, E), strict=True):
        assert actual.dtype == torch.int64
        assert torch.equal(actual, expected)
    slots = sorted(range(N * k), key=lambda slot: (expert.flatten()[slot].item(), slot))
    assert found.order.tolist() == slots


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda x, s: choose(x.float(), s, 2),
            r"logits are \[N, E\] of bf16 or fp16, got .*float32",
        ),
        (lambda x, s: choose(x, s, 6), "k must be 1 to 5, the experts, of at most 4096, got 6"),
        (lambda x, s: choose(x, s, 0), "k must be 1 to 5, the experts, of at most 4096, got 0"),
        (lambda x, s: choose(x, s[:4], 2), r"scale is \[5\] floats on cpu, got \[4\]"),
        (lambda x, s: choose(x, s.to("meta"), 2), "on meta"),
        (lambda x, s: sort_slots(x, 5), r"expert is \[N, k\] of int64, .* got .* torch.bfloat16"),
        (lambda x, s: sort_slots(x.long()[0], 5), r"got \[5\] of torch.int64"),
        (lambda x, s: sort_slots(x.long(), 0), "of 0"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(call, message, rng):
    with pytest.raises(ValueError, match=message):
        call(*drawn(3, 5, torch.bfloat16, rng))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("N", "E", "k"), [*SIZES, (256, 128, 8)])
def test_a_gpu_chooses_by_the_formula(N, E, k, dtype, rng):
    logits, scale = drawn(N, E, dtype, rng)
    weight, expert = choose(logits.cuda(), scale.cuda(), k)
    check(weight.cpu(), expert.cpu(), logits, scale, k)


@pytest.mark.gpu
@pytest.mark.parametrize("name", GROUPED)
def test_a_gpu_chooses_in_groups(name, rng):
    case = Grouped(name, rng)
    logits, bias, *numbers = case.args
    weight, expert = choose_in_groups(logits.cuda(), bias.cuda(), *numbers)
    assert case.holds(weight.cpu(), expert.cpu())


@pytest.mark.gpu
@pytest.mark.parametrize("tokens", [0, 1, 256, 4096])
def test_a_gpu_sorts_slots_as_torch_does(tokens, rng):
    expert = torch.randint(128, (tokens, 8), generator=rng)
    for actual, expected in zip(sort_slots(expert.cuda(), 128), route(expert, 128), strict=True):
        assert torch.equal(actual.cpu(), expected)
