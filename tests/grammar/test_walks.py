"""Any walk over allowed tokens ends within its budget, and valid, in all forms and ways."""

from random import Random

import numpy as np
import pytest
import walk
from exhaustive import examples, share
from hypothesis import given
from hypothesis import strategies as st
from measure.made_up import FORMS, WalkCase, case_of
from measure.walks import WAYS, WISHES, WalkError, WishedScores, judge, walks_of

from dlm.grammar import GrammarError, JsonSchema


@examples(100)
@given(drawn=st.randoms(use_true_random=False), seed=st.integers(0, 1 << 32))
def test_every_walk_ends_valid_within_its_budget(drawn, seed):
    try:
        case = case_of(drawn)
        for _, about, fault in walks_of(case, Random(seed), 8):
            assert fault is None, f"{about} of {case}"
    except GrammarError:
        return  # no value fits the schema, or only a very long one


def test_walks_are_of_all_forms_and_ways_and_a_seed_repeats_them():
    first = walk.walked(share(800), seed=1)
    assert {form for form, _ in first[0]} == {*FORMS}
    assert {way for _, way in first[0]} == {*WAYS}
    assert first[1] == []
    assert walk.walked(16, seed=3) == walk.walked(16, seed=3)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"a": 1}', "is invalid"),
        ('{"a": "x", "a": "y"}', "comes twice"),
        (None, "has no stop"),
    ],
)
def test_the_judge_refuses_what_breaks_a_guarantee(text, problem):
    schema = {"type": "object", "additionalProperties": {"type": "string"}}
    case = WalkCase("json", JsonSchema(schema), tuple(bytes([byte]) for byte in range(256)))
    tokens = case.vocabulary.encode(text or "{}")
    with pytest.raises(WalkError, match=problem):
        judge(case, tokens if text is None else [*tokens, *case.vocabulary.stops])


@pytest.mark.parametrize("wish", WISHES)
def test_a_wish_repeats_with_its_seed_and_takes_only_what_it_is_given(wish):
    vocabulary = WalkCase("json", JsonSchema({}), tuple(bytes([b]) for b in range(256))).vocabulary
    tokens = [[*Random(9).sample(range(len(vocabulary)), 30)] for _ in range(2)]
    chosen = []
    for some in tokens:
        wishes = WishedScores(wish, vocabulary, Random(4))
        chosen.append([wishes.choose(np.array(some)) for _ in range(20)])
    assert chosen[0] == chosen[1]
    assert {*chosen[0]} <= {*tokens[0]}
