"""Errors of fp32 are derived, not tuned. With u = 2^-24 and |x| <= X over the allowed tokens:

x has a few roundings of relative error u, or, with a softcap, whose tanh is 1 - 2 / (e^2y + 1), of
the softcap over T, which is X then: `ROUNDINGS` * u * (X + 1) =: d in all, at most. An error d of
every x changes log-sum-exp by d at most, a probability by the factor e^(2d), and the entropy by 2d
* sum p |x - mean|, which for n tokens is no more than 2d * (1 + log n). Sums of V terms add less
than log2(V) * u of themselves, as they are added in trees.
"""

import math

import pytest
import torch
from exhaustive import examples, pairs_by_default
from hypothesis import assume, example, given
from hypothesis import strategies as st
from random_rows import random_logits, random_masks
from torch import Tensor

from dlm.kernels import vocab
from dlm.kernels.vocab import vocab_pass, vocab_pass_reference
from dlm.kernels.vocab_rows import RowMasks, VocabPass

ROUNDINGS = 16
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
VOCABS = [1, 33, 511, 4096, 4097, 9000]  # around the ends of words and chunks


def check(actual: VocabPass, logits: Tensor, *args, threshold: float = 1e-4, k: int = 256, **kw):
    """Assert that `actual` is the reference's result, up to the errors derived above.

    Rounding must not decide whether a row has more than `k` candidates.
    """
    expected = vocab_pass_reference(logits, *args, threshold=threshold, k=k, **kw)
    V = logits.shape[1]
    every = vocab_pass_reference(logits, *args, threshold=1e-30, k=V, **kw)
    rows = args[3] if len(args) > 3 else torch.arange(len(logits))
    logits = logits[rows]
    biggest = logits.double().nan_to_num(0, 0, 0).abs().amax(-1) if V else expected.lse * 0
    biggest = (biggest * 0 + kw["softcap"] if kw.get("softcap") else biggest) * args[0]
    d = 2**-24 * (ROUNDINGS * (biggest + 1) + math.log2(V + 2))
    nothing = expected.argmax < 0

    assert actual.lse[nothing].isneginf().all()
    assert ((actual.lse - expected.lse).abs()[~nothing] <= d[~nothing]).all()
    assert ((actual.entropy - expected.entropy).abs() <= 4 * d * (1 + math.log(V + 1))).all()
    assert torch.equal(actual.argmax, expected.argmax)
    for i in range(len(logits)):
        error = float(4 * d[i])
        likely = probabilities(every, i, logits, args[0], kw.get("softcap"))
        sure = {t for t, p in likely.items() if p >= threshold * (1 + error)}
        maybe = {t: p for t, p in likely.items() if p >= threshold * (1 - error)}
        assert min(len(sure), k + 1) <= actual.above[i] <= min(len(maybe), k + 1)
        if actual.above[i] <= k:
            count = int(actual.above[i])
            found = actual.ids[i, :count].tolist()
            assert sure <= set(found) <= maybe.keys()
            assert found == sorted(found)
            assert (actual.ids[i, count:] == -1).all()
            assert actual.logits[i, :count].tolist() == logits[i, found].float().tolist()
            assert (actual.logits[i, count:] == 0).all()
            border = sum(p for t, p in maybe.items() if t not in sure)
            rest = sum(p for t, p in likely.items() if t not in maybe)
            assert rest - 2 * d[i] <= actual.tail[i] <= rest + border + 2 * d[i]
        else:
            assert actual.tail[i] == 1
        reached, drawn = 0.0, int(actual.draw[i])
        assert (drawn < 0) == bool(nothing[i])
        if drawn >= 0:
            for token, p in likely.items():
                if token == drawn:
                    assert reached - error <= args[1][i] <= reached + p + error
                reached += p if token < drawn else 0
            assert drawn in likely


def probabilities(
    every: VocabPass, i: int, logits: Tensor, inverse_temperature: Tensor, softcap: float | None
) -> dict[int, float]:
    """Return the probabilities of the tokens that `every` lists in row i, in fp64."""
    tokens = every.ids[i][every.ids[i] >= 0]
    x = logits[i, tokens].double()
    x = softcap * torch.tanh(x / softcap) if softcap else x
    p = (x * inverse_temperature[i].double() - every.lse[i]).exp()
    return dict(zip(tokens.tolist(), p.tolist(), strict=True))


def heat(n: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return inverse temperatures from 0.5 to 2.5, and the numbers that decide draws."""
    return torch.rand(n, generator=rng) * 2 + 0.5, torch.rand(n, generator=rng)


@pytest.mark.parametrize(
    ("V", "dtype", "softcap"), pairs_by_default(VOCABS, DTYPES, [None, 30.0]), ids=str
)
def test_the_kernels_agree_with_the_reference(V, dtype, softcap, rng):
    logits, masks = random_logits(6, V, dtype, rng), random_masks(6, V, rng)
    args, kw = (*heat(6, rng), masks), {"softcap": softcap, "threshold": 1e-3, "k": 40}

    check(vocab_pass(logits, *args, **kw, by_kernel=True), logits, *args, **kw)


@given(
    n=st.integers(0, 9),
    V=st.integers(1, 100) | st.sampled_from([511, 512, 513, 10_000, 140_000]),
    dtype=st.sampled_from(DTYPES),
    softcap=st.sampled_from([None, 5.0]),
    threshold=st.sampled_from([1e-4, 0.01, 0.3, 1.0]),
    k=st.sampled_from([0, 1, 8, 256]),
    seed=st.integers(0, 1000),
)
@examples(60)
def test_the_cpu_path_agrees_with_the_reference(n, V, dtype, softcap, threshold, k, seed):
    rng = torch.Generator().manual_seed(seed)
    logits, args = random_logits(n, V, dtype, rng), (*heat(n, rng), random_masks(n, V, rng))
    kw = {"softcap": softcap, "threshold": threshold, "k": k}

    check(vocab_pass(logits, *args, **kw), logits, *args, **kw)


def test_without_masks_every_token_is_allowed(by_kernel, rng):
    logits, args = random_logits(3, 1000, torch.bfloat16, rng), heat(3, rng)

    actual = vocab_pass(logits, *args, by_kernel=by_kernel)

    check(actual, logits, *args)
    every = RowMasks(torch.zeros(0, 32, dtype=torch.int32), torch.full((3,), -1))
    masked = vocab_pass(logits, *args, every, by_kernel=by_kernel)
    assert torch.equal(actual.packed(), masked.packed())


def test_chosen_rows_have_the_results_of_these_rows_alone(by_kernel, rng):
    """Rows are chosen in any order, one of them twice; masks and numbers are per chosen row."""
    logits, masks = random_logits(6, 5000, torch.bfloat16, rng), random_masks(4, 5000, rng)
    rows = torch.tensor([4, 1, 1, 5])
    args = (*heat(4, rng), masks)

    actual = vocab_pass(logits, *args, rows, by_kernel=by_kernel)

    check(actual, logits, *args, rows)
    alone = vocab_pass(logits[rows], *args, by_kernel=by_kernel)
    assert torch.equal(actual.packed(), alone.packed())


@pytest.mark.parametrize("sign", [1, -1])
def test_masks_may_leave_only_the_worst_of_saturated_logits(sign, by_kernel):
    """These are over 75 nats below the best one: exp relative to the best is 0 in fp32."""
    logits = torch.full((2, 5000), 1000.0 * sign).bfloat16()
    logits[:, [7, 4500]] = torch.tensor([-1000.0, -900.0]).bfloat16()
    masks = RowMasks(torch.zeros(1, 157, dtype=torch.int32), torch.tensor([0, 0]))
    masks.bitmask[0, 7 // 32] = 1 << 7
    masks.bitmask[0, 4500 // 32] = 1 << (4500 % 32)
    args = torch.full((2,), 2.5), torch.tensor([0.1, 0.9]), masks

    for softcap in (30.0, None):
        actual = vocab_pass(logits, *args, softcap=softcap, by_kernel=by_kernel)
        check(actual, logits, *args, softcap=softcap)
        assert actual.argmax.tolist() == [4500, 4500]
    assert vocab_pass(logits, *args, softcap=30.0, by_kernel=by_kernel).draw.tolist() == [7, 4500]


def test_the_argmax_is_of_logits_before_a_softcap_that_rounds_them_to_one_number(by_kernel):
    logits = torch.tensor([[500.0, 600.0, 700.0, 700.0]])

    actual = vocab_pass(logits, torch.ones(1), torch.zeros(1), softcap=30.0, by_kernel=by_kernel)

    assert actual.argmax.item() == 2, "the first of two equal ones"
    assert actual.entropy.item() == pytest.approx(math.log(4), abs=1e-6)


def test_the_lowest_of_equal_tokens_wins_across_chunks(by_kernel):
    logits = torch.zeros(1, 9000)
    logits[0, [4700, 4095, 8999]] = 3.0

    actual = vocab_pass(logits, torch.ones(1), torch.zeros(1), by_kernel=by_kernel)

    assert actual.argmax.item() == 4095


def test_a_row_without_an_allowed_token_is_marked_and_changes_no_other(by_kernel, rng):
    """Its mask is empty, or every token that it allows, one or many, is -inf."""
    logits, (inverse, uniform) = torch.randn(4, 5000, generator=rng), heat(4, rng)
    logits[1, ::2], logits[2, 4999] = -torch.inf, -torch.inf
    bitmask = torch.tensor([[0], [0x55555555], [0]], dtype=torch.int32).repeat(1, 157)
    bitmask[2, 4999 // 32] = 1 << 4999 % 32
    masks = RowMasks(bitmask, torch.tensor([0, 1, 2, -1]))
    args = inverse, uniform, masks

    actual = vocab_pass(logits, *args, k=4, by_kernel=by_kernel)

    check(actual, logits, *args, k=4)
    assert actual.lse[:3].tolist() == [-math.inf] * 3
    assert actual.argmax[:3].tolist() == actual.draw[:3].tolist() == [-1] * 3
    assert actual.ids[:3].eq(-1).all()
    for zero in (actual.entropy, actual.above, actual.logits, actual.tail):
        assert not zero[:3].any()
    assert actual.argmax[3] >= 0


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_memory_around_the_arguments_is_not_read(dtype, by_kernel, rng):
    """Logits of forbidden tokens may also be NaN or infinite."""
    V = 4200
    padded = torch.full((5, V + 77), torch.nan).to(dtype)
    logits = padded[1:4, 7 : 7 + V]
    logits.copy_(random_logits(3, V, dtype, rng))
    logits[1, 5:9] = torch.tensor([math.nan, math.inf, -math.nan, math.nan])
    wide = torch.full((4, 132 + 9), -1, dtype=torch.int32)
    wide[2, 5:-4] = torch.randint(2**31, (132,), generator=rng).int()
    wide[2, 5] = 1
    masks = RowMasks(wide[1:3, 5:-4], torch.tensor([-1, 1, 1]))
    inverse, uniform = (torch.full((9,), torch.nan)[3:6].copy_(x) for x in heat(3, rng))

    actual = vocab_pass(logits, inverse, uniform, masks, by_kernel=by_kernel)

    clean = logits.clone()
    clean[1, 5:9] = -torch.inf
    check(actual, clean, inverse, uniform, masks)


@pytest.mark.parametrize("softcap", [None, 30.0])
def test_a_nan_makes_results_of_its_row_nan_and_of_no_other(softcap, by_kernel, rng):
    logits, args = torch.randn(3, 5000, generator=rng), heat(3, rng)
    logits[1, 17] = torch.nan

    actual = vocab_pass(logits, *args, softcap=softcap, by_kernel=by_kernel)

    assert actual.lse.isnan().tolist() == actual.entropy.isnan().tolist() == [False, True, False]
    assert actual.tail.isnan().tolist() == [False, True, False]


def test_draws_are_spread_as_the_probabilities_are(by_kernel):
    """Evenly spaced numbers draw each token as often as it is likely, to one draw."""
    n = 32 if by_kernel else 4096
    logits = torch.tensor([[0.1, 0.5, 0.0, 0.25, 0.15]]).log().expand(n, 5)

    actual = vocab_pass(logits, torch.ones(n), torch.arange(n) / n, by_kernel=by_kernel)

    counts = actual.draw.bincount(minlength=5)
    assert (counts - torch.tensor([0.1, 0.5, 0, 0.25, 0.15]) * n).abs().max() <= 1
    assert actual.draw.diff().min() >= 0


def test_the_ends_of_the_interval_draw_the_first_and_last_token_with_mass(by_kernel, rng):
    logits = torch.randn(2, 9000, generator=rng) * 0.1
    logits[:, :5] = logits[:, 8000:] = -torch.inf
    uniform = torch.tensor([0.0, 1 - 2**-24])

    actual = vocab_pass(logits, torch.ones(2), uniform, by_kernel=by_kernel)

    assert actual.draw[0] == 5
    assert 7990 <= actual.draw[1] <= 7999, "no rounding draws a token without mass"


@pytest.mark.parametrize(("chunk", "chunks"), [(512, 24), (4096, 6)])
def test_a_draw_at_the_border_of_two_chunks_is_a_token_with_mass(chunk, chunks, by_kernel, rng):
    """The mass that remains to be passed there is a rounding error, of either sign; chunks begin
    and end with forbidden tokens."""
    n = 4 if by_kernel else 200
    logits = torch.randn(n, chunks * chunk, generator=rng)
    for ends in (slice(9), slice(-9, None)):
        logits.unflatten(1, (chunks, chunk))[..., ends] = -torch.inf
    mass = logits.double().softmax(-1).cumsum(-1)
    border = chunk * (chunks - 4 + torch.arange(n) % 4)
    uniform = mass[torch.arange(n), border].float()

    actual = vocab_pass(logits, torch.ones(n), uniform, by_kernel=by_kernel)

    assert logits[torch.arange(n), actual.draw].isfinite().all()
    assert ((actual.draw == border - 10) | (actual.draw == border + 9)).all()


def test_tokens_at_the_ends_of_chunks_groups_and_the_vocabulary_are_drawn(by_kernel):
    """Each of these tokens has an equal part of the mass, and no other token has any."""
    tokens = torch.tensor([0, 7, 8, 255, 256, 511, 512, 4095, 4096, 4097, 8191, 8999])
    n = len(tokens)
    logits = torch.full((n, 9000), -90.0)
    logits[:, tokens] = 0.0

    uniform = (torch.arange(n) + 0.5) / n
    actual = vocab_pass(logits, torch.ones(n), uniform, by_kernel=by_kernel)

    assert actual.draw.tolist() == tokens.tolist()
    assert actual.ids[0, :n].tolist() == tokens.tolist()


def test_the_pass_is_deterministic(by_kernel, rng):
    logits, args = random_logits(4, 9000, torch.bfloat16, rng), heat(4, rng)
    a, b = (vocab_pass(logits, *args, by_kernel=by_kernel) for _ in range(2))

    assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize(
    ("V", "likely"),
    [
        *((8000, torch.linspace(0, 7999, n).long()) for n in (99, 100, 101, 102, 8000)),
        *((512 * 140, 513 * torch.arange(n)) for n in (100, 101, 140)),  # one in each chunk
    ],
    ids=lambda value: str(value if isinstance(value, int) else len(value)),
)
def test_a_row_with_more_candidates_than_places_counts_one_more_than_places(V, likely, by_kernel):
    """The other row has one candidate."""
    logits = torch.full((2, V), -40.0)
    logits[0, likely] = 0
    logits[1, -1] = 0

    actual = vocab_pass(
        logits, torch.ones(2), torch.zeros(2), threshold=1e-4, k=100, by_kernel=by_kernel
    )

    count = len(likely)
    assert actual.above.tolist() == [min(count, 101), 1]
    assert actual.ids[1, :2].tolist() == [V - 1, -1]
    if count <= 100:
        assert actual.ids[0, :count].tolist() == likely.tolist()
        assert actual.tail[0] < 1e-10
    else:
        assert actual.tail[0] == 1


@pytest.mark.parametrize("by_kernel", [False, True], ids=["cpu", "kernel"])
@given(
    counts=st.lists(st.sampled_from([0, 0, 0, 1, 1, 2, 9, 70, 512]), min_size=1, max_size=24),
    more=st.sampled_from([-3, -1, 0, 1, 60]),
    seed=st.integers(0, 1000),
)
@example(counts=[1] * 24, more=0, seed=0)
@example(counts=[1] * 24, more=-1, seed=0)
@example(counts=[0] * 23 + [64], more=0, seed=0)
@example(counts=[0] * 23 + [64], more=-1, seed=0)
@example(counts=[70, *[0] * 22, 1], more=0, seed=0)
@examples(25)
def test_candidates_are_listed_in_order_wherever_they_are(by_kernel, counts, more, seed):
    """`counts` are candidates in each 512 tokens; there are `more` places than candidates.

    A small tail is exact: one minus the listed probabilities would have an error of 1e-7."""
    rng = torch.Generator().manual_seed(seed)
    spread = [512 * i + torch.randperm(512, generator=rng)[:c] for i, c in enumerate(counts)]
    V = 512 * len(counts) - seed % 2
    likely = torch.cat(spread).sort().values
    likely = likely[likely < V]
    assume(len(likely))
    count = len(likely)
    k = max(0, count + more)
    logits = torch.full((1, V), -30.0)
    logits[0, likely] = torch.rand(count, generator=rng)

    actual = vocab_pass(
        logits, torch.ones(1), torch.zeros(1), threshold=1e-6, k=k, by_kernel=by_kernel
    )

    assert actual.above.item() == min(count, k + 1)
    assert actual.draw.item() <= likely[0]
    if count <= k:
        assert actual.ids[0].tolist() == likely.tolist() + [-1] * (k - count)
        assert actual.logits[0, :count].tolist() == logits[0, likely].tolist()
        assert not actual.logits[0, count:].any()
        total = float(logits.double().logsumexp(-1))
        assert actual.tail.item() == pytest.approx((V - count) * math.exp(-30 - total), rel=1e-4)
    else:
        assert actual.tail.item() == 1


@pytest.mark.parametrize("shape", [(0, 40), (3, 0), (0, 0)])
def test_logits_without_rows_or_tokens_are_no_error(shape, by_kernel):
    n = shape[0]
    actual = vocab_pass(torch.zeros(shape), torch.ones(n), torch.zeros(n), by_kernel=by_kernel)

    assert actual.lse.tolist() == [-math.inf] * n
    assert actual.draw.tolist() == actual.argmax.tolist() == [-1] * n
    assert actual.ids.shape == actual.logits.shape == (n, 256)


def test_rows_may_be_further_apart_than_an_int32_counts():
    stride = 2**30  # elements; 4 GiB of addresses, of which three pages are touched
    flat = torch.empty(2 * stride + 40, dtype=torch.float16)
    logits = flat.as_strided((3, 40), (stride, 1)).zero_()
    logits[:, 11] = 9

    actual = vocab_pass(logits, torch.ones(3), torch.zeros(3), by_kernel=True)

    assert actual.argmax.tolist() == [11] * 3


@pytest.mark.parametrize(("n", "V"), [(200, 20_000), (3, 300_000), (5000, 100)])
def test_the_cpu_path_takes_a_block_of_logits_at_a_time(n, V, monkeypatch):
    sizes, whole = [], vocab.pass_rows
    monkeypatch.setattr(vocab, "pass_rows", lambda x, *a: sizes.append(x.numel()) or whole(x, *a))
    logits = torch.zeros(n, V, dtype=torch.bfloat16)

    actual = vocab_pass(logits, torch.ones(n), torch.zeros(n), k=4)

    assert len(actual.lse) == n
    assert sum(sizes) == n * V
    assert max(sizes) <= max(V, 1 << 18)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_gpu_agrees_with_the_cpu_on_a_whole_vocabulary(dtype, rng):
    logits, (inverse, uniform) = random_logits(64, 262_144, dtype, rng), heat(64, rng)
    masks = random_masks(64, 262_144, rng)
    expected = vocab_pass(logits, inverse, uniform, masks, softcap=30.0)

    sent = RowMasks(masks.bitmask.cuda(), masks.rows.cuda())
    args = logits.cuda(), inverse.cuda(), uniform.cuda(), sent
    actual = VocabPass(*(x.cpu() for x in vocab_pass(*args, softcap=30.0)))

    assert torch.equal(actual.argmax, expected.argmax)
    torch.testing.assert_close(actual.lse, expected.lse, atol=1e-4, rtol=1e-6)
    torch.testing.assert_close(actual.entropy, expected.entropy, atol=1e-3, rtol=0)
    torch.testing.assert_close(actual.tail, expected.tail, atol=1e-3, rtol=0)
    assert (actual.draw == expected.draw).float().mean() > 0.9
