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


needs_of_some = st.lists(st.integers(0, 150), min_size=1, max_size=8)


@given(st.integers(0, 400), needs_of_some)
def test_all_queries_together_keep_to_the_work_and_each_to_twice_its_share(work, needs):
    shares = [[] for _ in needs]
    answers = answers_within(work, list(map(query, needs, shares)))

    spent = sum(min(needed, sum(got)) for needed, got in zip(needs, shares, strict=True))
    assert spent <= max(work, len(needs))
    equal = max(1, work // len(needs))
    for needed, got, answer in zip(needs, shares, answers, strict=True):
        assert isinstance(answer, Unfinished) == (sum(got) < needed)
        assert got[0] == equal
        assert sum(got) <= 2 * equal
        assert len(got) <= 2


@given(st.integers(0, 400), needs_of_some, st.randoms())
def test_the_order_of_queries_does_not_decide_which_gets_more(work, needs, random):
    def shares_by_place(places):
        shares = [[] for _ in needs]
        answers_within(work, [query(needs[place], shares[place]) for place in places])
        return shares

    places = list(range(len(needs)))
    shuffled = random.sample(places, len(places))
    assert shares_by_place(shuffled) == shares_by_place(places)


def test_what_the_others_leave_goes_in_equal_shares_to_those_that_need_more():
    first, second, third, fourth = [], [], [], []
    queries = [query(60, first), query(21, second), query(1, third), query(60, fourth)]
    answers = answers_within(120, queries)

    assert (first, second, third, fourth) == ([30, 19], [30], [30], [30, 19])
    assert [isinstance(answer, Unfinished) for answer in answers] == [True, False, False, True]


def test_one_costly_query_beside_free_ones_takes_twice_its_share_and_no_more():
    costly, free = [], [[] for _ in range(15)]
    answers_within(2000, [*(query(0, got) for got in free), query(10**6, costly)])

    assert costly == [125, 125]


def test_work_that_a_query_does_beyond_its_share_is_not_given_to_others():
    def beyond(share):
        return Unfinished("more work"), share + 15

    got = []
    answers_within(60, [beyond, query(90, got), query(0, [])])
    assert got == [20, 2]
