"""Shortest texts of many distinct items or new keys: valid, and found in bounded work."""

import json

import pytest
from answers import needed_tokens

from dlm.grammar import BudgetError, Compiler, Frontier, JsonSchema, Matcher
from dlm.grammar.parse.earley import Parser
from dlm.grammar.parse.keys import Keys
from dlm.grammar.parse.uniqueness import Uniqueness

TEXT = {"type": "string"}
RECORD = {
    "type": "object",
    "properties": {"id": {"type": "integer"}, "name": TEXT},
    "required": ["id", "name"],
    "additionalProperties": False,
}
KINDS = {
    "integers": {"type": "array", "uniqueItems": True, "items": {"type": "integer"}},
    "texts": {"type": "array", "uniqueItems": True, "items": TEXT},
    "any values": {"type": "array", "uniqueItems": True},
    "records": {"type": "array", "uniqueItems": True, "items": RECORD},
    "texts of a pattern": {
        "type": "array",
        "uniqueItems": True,
        "items": {"type": "string", "pattern": "^[a-z]{3}$"},
    },
    "free keys": {"type": "object"},
    "keys of a pattern": {
        "type": "object",
        "patternProperties": {"^[a-z]+$": {"type": "integer"}},
        "additionalProperties": False,
    },
}


def with_least(kind, count):
    schema = KINDS[kind]
    return {**schema, "minItems" if schema["type"] == "array" else "minProperties": count}


def work_of(compiled):
    """Return the units that it takes to refuse a budget that is too small."""
    before = compiled.meter.spent
    with pytest.raises(BudgetError):
        Frontier(compiled, 20)
    return compiled.meter.spent - before


def shortest(compiled, vocabulary):
    tokens = compiled.closing.completion(compiled.parser.start, Keys())
    assert tokens is not None
    return vocabulary.text(tokens)


@pytest.mark.parametrize("kind", KINDS)
def test_the_work_of_many_distinct_items_grows_with_their_number(compiler, vocabulary, kind):
    works = []
    for count in (100, 400):
        spec = JsonSchema(with_least(kind, count))
        compiled = compiler.compile(spec)
        works.append(work_of(compiled))
        assert len(spec.value(shortest(compiled, vocabulary))) == count
    assert works[1] < 60_000
    assert works[1] < 4 * works[0]


def test_the_text_of_many_items_takes_the_shortest_ones(compiler, vocabulary):
    compiled = compiler.compile(JsonSchema(with_least("integers", 150)))
    items = json.loads(shortest(compiled, vocabulary))
    assert {*range(10)} < {*items}
    assert all(-10 < item < 100 or len(str(item)) <= 3 for item in items)
    assert sum(len(str(item)) for item in items) == 10 + 99 * 2 + 41 * 3


def test_two_arrays_of_distinct_items_have_the_same_shortest_items(compiler, vocabulary):
    of = with_least("texts", 30)
    spec = JsonSchema({"type": "object", "properties": {"a": of, "b": of}, "required": ["a", "b"]})
    value = spec.value(shortest(compiler.compile(spec), vocabulary))
    assert {*value["a"]} == {*value["b"]}


def test_arrays_whose_items_differ_in_kind_have_distinct_ones(compiler, vocabulary):
    mixed = {"anyOf": [{"type": "boolean"}, {"type": "string", "maxLength": 1}, RECORD]}
    spec = JsonSchema(
        {
            "type": "array",
            "prefixItems": [TEXT, {"type": "integer"}, TEXT],
            "items": mixed,
            "uniqueItems": True,
            "minItems": 120,
        }
    )
    assert len(spec.value(shortest(compiler.compile(spec), vocabulary))) == 120


def test_the_last_of_all_items_that_exist_is_found(compiler, vocabulary):
    letters = {"type": "string", "pattern": "^[a-z]$"}
    spec = JsonSchema({"type": "array", "uniqueItems": True, "items": letters, "minItems": 26})
    compiled = compiler.compile(spec)
    assert len(spec.value(shortest(compiled, vocabulary))) == 26
    budget = needed_tokens(compiled)
    assert Frontier(compiled, budget)


def test_masks_of_keys_that_leave_many_others_take_no_search(vocabulary):
    compiled = Compiler(vocabulary).compile(
        JsonSchema({"patternProperties": {"^.+$": TEXT}, "additionalProperties": {"type": "null"}})
    )
    assert compiled.steps.few_keys  # the keys that no reading of the pattern takes
    matcher = Matcher(compiled)
    assert matcher.accept_all(vocabulary.encode('{"ab": "c", "a')) > 0
    matcher.mask()  # makes what all keys of the object share
    assert matcher.accept_all(vocabulary.encode("b")) == 1
    before = compiled.meter.spent
    matcher.mask()
    assert compiled.meter.spent - before < 7  # searches take 14


@pytest.mark.parametrize(
    ("items", "begun"),
    [
        (TEXT, '["a", "b"'),
        (TEXT | {"minLength": 2, "maxLength": 9}, '["aa", "bb"'),
        ({"enum": ["a", "bb", "the longest"]}, '["a", "bb"'),
        (RECORD, '[{"id": 1, "name": "a"}, {"id": 1, "name": "b"}'),
        (RECORD | {"required": ["name"]}, '[{"name": "a"}, {"name": "b"}'),
    ],
)
def test_masks_of_distinct_items_with_free_strings_take_no_search(
    vocabulary, items, begun, monkeypatch
):
    searched = []
    detour = Uniqueness.detour
    monkeypatch.setattr(
        Uniqueness, "detour", lambda *place: searched.append(place) or detour(*place)
    )
    array = {"type": "array", "uniqueItems": True, "items": items, "maxItems": 9}
    matcher = Matcher(Compiler(vocabulary).compile(JsonSchema(array)))
    for token in vocabulary.encode(begun):
        matcher.mask()
        assert matcher.accept(token)
    (comma,) = vocabulary.encode(",")
    assert matcher.allowed()[comma >> 5] >> (comma & 31) & 1
    assert not searched


def test_a_name_that_is_not_used_yet_is_seen_without_a_shortest_text(vocabulary, monkeypatch):
    few = {"type": "object", "patternProperties": {"^.{1,9}$": TEXT}, "additionalProperties": False}
    names = {"few": few, "other": TEXT, "third": TEXT}
    compiled = Compiler(vocabulary).compile(
        JsonSchema({"type": "object", "properties": names, "additionalProperties": False})
    )
    assert compiled.steps.few_keys
    monkeypatch.setattr(Parser, "completion", None)
    matcher = Matcher(compiled)
    for token in vocabulary.encode('{"other": "a", "third": "b", "few": {'):
        matcher.mask()
        assert matcher.accept(token)


def test_no_property_may_follow_once_all_keys_are_used(compiler, vocabulary):
    letters = "abcdefghijklmnopqrst"  # too many to be listed as names
    keys = {"type": "string", "pattern": f"^[{letters}]$"}
    spec = JsonSchema({"propertyNames": keys, "additionalProperties": {"const": 1}})
    compiled = compiler.compile(spec)
    assert compiled.steps.few_keys
    for count in (19, 20):
        matcher = Matcher(compiled)
        tokens = vocabulary.encode("{" + ", ".join(f'"{letter}": 1' for letter in letters[:count]))
        assert matcher.accept_all(tokens) == len(tokens)
        (comma,) = vocabulary.encode(",")
        assert bool(matcher.allowed()[comma >> 5] >> (comma & 31) & 1) == (count < 20)
