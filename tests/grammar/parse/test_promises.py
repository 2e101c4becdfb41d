"""A text that is said to fit its budget does, whatever of the allowed tokens is taken.

The vocabularies are made up: where tokens are odd, texts of as many bytes take more or fewer.
"""

import random

import pytest
import torch
from exhaustive import examples
from hypothesis import given
from hypothesis import strategies as st
from scores import scores_of
from trees import compiled_for, node_of, trees

from dlm.grammar import (
    BudgetError,
    Fixed,
    Frontier,
    JsonSchema,
    LeftToRight,
    Matcher,
    Reasoning,
    Vocabulary,
)
from dlm.grammar.masks import tokens_in
from dlm.grammar.regex import Literal, Reference
from dlm.grammar.rules import Rules
from dlm.grammar.vocabulary import Marker

STOP, BYTES = 1, 2  # a token, and the first of those of one byte each
TREES = trees(st.text("abc", min_size=1, max_size=4), max_leaves=9)


def vocabulary_of(more) -> Vocabulary:
    """Every byte, and some longer tokens."""
    return Vocabulary(
        [b"", b"", *(bytes([byte]) for byte in range(256)), *more],
        control=[0, STOP],
        stops=[STOP],
        pad=0,
        thought=None,
        encode=lambda text: [BYTES + byte for byte in text.encode()],
    )


def walked(matcher, budget, rng) -> None:
    """Take any of the allowed tokens, until the text has ended."""
    for left in range(budget, 0, -1):
        token = rng.choice(tokens_in(matcher.allowed(left)).tolist())
        assert matcher.accept(token)
        if matcher.ended:
            return
    raise AssertionError("the budget is spent")


def least(compiled, reasoning=None) -> int:
    """The least budget that is said to do."""
    return next(n for n in range(1, 99) if Matcher(compiled, reasoning).closes_within(n - 1))


@examples(150)
@given(tree=TREES, pieces=st.sets(st.text("abc", min_size=2, max_size=4)), seed=st.integers(0, 99))
def test_the_least_budget_that_does_is_kept(tree, pieces, seed):
    vocabulary = vocabulary_of([piece.encode() for piece in sorted(pieces)])
    rules, rng = Rules(), random.Random(seed)
    rules.define(Reference("root"), node_of(tree))
    grammar = compiled_for(vocabulary, rules)
    budget = least(grammar)
    with pytest.raises(BudgetError):
        LeftToRight(grammar, budget - 1)
    for more in (0, 1, 3):
        walked(Matcher(grammar), budget + more, rng)


TIED = {
    "anyOf": [{"type": "array", "items": {"const": "qzxq"}, "minItems": 1}, {"const": ["name"]}]
}


@pytest.mark.parametrize("canvas", [None, 1, 2])
def test_of_two_texts_of_as_many_bytes_the_one_of_fewer_tokens_is_written(canvas):
    """At the start it is the shortest one, and behind `["` both are."""
    vocabulary = vocabulary_of([b'["', b"name", b'"]'])
    grammar, rng = compiled_for(vocabulary, JsonSchema(TIED).rules(None)), torch.manual_seed(0)
    budget = least(grammar)
    assert budget == 4
    for room in range(budget, 8):
        if canvas is None:
            walked(Matcher(grammar), room, random.Random(room))
            continue
        frontier, said = Frontier(grammar, room), []
        while STOP not in said:
            logits = torch.randn(canvas, len(vocabulary), generator=rng)
            scores = scores_of(logits, logits.argmax(-1).tolist())
            tokens = frontier.guide(scores, Fixed(last=True)).guess
            tokens = tokens[: tokens.index(STOP) + 1] if STOP in tokens else tokens
            frontier.commit(tokens)
            said += tokens
        assert len(said) <= room


FREE = st.sets(st.sampled_from(['":', '"":0,', '","', '":0', '{"', '"}', '":0,"', '0,"', "0}"]))


@examples(20)
@given(pieces=FREE, least_keys=st.integers(2, 4), seed=st.integers(0, 99))
def test_keys_that_may_not_come_twice_take_no_more_than_there_is(pieces, least_keys, seed):
    vocabulary = vocabulary_of([piece.encode() for piece in sorted(pieces)])
    schema = {"additionalProperties": {"const": 0}, "minProperties": least_keys}
    grammar = compiled_for(vocabulary, JsonSchema({"type": "object", **schema}).rules(None))
    budget, rng = least(grammar), random.Random(seed)
    for more in (0, 1, 4):
        walked(Matcher(grammar), budget + more, rng)


@pytest.mark.parametrize("limit", [None, 12])
def test_a_marker_of_text_that_is_begun_is_completed_in_time(limit):
    """It is one token, and several where its first byte is written by itself."""
    vocabulary = vocabulary_of([b"<think>", b"</think>"])
    rules = Rules()
    rules.define(Reference("root"), Literal("ok"))
    grammar, size = compiled_for(vocabulary, rules), len(vocabulary)
    markers = [Marker([token], vocabulary) for token in (size - 2, size - 1)]
    for seed in range(60):
        rng = random.Random(seed)
        matcher, left = Matcher(grammar, Reasoning(*markers, limit)), 16
        while not matcher.ended:
            tokens = tokens_in(matcher.allowed(left)).tolist()
            wanted = {size - 2, BYTES + ord("<")}.intersection(tokens)
            assert matcher.accept(
                rng.choice(sorted(wanted) if rng.random() < 0.5 and wanted else tokens)
            )
            left -= 1
        assert left >= 0


def test_what_is_allowed_is_the_caller_s_own_and_names_tokens_alone():
    odd = vocabulary_of([b"ab"] * 7)
    assert len(odd) % 32
    grammar = compiled_for(odd, JsonSchema({"type": "string"}).rules(None))
    matcher = Matcher(grammar)
    assert matcher.accept(BYTES + ord('"'))
    words = matcher.allowed()
    assert tokens_in(words)[-1] == len(odd) - 1
    words[:] = 0
    assert matcher.allowed().any()
