"""Budgets of texts that may begin with the marker of reasoning or with an answer.

Words and markers are random over one small alphabet, so that they begin alike, and the least budget
is computed a second time, from the words themselves.
"""

import random

import pytest
from answers import matcher_answer
from exhaustive import examples
from hypothesis import example, given
from hypothesis import strategies as st
from toys import toy_vocabulary
from trees import compiled_for

from dlm.grammar import BudgetError, Choice, DeadEndError, Matcher, Reasoning, Regex
from dlm.grammar.masks import tokens_in
from dlm.grammar.vocabulary import Marker

ALPHABET = "<ab>"
LETTERS = st.text(st.sampled_from(ALPHABET), min_size=1, max_size=5)
OPENS, CLOSES = ["<a>", "<", "<ab>", "aa", "aab"], ["<ba>", ">", "bb", "b>"]
MOST = 24  # tokens that are enough for every case here


def spelled(text: str, pieces: set[str]) -> int:
    """Return the fewest of `pieces` that spell `text`."""
    counts = [0]
    for end in range(1, len(text) + 1):
        counts.append(1 + min(counts[begin] for begin in range(end) if text[begin:end] in pieces))
    return counts[-1]


def least_budget(words, markers, pieces, limit, reserve) -> int | None:
    """Return the least budget of an answer or of reasoning and an answer; None: there is none."""
    answers = [1 + spelled(word, pieces) for word in words if not word.startswith(markers[0])]
    fixed = sum(spelled(marker, pieces) for marker in markers)
    if limit is None or fixed <= limit:
        answer = 1 + min(spelled(word, pieces) for word in words)
        answers.append(fixed + max(answer, reserve))
    return min(answers, default=None)


@examples(300)
@given(
    markers=st.tuples(st.sampled_from(OPENS), st.sampled_from(CLOSES)),
    words=st.lists(st.tuples(st.integers(0, 4), LETTERS), min_size=1, max_size=4),
    longer=st.sets(st.text(st.sampled_from(ALPHABET), min_size=2, max_size=4), max_size=6),
    limit=st.sampled_from([None, 0, 2, 4, 8]),
    reserve=st.sampled_from([0, 0, 5]),
    seed=st.integers(0, 99),
)
@example(  # the shortest answer within 4 tokens begins with the marker, the one within 3 does not
    markers=("aa", "b>"),
    words=[(0, "a<<b"), (0, "aaa")],
    longer={"<<b", "a>"},
    limit=0,
    reserve=0,
    seed=0,
)
@example(("<a>", ">"), [(3, "a"), (0, "bbabb")], set(), 0, 0, 0)
def test_the_least_budget_is_that_of_the_shortest_answer_which_is_no_marker(
    markers, words, longer, limit, reserve, seed
):
    """Every larger budget is enough too, and each is kept."""
    answers = sorted({markers[0][:size] + word for size, word in words})
    pieces, rng = {*ALPHABET, *longer}, random.Random(seed)
    vocabulary = toy_vocabulary([*map(str.encode, sorted(pieces, key=lambda p: (len(p), p)))])
    grammar = compiled_for(vocabulary, Choice(answers).rules(None))
    opens, closes = (Marker(vocabulary.encode(text), vocabulary) for text in markers)
    reasoning = Reasoning(opens, closes, limit, reserve)
    fits = [Matcher(grammar, reasoning).closes_within(tokens) for tokens in range(MOST)]
    least = least_budget(answers, markers, pieces, limit, reserve)
    if least is None:
        assert not any(fits)
        with pytest.raises(DeadEndError, match="every answer begins with the marker that opens"):
            Matcher(grammar, reasoning).check_budget(MOST)
        return
    assert fits == [tokens + 1 >= least for tokens in range(MOST)]
    assert len(Matcher(grammar, reasoning).shortest_completion(least - 1) or []) < least
    if least > 1 and not reserve:
        with pytest.raises(BudgetError) as raised:
            Matcher(grammar, reasoning).check_budget(least - 1)
        assert raised.value.needed == least
    for budget in (least, least + 3):
        tokens = matcher_answer(Matcher(grammar, reasoning), budget, rng.choice)
        assert len(tokens) <= budget
        _, answer = reasoning.split(tokens[:-1])
        assert vocabulary.text(answer) in answers


def test_an_answer_that_only_longer_tokens_spell_is_found_beside_the_marker():
    """No token is the first byte of its character."""
    vocabulary = toy_vocabulary([b"<", b"a", b">", "é".encode()])
    markers = [Marker([2, 3, 4], vocabulary), Marker([4], vocabulary)]
    grammar = compiled_for(vocabulary, Choice(["<a>a", "<é<"]).rules(None))
    matcher = Matcher(grammar, Reasoning(*markers, 0))
    assert [matcher.closes_within(tokens) for tokens in (2, 3, 50)] == [False, True, True]
    assert matcher.shortest_completion() == [2, 5, 2]
    assert tokens_in(matcher.allowed(4)).tolist() == [2]


def test_an_answer_of_more_bytes_and_fewer_tokens_is_found_however_long_it_is():
    vocabulary = toy_vocabulary([b"<", b"a", b"b", b"bb"])
    markers = [Marker([2, 3], vocabulary), Marker([4], vocabulary)]
    grammar = compiled_for(vocabulary, Choice(["<aa", "ab" * 20, "b" * 70]).rules(None))
    matcher = Matcher(grammar, Reasoning(*markers, 0))
    assert [matcher.closes_within(tokens) for tokens in (34, 35, 40)] == [False, True, True]
    assert matcher_answer(matcher, 36, random.Random(0).choice) == [5] * 35 + [1]


def test_a_marker_of_many_bytes_differs_from_an_answer_in_its_last_byte():
    """100 bytes: more than are spelled of a completion that is known to fit."""
    vocabulary = toy_vocabulary([b"a", b"b", b"c"])
    opening = Marker([2] * 99 + [3], vocabulary)
    grammar = compiled_for(vocabulary, Regex("a{99}(b|cccc)").rules(None))
    matcher = Matcher(grammar, Reasoning(opening, Marker([4], vocabulary), 0))
    with pytest.raises(BudgetError) as raised:
        matcher.check_budget(103)
    assert raised.value.needed == 104
    matcher.check_budget(104)
    tokens = matcher_answer(matcher, 104, random.Random(0).choice)
    assert tokens == [2] * 99 + [4] * 4 + [1]
