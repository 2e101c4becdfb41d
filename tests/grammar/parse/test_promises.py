"""A budget for which `closes_within` is true is kept, for any choice of allowed tokens.

The vocabularies are random, so texts of equally many bytes take different numbers of tokens.
"""

import random

import pytest
import torch
from answers import canvas_answer, matcher_answer
from exhaustive import examples
from hypothesis import example, given
from hypothesis import strategies as st
from scores import scores_of
from toys import toy_vocabulary
from trees import compiled_for, node_of, trees

from dlm.grammar import (
    BudgetError,
    DeadEndError,
    Frontier,
    JsonSchema,
    LeftToRight,
    Matcher,
    Reasoning,
    Regex,
    Vocabulary,
)
from dlm.grammar.masks import tokens_in
from dlm.grammar.regex import Literal, Reference
from dlm.grammar.rules import Rules
from dlm.grammar.vocabulary import Marker

BYTES = 2  # the first token of one byte
TREES = trees(st.text("abc", min_size=1, max_size=4), max_leaves=9)


def vocabulary_of(more) -> Vocabulary:
    """Return a vocabulary of every byte and some longer tokens."""
    return toy_vocabulary([*(bytes([byte]) for byte in range(256)), *more])


def least(compiled, reasoning=None) -> int:
    """Return the least budget for which `closes_within` is true."""
    return next(n for n in range(1, 99) if Matcher(compiled, reasoning).closes_within(n - 1))


@examples(150)
@given(tree=TREES, pieces=st.sets(st.text("abc", min_size=2, max_size=4)), seed=st.integers(0, 99))
def test_the_least_budget_is_kept(tree, pieces, seed):
    vocabulary = vocabulary_of([piece.encode() for piece in sorted(pieces)])
    rules, rng = Rules(), random.Random(seed)
    rules.define(Reference("root"), node_of(tree))
    grammar = compiled_for(vocabulary, rules)
    budget = least(grammar)
    with pytest.raises(BudgetError):
        LeftToRight(grammar, budget - 1)
    for more in (0, 1, 3):
        matcher_answer(Matcher(grammar), budget + more, rng.choice)


TIED = {
    "anyOf": [{"type": "array", "items": {"const": "qzxq"}, "minItems": 1}, {"const": ["name"]}]
}


@pytest.mark.parametrize("canvas", [None, 1, 2])
def test_of_two_texts_of_equal_bytes_the_one_of_fewer_tokens_is_generated(canvas):
    """At the start one text is the shortest, and after `["` both are."""
    vocabulary = vocabulary_of([b'["', b"name", b'"]'])
    grammar, rng = compiled_for(vocabulary, JsonSchema(TIED).rules(None)), torch.manual_seed(0)
    budget = least(grammar)
    assert budget == 4
    for room in range(budget, 8):
        if canvas is None:
            matcher_answer(Matcher(grammar), room, random.Random(room).choice)
            continue
        logits = (torch.randn(canvas, len(vocabulary), generator=rng) for _ in range(room))
        assert len(canvas_answer(Frontier(grammar, room), map(scores_of, logits))) <= room


FREE = st.sets(st.sampled_from(['":', '"":0,', '","', '":0', '{"', '"}', '":0,"', '0,"', "0}"]))


@examples(20)
@given(pieces=FREE, least_keys=st.integers(2, 4), seed=st.integers(0, 99))
@example(pieces={'","', '"":0,'}, least_keys=2, seed=0)  # a longer budget was refused
def test_objects_of_different_keys_keep_the_least_budget(pieces, least_keys, seed):
    vocabulary = vocabulary_of([piece.encode() for piece in sorted(pieces)])
    schema = {"additionalProperties": {"const": 0}, "minProperties": least_keys}
    grammar = compiled_for(vocabulary, JsonSchema({"type": "object", **schema}).rules(None))
    budget, rng = least(grammar), random.Random(seed)
    for more in (0, 1, 4):
        matcher_answer(Matcher(grammar), budget + more, rng.choice)


TWO_KEYS = {
    "type": "object",
    "properties": {"id": {"type": "null"}},
    "additionalProperties": {"type": "object", "minProperties": 1},
    "minProperties": 2,
}


def test_a_completion_known_after_a_forced_token_is_known_when_that_token_is_committed():
    """After `{"`, the shortest text in bytes is another one, and takes one token more."""
    vocabulary = vocabulary_of([b"null,", b'":{"', b"},", b"nul"])
    spec = JsonSchema(TWO_KEYS, whitespace="compact")
    grammar = compiled_for(vocabulary, spec.rules(None))
    budget = least(grammar)
    for draft in ([], vocabulary.encode('{"i')):
        constraint = LeftToRight(grammar, budget)
        while not constraint.ended:
            look = constraint.look(draft, exact=True)
            constraint.commit(look.forced)
            tokens = tokens_in(look.rows[0]).tolist()
            assert [constraint.fits([token]) for token in tokens] == [1] * len(tokens)
            constraint.commit(tokens[-1:])


@pytest.mark.parametrize("limit", [None, 12])
def test_a_marker_of_text_that_has_begun_is_completed_within_the_budget(limit):
    """The marker is one token, or several if its first byte is a token by itself."""
    vocabulary = vocabulary_of([b"<think>", b"</think>"])
    rules = Rules()
    rules.define(Reference("root"), Literal("ok"))
    grammar, size = compiled_for(vocabulary, rules), len(vocabulary)
    markers = [Marker([token], vocabulary) for token in (size - 2, size - 1)]
    for seed in range(60):
        rng = random.Random(seed)

        def often_a_marker(tokens, rng=rng):
            wanted = sorted({size - 2, BYTES + ord("<")}.intersection(tokens))
            return rng.choice(wanted if rng.random() < 0.5 and wanted else tokens)

        matcher_answer(Matcher(grammar, Reasoning(*markers, limit)), 16, often_a_marker)


PATTERNS = [r"(.|\n)*", "<[a-z<>/]{0,9}", "<think>[a-z]?|ok", "<think>a", "(<thi|<t)x{1,3}"]
SPELLINGS = ["<t", "<th", "thi", "nk>", "<think>", "k>a", "<think>a", "ink", "</", "think"]


@pytest.mark.parametrize("canvas", [None, 3])
@examples(80)
@given(
    pattern=st.sampled_from(PATTERNS),
    pieces=st.sets(st.sampled_from(SPELLINGS)),
    text=st.sampled_from(["<think>", "<think", "<thix", "<thinka", "ok"]),
    limit=st.sampled_from([None, 4, 18]),
    seed=st.integers(0, 1 << 32),
)
def test_a_text_is_reasoning_if_it_begins_with_the_marker_and_else_an_answer(
    canvas, pattern, pieces, text, limit, seed
):
    """Whatever tokens spell the marker, and whatever the grammar's texts begin with."""
    vocabulary = vocabulary_of([piece.encode() for piece in sorted(pieces)])
    size, rng = len(vocabulary), random.Random(seed)
    rules = Regex(pattern).rules(None)
    grammar, plain = (compiled_for(vocabulary, rules) for _ in range(2))
    markers = [Marker(vocabulary.encode(text), vocabulary) for text in ("<think>", "</think>")]
    reasoning, fewest = Reasoning(*markers, limit), sum(len(marker.rest(0)) for marker in markers)
    if pattern == "<think>a" and limit is not None and limit < fewest:
        with pytest.raises(DeadEndError, match="begins with the marker that opens reasoning"):
            Matcher(grammar, reasoning).check_budget(99)
        return
    budget = least(grammar, reasoning) + rng.randrange(20)
    spelled = vocabulary.fewest([text.encode()]) if rng.random() < 0.5 else vocabulary.encode(text)
    wish = [*spelled, *(rng.randrange(2, size) for _ in range(60))]

    def wished(tokens):
        token = wish.pop(0)
        return token if token in tokens else rng.choice(tokens)

    if canvas is None:
        tokens = matcher_answer(Matcher(grammar, reasoning), budget, wished)
    else:
        wanted = (torch.tensor(wish[at : at + canvas]) for at in range(0, 60, canvas))
        logits = (
            torch.nn.functional.one_hot(row, size) + torch.rand(canvas, size) for row in wanted
        )
        tokens = canvas_answer(Frontier(grammar, budget, reasoning), map(scores_of, logits))
    assert len(tokens) <= budget
    thought, answer = reasoning.split(tokens[:-1])
    spoken = vocabulary.text(tokens)
    assert spoken.startswith("<think>") == (len(answer) < len(tokens) - 1)
    assert b"</think>" not in thought
    assert limit is None or len(tokens) - 1 - len(answer) <= limit
    judge = Matcher(plain)
    assert judge.accept_all([*answer, tokens[-1]]) == len(answer) + 1


def test_a_mask_is_a_copy_and_has_no_bits_beyond_the_vocabulary():
    odd = vocabulary_of([b"ab"] * 7)
    assert len(odd) % 32
    grammar = compiled_for(odd, JsonSchema({"type": "string"}).rules(None))
    matcher = Matcher(grammar)
    assert matcher.accept(BYTES + ord('"'))
    words = matcher.allowed()
    assert tokens_in(words)[-1] == len(odd) - 1
    words[:] = 0
    assert matcher.allowed().any()


def test_more_tokens_than_a_text_has_are_not_taken_back():
    matcher = Matcher(compiled_for(vocabulary_of([]), JsonSchema({"type": "null"}).rules(None)))
    assert matcher.accept(BYTES + ord("n"))
    with pytest.raises(ValueError, match="count must be at most 1, got 2"):
        matcher.rollback(2)
    assert matcher.position == 1
