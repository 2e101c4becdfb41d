"""Masks of terminals that share the walks for any text, compared with full walks."""

import json
import random

import numpy as np
import pytest

from dlm.grammar import Compiled, Compiler, JsonSchema, Matcher
from dlm.grammar.masks import WalkTable, tokens_in
from dlm.grammar.parse import Network, Terminals

NAMES = ["name", "na", "né", "日本", 'q"', "\n", "😀", "age of", ""]
SCHEMAS = [
    {"type": "object", "properties": dict.fromkeys(NAMES, True), "additionalProperties": True},
    {"type": "object", "propertyNames": {"not": {"enum": NAMES}}, "additionalProperties": True},
    {"type": "string", "not": {"enum": NAMES}},
    {"type": "string", "not": {"enum": NAMES}, "minLength": 2, "maxLength": 9},
    {"type": "string", "pattern": "^[a-c]"},
    {"type": "string", "pattern": "na|é", "maxLength": 12},
    {"type": "string", "not": {"pattern": "^x?y"}, "minLength": 3},
    {"type": "object", "properties": {"na": True}, "patternProperties": {"^.+$": {"type": "null"}}},
    {"type": "string", "pattern": "^.{2,}$", "maxLength": 9},
]


@pytest.fixture(scope="module")
def sharing(vocabulary):
    return Compiler(vocabulary)


@pytest.mark.parametrize("schema", SCHEMAS)
def test_masks_are_those_of_full_walks(vocabulary, sharing, schema):
    spec = JsonSchema(schema)
    alone = Terminals(vocabulary.trie, len(vocabulary))
    shared = sharing.compile(spec)
    plain = Compiled(Network(spec.rules(None)), vocabulary, alone)
    for seed in range(6):
        rng, one, other = random.Random(seed), Matcher(shared), Matcher(plain)
        for _ in range(16):
            words = one.allowed()
            assert np.array_equal(words, other.allowed())
            tight = rng.randint(8, 20)
            if one.closes_within(tight - 1):
                assert np.array_equal(one.allowed(tight), other.allowed(tight))
            tokens = [t for t in tokens_in(words).tolist() if t not in vocabulary.stops]
            if not tokens:
                break
            name = json.dumps(rng.choice(NAMES), ensure_ascii=rng.random() < 0.5)
            wanted = vocabulary.encode(name)
            likely = [token for token in wanted if token in tokens]
            token = rng.choice(likely if likely and rng.random() < 0.6 else tokens)
            assert one.accept(token)
            assert other.accept(token)


def test_tokens_of_the_same_transition_are_equally_far_from_the_end(vocabulary, sharing):
    """Shared walks number their states as others do: `a` matches the pattern, `%` does not."""
    schema = {"type": "object", "additionalProperties": {"type": "string", "pattern": "[ab]"}}
    grammar = sharing.compile(JsonSchema(schema))
    matcher = Matcher(grammar)
    for token in vocabulary.encode('{"x": "%'):
        assert matcher.accept(token)
    following, _ = grammar.closing._following(matcher._state)
    assert len(following.tokens) > 500
    known: dict[int, int | None] = {}
    for token, place in zip(following.tokens.tolist(), following.places.tolist(), strict=True):
        onward = grammar.steps.after(matcher._state, token)
        assert onward is not None
        assert known.setdefault(place, onward.cost) == onward.cost
    assert len({*known.values()}) > 1


def test_shared_walks_are_kept_when_all_other_masks_are_dropped(vocabulary, sharing, monkeypatch):
    grammar = sharing.compile(JsonSchema({"type": "string"}))
    before = Matcher(grammar).allowed().copy()
    walks, walk = [], WalkTable.walk
    monkeypatch.setattr(WalkTable, "walk", lambda *args: walks.append(args) or walk(*args))
    for most in (1 << 40, 0):
        monkeypatch.setattr("dlm.grammar.parse.terminal_tokens._MOST_BYTES", most)
        grammar.masks.clear()
        sharing._terminals.trim()
        assert np.array_equal(Matcher(grammar).allowed(), before)
    assert not walks
