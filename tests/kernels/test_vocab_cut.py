"""Masks of the likeliest tokens, against the definition in fp64 and transformers' own warpers."""

import math

import pytest
import torch
from exhaustive import by_default, examples
from hypothesis import given
from hypothesis import strategies as st
from random_rows import random_logits, random_masks
from torch import Tensor
from transformers import MinPLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from dlm.kernels.vocab import vocab_pass
from dlm.kernels.vocab_cut import Cuts, cut_masks, cut_masks_reference
from dlm.kernels.vocab_rows import RowMasks

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
NEAR = 1e-5  # the error in fp32 of a probability or a share


def cuts_of(n: int, top_k=0, top_p=1.0, min_p=0.0) -> Cuts:
    """Return cuts of n rows; a list has one number for each row."""
    columns = (torch.tensor(c if isinstance(c, list) else [c] * n) for c in (top_k, top_p, min_p))
    k, p, least = columns
    return Cuts(k.int(), p.float(), least.float())


def bits(masks: RowMasks, V: int) -> Tensor:
    token = torch.arange(V)
    return (masks.bitmask[masks.rows][:, token // 32] >> token % 32 & 1).bool()


def check(actual: RowMasks, logits: Tensor, heat: Tensor, cuts: Cuts, *args, **kw) -> None:
    """Assert that `actual` lies between the reference's masks for stricter and laxer cuts."""
    V, k = logits.shape[1], cuts.top_k
    strict = Cuts(
        k, (cuts.top_p - NEAR * (cuts.top_p < 1)).clamp(min=1e-9), cuts.min_p * (1 + NEAR)
    )
    strict = strict._replace(min_p=strict.min_p.clamp(max=1))
    lax = Cuts(k, (cuts.top_p + NEAR).clamp(max=1), cuts.min_p * (1 - NEAR))
    fewest, most = (
        bits(cut_masks_reference(logits, heat, some, *args, **kw), V) for some in (strict, lax)
    )
    found = bits(actual, V)
    assert actual.bitmask.shape == (len(heat), -(-V // 32))
    assert (fewest <= found).all()
    assert (found <= most).all()


@pytest.mark.parametrize(
    ("V", "softcap", "dtype"),
    by_default(
        [
            *[(1, None, torch.bfloat16), (33, 30.0, torch.float16), (4097, None, torch.float32)],
            *[(4097, None, torch.bfloat16), (33, 30.0, torch.float32), (1, None, torch.float32)],
            *[(4097, None, torch.float16), (33, 30.0, torch.bfloat16), (1, None, torch.float16)],
        ],
        4,
    ),
    ids=str,
)
def test_the_kernel_cuts_as_the_reference_does(V, softcap, dtype, rng):
    logits, masks = random_logits(4, V, dtype, rng), random_masks(4, V, rng)
    heat = torch.rand(4, generator=rng) * 2 + 0.5
    cuts = cuts_of(4, [9, 3, 500, 0], [0.9, 1.0, 0.95, 0.3], [0.0, 0.1, 0.001, 0.0])

    actual = cut_masks(logits, heat, cuts, masks, softcap=softcap, by_kernel=True)

    check(actual, logits, heat, cuts, masks, softcap=softcap)


@given(
    n=st.integers(0, 7),
    V=st.integers(1, 100) | st.sampled_from([511, 513, 10_000, 60_000]),
    dtype=st.sampled_from(DTYPES),
    softcap=st.sampled_from([None, 5.0]),
    top_k=st.sampled_from([0, 1, 2, 40, 500, 2**31 - 1]),
    top_p=st.sampled_from([1.0, 0.999, 0.95, 0.5, 0.01, 1e-9]),
    min_p=st.sampled_from([0.0, 1e-6, 0.05, 0.5, 1.0]),
    seed=st.integers(0, 1000),
)
@examples(80)
def test_the_cpu_path_cuts_as_the_reference_does(n, V, dtype, softcap, top_k, top_p, min_p, seed):
    rng = torch.Generator().manual_seed(seed)
    logits, masks = random_logits(n, V, dtype, rng), random_masks(n, V, rng)
    heat, cuts = torch.rand(n, generator=rng) * 2 + 0.5, cuts_of(n, top_k, top_p, min_p)

    check(
        cut_masks(logits, heat, cuts, masks, softcap=softcap),
        logits,
        heat,
        cuts,
        masks,
        softcap=softcap,
    )


@pytest.mark.parametrize(
    "cut", [(500, 1.0, 0.0), (0, 0.9, 0.0), (0, 1.0, 0.05), (40, 0.8, 0.02), (1, 1.0, 0.0)]
)
def test_transformers_own_warpers_leave_the_same_tokens(cut, by_kernel, rng):
    """Min-p, top-k and top-p are applied in this order, on logits that all differ."""
    V, (k, p, least) = 3000, cut
    logits = torch.linspace(-6, 6, V)[torch.randperm(V, generator=rng)].repeat(2, 1)
    heat, expected = torch.tensor([0.5, 2.0]), logits * torch.tensor([[0.5], [2.0]])
    for warper, wanted in (
        (MinPLogitsWarper(least), least > 0),
        (TopKLogitsWarper(max(k, 1)), k > 0),
        (TopPLogitsWarper(p), p < 1),
    ):
        expected = warper(torch.zeros(2, 1, dtype=torch.long), expected) if wanted else expected

    actual = cut_masks(logits, heat, cuts_of(2, k, p, least), by_kernel=by_kernel)

    assert torch.equal(bits(actual, V), ~expected.isneginf())


def test_a_cut_to_one_token_leaves_the_argmax(by_kernel, rng):
    """The cut is by top-k, by top-p or by min-p."""
    logits, masks = random_logits(6, 700, torch.float32, rng)[3:], random_masks(3, 700, rng)
    logits += torch.rand(3, 700, generator=rng)  # no two are equal
    heat, uniform = torch.ones(3), torch.rand(3, generator=rng)
    expected = vocab_pass(logits, heat, uniform, masks).argmax

    for one in ((1,), (0, 1e-9), (0, 1.0, 1.0)):
        found = cut_masks(logits, heat, cuts_of(3, *one), masks, by_kernel=by_kernel)
        actual = vocab_pass(logits, heat, uniform, found)
        assert torch.equal(actual.argmax, expected)
        assert torch.equal(actual.draw, expected)
        assert not actual.entropy.any()


def test_tokens_of_equal_logits_stay_together(by_kernel):
    logits = torch.tensor([[5.0, 3, 3, 3, -0.0, 0.0, -1, -torch.inf]])
    stay = {
        (2, 1.0, 0.0): 4,
        (5, 1.0, 0.0): 6,
        (8, 1.0, 0.0): 7,
        (0, 0.9, 0.0): 4,
        (0, 0.5, 0.0): 1,
        (0, 1.0, 0.13): 4,
        (0, 1.0, 0.14): 1,
    }
    cuts = cuts_of(len(stay), *map(list, zip(*stay, strict=True)))

    found = cut_masks(logits.repeat(len(stay), 1), torch.ones(len(stay)), cuts, by_kernel=by_kernel)

    for row, count in zip(bits(found, 8).tolist(), stay.values(), strict=True):
        assert row == [True] * count + [False] * (8 - count)


def test_the_cut_is_made_among_the_tokens_that_a_mask_allows(by_kernel):
    """The only allowed token remains, even the worst of all; of two, the better one."""
    logits = torch.arange(100.0)[None].repeat(3, 1)
    bitmask = torch.zeros(2, 4, dtype=torch.int32)
    bitmask[0, 0], bitmask[1, 0] = 1 << 3, 1 << 3 | 1 << 5
    masks = RowMasks(bitmask, torch.tensor([0, 1, -1]))
    cuts = cuts_of(3, [1, 0, 0], [1.0, 0.1, 1.0], [0.0, 0.0, 0.9])

    found = cut_masks(logits, torch.ones(3), cuts, masks, by_kernel=by_kernel)

    assert bits(found, 100).nonzero().tolist() == [[0, 3], [1, 5], [2, 99]]


def test_a_row_without_a_cut_keeps_its_mask(by_kernel, rng):
    logits, masks = random_logits(4, 5000, torch.bfloat16, rng), random_masks(4, 5000, rng)
    args = torch.ones(4), torch.rand(4, generator=rng)
    masks.rows[1] = -1
    found = cut_masks(logits, args[0], cuts_of(4, [0, 9, 0, 2]), masks, by_kernel=by_kernel)

    cut, whole = (vocab_pass(logits, *args, some).packed() for some in (found, masks))

    assert torch.equal(cut[::2], whole[::2])
    assert not torch.equal(cut[1], whole[1])


def test_chosen_rows_have_the_cuts_of_these_rows_alone(by_kernel, rng):
    logits, masks = random_logits(6, 700, torch.bfloat16, rng), random_masks(4, 700, rng)
    rows, heat = torch.tensor([4, 1, 1, 5]), torch.rand(4, generator=rng) + 0.5
    cuts = cuts_of(4, [5, 900, 0, 7], [0.9, 0.99, 0.5, 1.0])

    actual = cut_masks(logits, heat, cuts, masks, rows, by_kernel=by_kernel)

    alone = [
        cut_masks(logits[rows[i, None]], heat[i, None], Cuts(*(c[i, None] for c in cuts)),
                  RowMasks(masks.bitmask, masks.rows[i, None]), by_kernel=by_kernel).bitmask
        for i in range(4)
    ]  # fmt: skip
    assert torch.equal(actual.bitmask, torch.cat(alone))


def test_memory_around_the_arguments_is_neither_read_nor_written(by_kernel, rng):
    """Logits of forbidden tokens may also be NaN or infinite."""
    V, dtype = 4200, torch.float16
    padded = torch.full((5, V + 77), torch.nan).to(dtype)
    logits = padded[1:4, 7 : 7 + V]
    logits.copy_(random_logits(3, V, dtype, rng))
    logits[1, 5:9] = torch.tensor([math.nan, math.inf, -math.nan, math.nan])
    wide = torch.full((4, 132 + 9), -1, dtype=torch.int32)
    wide[2, 5] = 1
    masks, heat = RowMasks(wide[1:3, 5:-4], torch.tensor([-1, 1, 1])), torch.ones(3)
    cuts = cuts_of(3, 50, 0.9)

    actual = cut_masks(logits, heat, cuts, masks, by_kernel=by_kernel)

    clean = logits.clone()
    clean[1, 5:9] = -torch.inf
    check(actual, clean, heat, cuts, masks)


def test_a_row_with_a_nan_or_an_infinity_is_not_cut(by_kernel, rng):
    logits = torch.randn(4, 50, generator=rng)
    logits[1, 17], logits[2, 49] = torch.nan, torch.inf

    found = bits(cut_masks(logits, torch.ones(4), cuts_of(4, 3, 0.9), by_kernel=by_kernel), 50)

    assert found[1:3].all()
    assert 1 <= found[0].sum() <= 3
    assert 1 <= found[3].sum() <= 3


def test_a_row_without_an_allowed_token_still_has_none(by_kernel):
    logits = torch.full((2, 40), -torch.inf)
    logits[1, 7] = 1
    masks = RowMasks(torch.tensor([[1, 0]], dtype=torch.int32), torch.tensor([-1, 0]))

    for cuts in (cuts_of(2, 1), cuts_of(2, 0, 0.5), cuts_of(2, 0, 1.0, 0.5), cuts_of(2)):
        assert not cut_masks(logits, torch.ones(2), cuts, masks, by_kernel=by_kernel).bitmask.any()


@pytest.mark.parametrize("shape", [(0, 40), (3, 0), (0, 0)])
def test_logits_without_rows_or_tokens_are_no_error(shape, by_kernel):
    n, V = shape
    found = cut_masks(torch.zeros(shape), torch.ones(n), cuts_of(n, 1, 0.5), by_kernel=by_kernel)

    assert found.bitmask.shape == (n, -(-V // 32))
    assert found.rows.tolist() == [*range(n)]


@pytest.mark.parametrize(
    ("cut", "left"),
    [
        ((3, 1.0, 0.0), [0, 0.4, 0, 0.25, 0.2]),
        ((0, 0.7, 0.0), [0, 0.4, 0, 0.25, 0.2]),  # .65 is not enough
        ((0, 0.6, 0.0), [0, 0.4, 0, 0.25, 0]),
        ((0, 1.0, 0.2), [0.1, 0.4, 0, 0.25, 0.2]),
        ((4, 0.9, 0.0), [0.1, 0.4, 0, 0.25, 0.2]),  # .85 of .95 is not enough
        ((4, 0.89, 0.0), [0, 0.4, 0, 0.25, 0.2]),
    ],
)
def test_draws_are_spread_as_the_remaining_probabilities_are(cut, left):
    n = 2048
    logits = torch.tensor([[0.1, 0.4, 0.05, 0.25, 0.2]]).log().expand(n, 5).contiguous()
    masks = cut_masks(logits, torch.ones(n), cuts_of(n, *cut))

    drawn = vocab_pass(logits, torch.ones(n), torch.arange(n) / n, masks).draw

    expected = torch.tensor(left) / sum(left)
    assert (drawn.bincount(minlength=5) - expected * n).abs().max() <= 1


def test_rows_may_be_further_apart_than_an_int32_counts():
    stride = 2**30  # elements; 4 GiB of addresses, of which three pages are touched
    flat = torch.empty(2 * stride + 40, dtype=torch.float16)
    logits = flat.as_strided((3, 40), (stride, 1)).zero_()
    logits[:, 11] = 9

    found = cut_masks(logits, torch.ones(3), cuts_of(3, 1), by_kernel=True)

    assert bits(found, 40).nonzero().tolist() == [[i, 11] for i in range(3)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"logits": torch.zeros(2, 33).double()}, "fp32, bf16 or fp16.*torch.float64"),
        ({"heat": torch.ones(3)}, r"inverse_temperature .* 2 rows.*got \[3\]"),
        ({"cuts": cuts_of(3)}, r"top_k is one torch.int32 .* 2 rows; got \[3\]"),
        ({"cuts": cuts_of(2)._replace(top_k=torch.zeros(2).long())}, "top_k .* torch.int64"),
        ({"cuts": cuts_of(2)._replace(min_p=torch.zeros(2, device="meta"))}, "min_p is on meta"),
        ({"rows": torch.tensor([0, 2])}, "rows are 0 to 1, got 0 to 2"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(change, message, by_kernel):
    given = {"logits": torch.zeros(2, 33), "heat": torch.ones(2), "cuts": cuts_of(2)} | change
    rows = given.pop("rows", None)
    with pytest.raises(ValueError, match=message):
        cut_masks(*given.values(), None, rows, by_kernel=by_kernel)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_gpu_cuts_a_whole_vocabulary_as_the_reference_does(dtype, rng):
    logits, masks = random_logits(32, 262_144, dtype, rng), random_masks(32, 262_144, rng)
    heat, cuts = torch.ones(32), cuts_of(32, [0, 1, 64, 5000] * 8, [0.9, 1.0] * 16)

    sent = RowMasks(masks.bitmask.cuda(), masks.rows.cuda())
    on_gpu = Cuts(*(c.cuda() for c in cuts))
    found = cut_masks(logits.cuda(), heat.cuda(), on_gpu, sent, softcap=30.0)

    actual = RowMasks(*(x.cpu() for x in found))
    check(actual, logits, heat, cuts, masks, softcap=30.0)
