"""Tokens that stand with holes to their left: samplers that unmask a canvas in any order."""

import json
from random import Random

import jsonschema
import pytest
import torch
from exhaustive import by_default, examples
from hypothesis import given
from hypothesis import strategies as st
from masked import outcome
from oracle import judge
from scores import logits_of, scores_of
from unmasking import Unmasking, unmask

from dlm.grammar import Compiler, Fixed, Frontier, Grammar, GrammarError, JsonSchema, Regex

INVOICE = {
    "type": "object",
    "properties": {
        "id": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{4}$"},
        "customer": {"type": "string", "maxLength": 12},
        "total": {"type": "number", "minimum": 0, "maximum": 999},
        "lines": {
            "type": "array",
            "maxItems": 3,
            "items": {
                "type": "object",
                "properties": {
                    "name": {"enum": ["lamp", "red paint"]},
                    "count": {"type": "integer"},
                },
                "required": ["name"],
                "additionalProperties": False,
            },
        },
    },
    "required": ["id", "customer", "lines"],
    "additionalProperties": False,
}
MAP = {"type": "object", "additionalProperties": {"type": "boolean"}, "maxProperties": 3}
UNION = {
    "anyOf": [{"type": "null"}, {"type": "array", "items": {"type": "integer"}, "minItems": 2}]
}
SPECS = {
    "invoice": JsonSchema(INVOICE),
    "map": JsonSchema(MAP),
    "union": JsonSchema(UNION),
    "regex": Regex("(ab|cd){1,6}-[0-9]+"),
    "ebnf": Grammar('root ::= "(" root ")" | "x" ("," "x")*'),
}


@pytest.fixture(scope="module")
def compiled(compiler):
    return {name: compiler.compile(spec) for name, spec in SPECS.items()}


def garbage(size, L, seed, sigma):
    """Return a model that is sure of anything, or of nothing if `sigma` is small."""

    def logits(before, held):
        key = f"{seed}/{before}/{sorted(held.items())}"
        rng = torch.Generator().manual_seed(Random(key).randrange(2**31))
        return sigma * torch.randn(L, size, generator=rng)

    return logits


def least(compiled):
    """Return the tokens of a shortest text, with its stop."""
    return len(compiled.closing.completion(compiled.parser.start, None, 10**6)) + 1


@pytest.mark.parametrize("order", ["joint", "prefix", "any"])
@pytest.mark.parametrize("editing", [False, True])
@given(
    name=st.sampled_from(sorted(SPECS)),
    L=st.sampled_from([4, 7, 32]),
    sigma=st.sampled_from([1.0, 12.0]),
    more=st.sampled_from([0, 1, 7, 40]),
    seed=st.integers(0, 2**20),
)
@examples(100)
def test_any_order_of_unmasking_ends_in_a_valid_text_within_the_budget(
    compiled, vocabulary, order, editing, name, L, sigma, more, seed
):
    budget = least(compiled[name]) + more
    answer = unmask(
        Frontier(compiled[name], budget),
        garbage(len(vocabulary), L, seed, sigma),
        Unmasking(order=order, editing=editing, rng=Random(seed)),
        L,
        budget,
        vocabulary.stops,
    )
    assert len(answer.tokens) <= budget
    assert max(answer.passes) <= L
    text = vocabulary.text(answer.tokens[:-1])
    if isinstance(SPECS[name], JsonSchema):
        jsonschema.validate(json.loads(text), SPECS[name].schema)
    assert judge(SPECS[name], vocabulary).accept_string(text)


class Compared:
    """A frontier whose passes are compared with those of one that begins each of them anew."""

    def __init__(self, compiled, other, budget):
        self._anew = other.masks
        self._frontiers = Frontier(compiled, budget), Frontier(other, budget)

    def guide(self, scores, fixed):
        self._anew.clear()  # masks of an earlier pass are lost, and its positions with them
        resumed, anew = (frontier.guide(scores, fixed) for frontier in self._frontiers)
        assert outcome(resumed) == outcome(anew)
        assert resumed.read == anew.read
        return resumed

    def commit(self, tokens):
        for frontier in self._frontiers:
            frontier.commit(tokens)


@pytest.mark.parametrize("order", ["joint", "prefix", "any"])
@pytest.mark.parametrize("editing", by_default([True, False]))
@given(
    name=st.sampled_from(sorted(SPECS)),
    L=st.sampled_from([7, 32]),
    wrong=st.sampled_from([0.0, 0.1, 0.5]),
    more=st.sampled_from([0, 7, 40]),
    seed=st.integers(0, 2**20),
)
@examples(20)
def test_a_pass_that_goes_on_from_the_last_one_gives_what_one_from_the_beginning_gives(
    compiled, vocabulary, order, editing, name, L, wrong, more, seed
):
    budget, rng, size = least(compiled[name]) + more, Random(seed), len(vocabulary)
    sampler = Unmasking(order=order, editing=editing, rng=rng)
    anything, stops = garbage(size, L, seed, 12.0), vocabulary.stops
    valid = unmask(Frontier(compiled[name], budget), anything, sampler, L, budget, stops).tokens

    def model(before, held):  # it wants a valid text, but for some tokens
        wanted = valid[len(before) : len(before) + L]
        wanted = [rng.randrange(size) if rng.random() < wrong else token for token in wanted]
        return logits_of(vocabulary, wanted, L) + anything(before, held) / 100

    other = Compiler(vocabulary).compile(SPECS[name])
    frontier = Compared(compiled[name], other, budget)
    answer = unmask(frontier, model, sampler, L, budget, stops)
    assert wrong or answer.tokens == valid


TEXT = '{"id": "KL-4071", "customer": "Silver", "lines": [{"name": "lamp", "count": 3}]}'


@pytest.mark.parametrize("order", ["joint", "prefix", "any"])
@pytest.mark.parametrize("L", [4, 32])
def test_a_model_that_knows_a_valid_text_writes_it_in_any_order(compiled, vocabulary, order, L):
    tokens = [*vocabulary.encode(TEXT), vocabulary.stops[0]]

    def knows(before, held):
        return logits_of(vocabulary, tokens[len(before) : len(before) + L], L)

    sampler = Unmasking(order=order, rng=Random(order))
    answer = unmask(Frontier(compiled["invoice"], 100), knows, sampler, L, 100, vocabulary.stops)
    assert answer.tokens == tokens


def guided(frontier, vocabulary, tokens, L, **fixed):
    return frontier.guide(scores_of(logits_of(vocabulary, tokens, L)), Fixed(**fixed))


def test_a_token_that_was_not_in_the_guess_is_an_error(compiled, vocabulary):
    frontier, tokens = Frontier(compiled["invoice"], 100), vocabulary.encode(TEXT)
    with pytest.raises(GrammarError, match="at position 3 was not in the guess"):
        guided(frontier, vocabulary, tokens, 32, held={3: tokens[3]})
    guided(frontier, vocabulary, tokens, 32)
    guided(frontier, vocabulary, tokens, 32, held={3: tokens[3]})
    with pytest.raises(GrammarError, match=f"token {tokens[4]} at position 3"):
        guided(frontier, vocabulary, tokens, 32, held={3: tokens[4]})
    frontier.commit(tokens[:2])
    with pytest.raises(GrammarError, match="must be masked again"):
        guided(frontier, vocabulary, tokens, 32, held={0: tokens[2]})


def test_a_choice_that_leads_away_from_what_stands_is_refused(compiled, vocabulary):
    """ "cd" is allowed first, but then the "b" that stands after it can not be reached."""
    frontier, L = Frontier(compiled["regex"], 60), 8
    a, b, c, d, dash = (vocabulary.encode(letter)[0] for letter in "abcd-")
    guided(frontier, vocabulary, [a, b, dash, *vocabulary.encode("1")], L)
    logits = logits_of(vocabulary, [c, d, dash], L)
    logits[0, a] = 25.0
    guidance = frontier.guide(scores_of(logits), Fixed(held={1: b}))
    assert guidance.repaired
    assert guidance.guess[:2] == [a, b]
    assert guidance.suspect == 1


def test_an_edit_is_taken_where_a_text_has_it_and_a_refused_one_makes_nothing_suspect(
    compiled, vocabulary
):
    frontier, L = Frontier(compiled["regex"], 60), 8
    a, b, c, d, dash = (vocabulary.encode(letter)[0] for letter in "abcd-")
    one, two = vocabulary.encode("1")[0], vocabulary.encode("2")[0]
    end = vocabulary.stops[0]
    text = [a, b, dash, one, end]
    guided(frontier, vocabulary, text, L)
    refused = guided(frontier, vocabulary, [a, d, dash, one, end], L, held={1: b}, edits=[1])
    assert refused.guess[:5] == text
    assert not refused.repaired
    held = {1: b, 3: one}
    taken = guided(frontier, vocabulary, [c, d, dash, one, end], L, held=held, edits=[1])
    assert taken.guess[:5] == [c, d, dash, one, end]
    held = {1: d, 3: one}
    argmax = [c, d, dash, two, end]
    banned = guided(frontier, vocabulary, argmax, L, held=held, edits=[3], banned={3: {two}})
    assert banned.guess[:5] == [c, d, dash, one, end]
    edited = guided(frontier, vocabulary, argmax, L, held=held, edits=[3])
    assert edited.guess[:5] == [c, d, dash, two, end]


def test_padding_after_a_stop_is_trusted_once_all_before_it_stands(compiled, vocabulary):
    frontier, L = Frontier(compiled["regex"], 60), 12
    text = [*vocabulary.encode("ab-1"), vocabulary.stops[0]]
    guided(frontier, vocabulary, text, L)
    held = dict(enumerate(text))
    wrong = vocabulary.encode("zzzzzzzzzzzz")
    guidance = guided(frontier, vocabulary, wrong, L, held=held)
    assert guidance.guess == [*text, *[vocabulary.pad] * (L - len(text))]
    assert guidance.suspect == L
    assert guidance.rows[len(text) :] == [~vocabulary.pad] * (L - len(text))


@pytest.mark.parametrize("order", ["joint", "prefix", "any"])
@pytest.mark.parametrize("L", [4, 32])
def test_an_answer_is_squeezed_if_its_budget_refuses_what_the_model_knows(
    compiled, vocabulary, order, L
):
    tokens = [*vocabulary.encode(TEXT), vocabulary.stops[0]]

    def knows(before, held):
        return logits_of(vocabulary, tokens[len(before) : len(before) + L], L)

    for missing in (-20, 1, 4):
        budget = len(tokens) - missing
        frontier = Frontier(compiled["invoice"], budget)
        sampler = Unmasking(order=order, rng=Random(f"{order}/{missing}"))
        answer = unmask(frontier, knows, sampler, L, budget, vocabulary.stops)
        assert frontier.squeezed == (missing > 0)
        jsonschema.validate(json.loads(vocabulary.text(answer.tokens[:-1])), INVOICE)
