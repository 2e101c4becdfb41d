"""Any walk over allowed tokens ends within its budget, and valid, in all forms and ways.

pytest tests/grammar/test_walks.py -k faults --walks 20000 --walk-seed 1 --timeout 0
"""

from random import Random

import numpy as np
import pytest
from exhaustive import examples, share
from hypothesis import given
from hypothesis import strategies as st
from random_grammars import FORMS, WalkCase, case_of
from walks import WAYS, WISHES, WalkError, WishedScores, judge, walked, walks_of

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


def test_walks_of_all_forms_and_ways_have_no_faults(request):
    count = request.config.getoption("--walks") or share(800)
    walks, faults = walked(count, request.config.getoption("--walk-seed"))
    assert {form for form, _ in walks} == {*FORMS}
    assert {way for _, way in walks} == {*WAYS}
    assert walks.total() == count
    assert not faults, "\n".join(faults)


def test_a_completion_after_another_token_is_found_where_the_known_ones_do_not_fit():
    rng = Random(821030)
    faults = [fault for _, _, fault in walks_of(case_of(rng), rng, 16)]
    assert faults == [None] * 16


def test_a_seed_repeats_its_walks():
    assert walked(16, seed=3) == walked(16, seed=3) != walked(16, seed=4)


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
