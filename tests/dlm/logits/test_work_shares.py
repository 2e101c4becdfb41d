"""Shares of a step's work: what a constraint does not need goes to others."""

from hypothesis import given
from hypothesis import strategies as st

from dlm.grammar import Unfinished
from dlm.logits.work_shares import answers_within


def query(needed, shares):
    """Return a query that takes `needed` units in all, and notes its share of each round."""

    def ask(share):
        done = sum(shares)
        shares.append(share)
        if done + share < needed:
            return Unfinished("more work"), share
        return ValueError(needed), needed - done

    return ask


@given(st.integers(0, 400), st.lists(st.integers(0, 150), min_size=1, max_size=8))
def test_all_queries_together_keep_to_the_work_and_none_gets_less_than_an_equal_share(work, needs):
    shares = [[] for _ in needs]
    answers = answers_within(work, list(map(query, needs, shares)))

    spent = sum(min(needed, sum(got)) for needed, got in zip(needs, shares, strict=True))
    assert spent <= max(work, len(needs))
    for needed, got, answer in zip(needs, shares, answers, strict=True):
        assert isinstance(answer, Unfinished) == (sum(got) < needed)
        assert got[0] >= max(1, work // len(needs))
        assert len(got) <= 2


def test_what_the_others_leave_goes_to_the_one_that_needs_more():
    first, second, third = [], [], []
    answers = answers_within(90, [query(70, first), query(1, second), query(9, third)])

    assert (first, second, third) == ([30, 50], [30], [59])
    assert not any(isinstance(answer, Unfinished) for answer in answers)
