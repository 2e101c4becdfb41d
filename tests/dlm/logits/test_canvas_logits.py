"""A canvas's logits, as they are asked about, against the definition over whole rows."""

import numpy as np
import pytest
import torch
from full_rows import FullRows
from hypothesis import given
from hypothesis import strategies as st
from scores import scores_of

from dlm.kernels.vocab import vocab_pass
from dlm.logits.canvas_logits import (
    CANDIDATES,
    THRESHOLD,
    CanvasLogits,
    DeviceCopies,
    HostRows,
    most_copies,
)

SIZE = 3000


def packed(allowed):
    bits = np.zeros(-(-SIZE // 32) * 32, dtype=bool)
    bits[:SIZE] = allowed
    return np.packbits(bits, bitorder="little").view(np.uint32)


def only(*tokens):
    return packed(np.isin(np.arange(SIZE), tokens))


@given(
    seed=st.integers(0, 2**32),
    scale=st.sampled_from([0.1, 3.0, 7.0, 20.0, 500.0]),
    share=st.sampled_from([1.0, 0.998, 0.5, 0.01, 1 / SIZE]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    softcap=st.sampled_from([None, 30.0]),
    heat=st.sampled_from([1.0, 1.25, 2.5]),
    count=st.sampled_from([1, 3, 200]),
)
def test_answers_are_those_of_whole_rows(seed, scale, share, dtype, softcap, heat, count):
    """Rows are flat, or a single token has all of the mass; masks allow many tokens, or one.
    Of equally likely tokens, any may be named."""
    rng = np.random.default_rng(seed)
    logits = torch.tensor(scale * rng.normal(size=(3, SIZE))).to(dtype)
    allowed = rng.random(SIZE) < share
    allowed[rng.integers(SIZE)] = True
    inverse, uniform = torch.full((3,), heat), torch.zeros(3)
    found = vocab_pass(logits, inverse, uniform, softcap=softcap, threshold=THRESHOLD, k=CANDIDATES)
    host = HostRows.of(found, SIZE)
    ours = CanvasLogits(host, logits, heat, softcap, DeviceCopies(torch.device("cpu")))
    x = logits.double() if softcap is None else softcap * torch.tanh(logits.double() / softcap)
    rows = FullRows(x * heat)

    best, answer = ours.best(1, packed(allowed)), ours.candidates(1, packed(allowed), count)

    assert ours.argmax == logits.argmax(-1).tolist()
    assert allowed[best]
    assert logits[1, best] == logits[1, torch.tensor(allowed)].max()
    expected = rows.candidates(1, packed(allowed), count)
    assert answer.mass == pytest.approx(expected.mass, rel=1.1e-3, abs=1e-7)
    assert answer.mass <= expected.mass * (1 + 1e-4) + 1e-7
    logp = (x * heat).log_softmax(-1)[1].numpy()
    border = np.abs(logp - expected.ranked[0][1] + np.log(1e3)) < 1e-3
    assert abs(len(answer.ranked) - len(expected.ranked)) <= border.sum()
    for (token, found_logp), (_, p) in zip(answer.ranked, expected.ranked, strict=False):
        assert found_logp == pytest.approx(p, abs=1e-3)
        assert allowed[token]
        assert logp[token] == pytest.approx(p, abs=1e-3)
    assert len({token for token, _ in answer.ranked}) == len(answer.ranked)


def test_the_lowest_logits_count_as_impossible_under_any_temperature():
    lowest = torch.finfo(torch.float32).min
    logits = torch.full((1, SIZE), lowest)
    logits[0, [3, 5]] = 1.0
    settings = torch.tensor([2.5]), torch.zeros(1)
    rows = HostRows.of(vocab_pass(logits, *settings, threshold=THRESHOLD, k=CANDIDATES), SIZE)
    ours = CanvasLogits(rows, logits, 2.5, None, DeviceCopies(torch.device("cpu")))
    answer = ours.candidates(0, only(7, 9), 3)
    assert answer.mass == 0
    assert answer.ranked == [(7, -np.inf), (9, -np.inf)]


@given(
    seed=st.integers(0, 2**32),
    scale=st.sampled_from([0.1, 7.0, 200.0]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    softcap=st.sampled_from([None, 30.0]),
    heat=st.sampled_from([1.0, 2.5]),
    length=st.integers(1, 5),
)
def test_sums_over_classes_are_those_of_whole_rows(seed, scale, dtype, softcap, heat, length):
    """The last class has no token, the one before none that may come. The canvas has
    3 positions."""
    rng = np.random.default_rng(seed)
    logits = torch.tensor(scale * rng.normal(size=(3, SIZE))).to(dtype)
    tokens, classes = rng.permutation(SIZE)[:200], rng.integers(0, 40, 200)
    logits[:, tokens[classes == 39]] = -torch.inf
    inverse, uniform = torch.full((3,), heat), torch.zeros(3)
    found = vocab_pass(logits, inverse, uniform, softcap=softcap, threshold=THRESHOLD, k=CANDIDATES)
    host = HostRows.of(found, SIZE)
    ours = CanvasLogits(host, logits, heat, softcap, DeviceCopies(torch.device("cpu")))
    x = logits.double() if softcap is None else softcap * torch.tanh(logits.double() / softcap)
    rows = FullRows((x * heat).masked_fill(logits.isneginf(), -torch.inf))
    expected = rows.class_sums(tokens, classes, 41, length)
    sums = ours.class_sums(tokens, classes, 41, length)
    assert np.isneginf(sums[:, 39:]).all()
    near = expected > expected.max(1, keepdims=True) - 600  # nats: what is less likely may be -inf
    np.testing.assert_allclose(sums[near], expected[near], rtol=1e-4, atol=1e-3)


@given(
    seed=st.integers(0, 2**32),
    scale=st.sampled_from([0.1, 3.0, 500.0]),
    share=st.sampled_from([1.0, 0.01, 0.0]),
    count=st.sampled_from([1, 3, 200]),
    ruled_out=st.sampled_from([0.0, 0.5, 1.0]),
)
def test_a_row_that_is_searched_where_it_is_answers_as_one_that_is_fetched(
    seed, scale, share, count, ruled_out
):
    """A GPU searches in place: of equally likely tokens, the lowest come first."""
    rng = np.random.default_rng(seed)
    logits = torch.tensor(scale * rng.normal(size=(2, SIZE))).bfloat16()
    logits[:, rng.random(SIZE) < ruled_out] = -torch.inf
    scores = scores_of(logits)
    allowed = packed(rng.random(SIZE) < share)

    found = scores._search_on_device(1, allowed, count)

    tokens, logp = scores._search_row(1, allowed)
    near = logp >= logp.max(initial=-np.inf) - np.log(1e3)
    order = np.lexsort((tokens[near], -logp[near]))[:count]
    ranked = [p for _, p in found.ranked]
    assert ranked == pytest.approx(logp[near][order].tolist(), abs=1e-4)
    assert {token for token, _ in found.ranked} <= {*tokens.tolist()}
    assert found.mass == pytest.approx(np.exp(logp).sum(), abs=1e-5)


def test_tokens_that_a_nearly_full_mask_forbids_are_no_candidates():
    """The likeliest three have nearly all of the mass, or nearly none."""
    logits = 0.1 * torch.randn(1, SIZE, generator=torch.Generator().manual_seed(0))
    allowed = np.ones(SIZE, dtype=bool)
    allowed[[5, 1000, 2999]] = False
    for ahead in (-30.0, 5.0, 12.0, 25.0):
        logits[0, [5, 1000, 2999]] = torch.tensor([ahead, ahead + 1, ahead + 2])
        scores, rows = scores_of(logits), FullRows(logits.double())
        found, expected = (each.candidates(0, packed(allowed), 3) for each in (scores, rows))
        assert [token for token, _ in found.ranked] == [token for token, _ in expected.ranked]
        assert found.mass == pytest.approx(expected.mass, rel=1e-4)
        assert scores.best(0, packed(allowed)) == expected.ranked[0][0]


def test_where_nothing_is_allowed_there_is_no_candidate():
    found = scores_of(torch.zeros(1, SIZE)).candidates(0, only(), 3)
    assert (found.ranked, found.mass) == ([], 0.0)


def test_logits_that_a_model_rules_out_are_no_candidates():
    logits = torch.full((1, SIZE), -torch.inf)
    logits[0, [7, 9]] = torch.tensor([1.0, 2.0])
    found = scores_of(logits).candidates(0, packed(np.ones(SIZE, dtype=bool)), 5)
    assert [token for token, _ in found.ranked] == [9, 7]
    assert found.mass == pytest.approx(1.0)


def test_where_a_model_rules_out_all_that_is_allowed_it_is_still_that_which_is_taken():
    logits = torch.full((2, SIZE), -torch.inf)
    logits[0, 7] = 1.0
    for position in (0, 1):
        scores = scores_of(logits)
        assert scores.best(position, only(40, 90)) in (40, 90)
        found = scores.candidates(position, only(40, 90), 1)
        assert [token for token, _ in found.ranked] in ([40], [90])
        assert found.mass == 0.0


def test_the_argmax_is_a_token_even_where_a_model_rules_out_everything_or_is_broken():
    logits = torch.zeros(3, SIZE)
    logits[0], logits[1], logits[2, 5] = -torch.inf, torch.nan, torch.nan
    assert all(0 <= token < SIZE for token in scores_of(logits).argmax)


def test_a_row_is_fetched_only_where_its_list_cannot_answer():
    """Five tokens are likely, and the rest of the row is 40 nats below."""
    logits = torch.full((6, SIZE), -40.0)
    logits[:, [10, 20, 30, 40, 50]] = torch.tensor([0.0, -1, -2, -3, -12])
    scores = scores_of(logits)

    assert scores.best(0, only(20, 30, 700)) == 20
    found = scores.candidates(0, only(20, 30, 40, 700), 3)
    assert [token for token, _ in found.ranked] == [20, 30, 40]
    found = scores.candidates(0, only(20, 700), 3)  # the others are less likely by over 1e3
    assert [token for token, _ in found.ranked] == [20]
    assert (scores.copies, scores.rows) == (0, 0)

    assert scores.best(0, only(700, 800)) == 700
    assert (scores.copies, scores.rows) == (1, 1)


def test_candidates_that_are_not_listed_are_looked_up_if_they_come_near():
    """One of two allowed tokens is just below the listed ones, and one above."""
    logits = torch.full((1, SIZE), -60.0)
    logits[0, [10, 20, 30]] = torch.tensor([0.0, -13.5, -14.5])
    scores = scores_of(logits)

    found = scores.candidates(0, only(20, 30), 3)

    assert [token for token, _ in found.ranked] == [20, 30]
    assert found.mass == pytest.approx(np.exp(-13.5) + np.exp(-14.5), rel=1e-4)
    assert scores.copies == 1


def test_along_a_text_rows_come_in_ever_larger_copies():
    logits = torch.randn(256, SIZE, generator=torch.Generator().manual_seed(0))
    scores = scores_of(logits)

    best = [scores.best(position, only(5, 6)) for position in range(256)]

    assert best == [5 if row[5] >= row[6] else 6 for row in logits]
    assert scores.rows == 256
    assert scores.copies == 9  # 1, 1, 2, 4, 8, 16, 32, 64, 128


@pytest.mark.parametrize("length", [1, 8, 9, 10, 64, 257])
def test_queries_of_every_position_take_a_bounded_number_of_copies(length):
    """On another device the first rows are searched there, and then rows come to the host."""
    logits = 0.1 * torch.randn(length, SIZE, generator=torch.Generator().manual_seed(0))
    scores, allowed = scores_of(logits), packed(np.arange(SIZE) % 3 == 1)
    scores._searches = 8  # as if the logits were on another device
    rows, before = FullRows(logits.double()), scores.copies
    for position in range(length):
        best = rows.candidates(position, allowed, 1).ranked[0][0]
        for _ in range(2 if position % 2 else 1):
            assert scores.best(position, allowed) == best
            assert scores.candidates(position, allowed, 3).ranked[0][0] == best
    assert scores._searches == 0 or length < 8
    assert scores.copies - before <= most_copies(length)
    assert most_copies(length) <= 2 * 8 + 1 + 9
