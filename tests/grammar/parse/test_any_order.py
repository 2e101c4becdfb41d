"""Open objects whose keys come in any order: each key once, and those that are required."""

import random

import pytest

from dlm.grammar import JsonSchema, Matcher
from dlm.grammar.masks import tokens_in

INTEGERS = {name: {"type": "integer"} for name in ("a", "ab", "abc", "b", "id")}


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": INTEGERS},
        {"properties": INTEGERS, "required": ["ab", "id"]},
        {"properties": INTEGERS, "required": ["b"], "additionalProperties": {"type": "null"}},
        {"properties": dict(list(INTEGERS.items())[:3]), "additionalProperties": False},
        {"properties": {"o": {"properties": INTEGERS, "required": ["a"]}}, "required": ["o"]},
        {"properties": INTEGERS, "required": [*INTEGERS]},
    ],
)
@pytest.mark.parametrize("greedy", [True, False])
def test_whatever_is_taken_the_text_closes_and_fits(compiler, vocabulary, schema, greedy):
    spec = JsonSchema({"type": "object"} | schema, additional_properties="schema")
    grammar = compiler.compile(spec)
    choose, matcher, taken = random.Random(0), Matcher(grammar), []
    while not matcher.ended:
        tokens = tokens_in(matcher.allowed(100 - len(taken))).tolist()
        wanted = [
            token
            for token in tokens
            if token not in vocabulary.stops and not (greedy and b"}" in vocabulary.pieces[token])
        ]
        token = choose.choice(wanted or tokens)
        assert matcher.accept(token)
        taken.append(token)
    spec.value(vocabulary.text(taken))  # it refuses a key that comes twice


def test_a_shortest_completion_has_what_is_required(compiler, vocabulary):
    schema = {"type": "object", "properties": INTEGERS, "required": ["ab", "id"]}
    spec = JsonSchema(schema, additional_properties="schema")
    matcher = Matcher(compiler.compile(spec))
    begun = vocabulary.encode('{"zz": 1, "id": 2, "b": 3, "a')
    assert matcher.accept_all(begun) == len(begun)
    completion = matcher.shortest_completion()
    assert completion is not None
    assert spec.value(vocabulary.text([*begun, *completion])).keys() >= {"ab", "id", "zz", "b"}
