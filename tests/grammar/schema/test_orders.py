"""Orders of properties: the schema's own, and in open objects others that people write."""

import json
from itertools import permutations
from typing import Any

import pytest
from recogniser import Recogniser

from dlm.grammar import JsonSchema


def orders(schema: Any, value: dict[str, Any], **options: Any) -> list[str]:
    recogniser = Recogniser(JsonSchema(schema, **options).rules(None))
    ways = (dict(zip(keys, map(value.get, keys), strict=True)) for keys in permutations(value))
    return sorted("".join(way) for way in ways if recogniser.accepts(json.dumps(way)))


NAMED = {"type": "object", "properties": {name: {"type": "integer"} for name in "abcde"}}
VALUE = dict.fromkeys("abc", 1)


def test_closed_objects_have_the_schema_s_order():
    assert orders(NAMED, VALUE) == ["abc"]
    assert orders(NAMED | {"required": ["c", "a"]}, VALUE) == ["abc"]


@pytest.mark.parametrize("required", [[], ["a"], ["c", "a"]])
def test_open_objects_with_few_properties_have_any_order(required: list[str]):
    schema = {"properties": {name: {"type": "integer"} for name in "abc"}, "required": required}
    every = sorted(map("".join, permutations("abc")))
    assert orders(schema, VALUE, additional_properties="schema") == every
    assert orders(schema | {"additionalProperties": False}, VALUE) == ["abc"]
    closed = schema | {"additionalProperties": False}
    assert orders(closed, VALUE, additional_properties="schema") == every
    spec = JsonSchema(closed, additional_properties="schema")
    recogniser = Recogniser(spec.rules(None))
    for text in ('{"a": 1, "a": 1, "c": 1}', '{"b": 1, "b": 1}', '{"a": 1, "c": 1, "z": 1}'):
        assert not recogniser.accepts(text)
    assert recogniser.accepts("{}") == (not required)
    assert recogniser.accepts('{"b": 1}') == (not required)


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (NAMED, ["abc"]),
        (NAMED | {"required": ["c", "a"]}, ["abc", "cab"]),
        (NAMED | {"required": ["c"], "additionalProperties": False}, ["abc", "cab"]),
        (
            {
                "properties": {"a": {}},
                "allOf": [{"properties": {"b": {}, "d": {}}}, {"properties": {"c": {}, "e": {}}}],
            },
            ["abc", "bca"],
        ),
        (
            {"$ref": "#/$defs/x", "$defs": {"x": {"properties": {"c": {}}}}} | NAMED,
            ["abc", "cab"],
        ),
    ],
)
def test_open_objects_may_begin_with_what_is_required_or_inherited(schema: Any, expected: Any):
    assert orders(schema, VALUE, additional_properties="schema") == expected


def test_other_properties_come_first_or_last_in_open_objects():
    schema = NAMED | {"required": ["a", "b"]}
    value = {"a": 1, "b": 2, "$schema": "x"}
    found = orders(schema, value, additional_properties="schema")
    assert found == ["$schemaab", "ab$schema"]
    one = JsonSchema(schema, additional_properties="schema")
    recogniser = Recogniser(one.rules(None))
    assert recogniser.accepts('{"$schema": "x", "id": 7, "a": 1, "b": 2, "z": {}}')
    assert not recogniser.accepts('{"$schema": "x", "a": 1}')
    assert not recogniser.accepts('{"$schema": "x"}')


def test_listed_keys_come_in_the_order_of_their_list():
    schema = {
        "type": "object",
        "propertyNames": {"enum": ["c", "a", "b"]},
        "additionalProperties": {"type": "integer"},
    }
    assert orders(schema, VALUE) == ["cab"]
