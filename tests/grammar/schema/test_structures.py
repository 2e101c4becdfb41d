"""Orders of properties: the schema's own, and in open objects the usual others."""

import json
from itertools import permutations
from typing import Any

import pytest
from readers import misread
from recogniser import Recogniser

from dlm.grammar import JsonSchema


def orders(schema: Any, value: dict[str, Any], **options: Any) -> list[str]:
    recogniser = Recogniser(JsonSchema(schema, **options).rules(None))
    ways = (dict(zip(keys, map(value.get, keys), strict=True)) for keys in permutations(value))
    return sorted("".join(way) for way in ways if recogniser.accepts(json.dumps(way)))


VALUE = dict.fromkeys("abc", 1)
EVERY = sorted(map("".join, permutations("abc")))


@pytest.mark.parametrize("required", [[], ["a"], ["c", "a"], ["c", "b", "a", "d"]])
@pytest.mark.parametrize("names", ["abcd", "abcdefghij"])
def test_open_objects_have_any_order(names: str, required: list[str]):
    schema = {
        "properties": {name: {"type": "integer"} for name in names},
        "required": required,
    }
    value = VALUE | dict.fromkeys(required, 1)
    every = sorted(map("".join, permutations(value)))
    assert orders(schema, value, additional_properties="schema") == every
    assert orders(schema, value) == [min(every)]
    spec = JsonSchema(schema, additional_properties="schema")
    rules = spec.rules(None)
    assert rules.free_keys  # the parser's keys, not its rules, refuse a key that occurs twice
    recogniser = Recogniser(rules)
    assert recogniser.accepts('{"$schema": "x", "c": 1, "a": 1, "z": {}, "b": 1, "d": 1}')
    assert not recogniser.accepts('{"c": 1, "a": "x", "b": 1, "d": 1}')
    for text in ("{}", '{"b": 1}', '{"z": 1}', '{"z": 1, "b": 2}'):
        assert recogniser.accepts(text) == (not required)


@pytest.mark.parametrize("required", [[], ["a"], ["c", "a"]])
def test_closed_objects_of_few_properties_have_any_order(required: list[str]):
    schema = {
        "properties": {name: {"type": "integer"} for name in "abc"},
        "required": required,
        "additionalProperties": False,
    }
    assert orders(schema, VALUE) == ["abc"]
    assert orders(schema, VALUE, additional_properties="schema") == EVERY
    recogniser = Recogniser(JsonSchema(schema, additional_properties="schema").rules(None))
    for text in ('{"a": 1, "a": 1, "c": 1}', '{"b": 1, "b": 1}', '{"a": 1, "c": 1, "z": 1}'):
        assert not recogniser.accepts(text)
    assert recogniser.accepts("{}") == (not required)


MANY = {
    "properties": {name: {"type": "integer"} for name in "abcdefgh"},
    "additionalProperties": False,
}
SOME = {"properties": {name: {"type": "integer"} for name in "abcdefgh"}, "required": [*"hgfedcb"]}


@pytest.mark.parametrize(
    ("schema", "value", "expected"),
    [
        (MANY, VALUE, ["abc"]),
        (MANY | {"required": ["c", "a"]}, VALUE, ["abc", "cab"]),
        (
            {
                "properties": {name: {} for name in "ade"},
                "allOf": [{"properties": {"b": {}, "f": {}}}, {"properties": {"c": {}, "g": {}}}],
                "unevaluatedProperties": False,
            },
            VALUE,
            ["abc", "bca"],
        ),
    ],
)
def test_closed_objects_of_many_properties_begin_with_a_usual_order(
    schema: Any, value: Any, expected: Any
):
    assert orders(schema, value, additional_properties="schema") == expected


def test_beside_many_required_properties_others_come_first_or_last():
    spec = JsonSchema(SOME, additional_properties="schema")
    value = dict.fromkeys("bcdefgh", 1)
    taken = [
        value,
        dict.fromkeys("hgfedcb", 1),
        {"$schema": "x"} | value,
        value | {"z": 1},
        {"y": 1} | dict.fromkeys("hgfedcba", 1) | {"z": 1},
    ]
    refused = [{"b": 1}, {"$schema": "x"}, dict.fromkeys("chbdefg", 1)]
    accepts = Recogniser(spec.rules(None)).accepts
    assert misread(accepts, map(json.dumps, taken), map(json.dumps, refused)) == []


def test_listed_keys_come_in_the_order_of_their_list():
    schema = {
        "type": "object",
        "propertyNames": {"enum": ["c", "a", "b"]},
        "additionalProperties": {"type": "integer"},
    }
    assert orders(schema, VALUE) == ["cab"]


@pytest.mark.parametrize("most", [0, 1, 2, 3])
@pytest.mark.parametrize("properties", [{}, {"a": True}, dict.fromkeys("abcde", True)])
def test_open_objects_have_at_most_as_many_properties_as_max_properties(
    most: int, properties: dict[str, Any]
):
    schema = {"type": "object", "properties": properties, "maxProperties": most}
    recogniser = Recogniser(JsonSchema(schema, additional_properties="schema").rules(None))
    for count in range(5):
        value = dict.fromkeys("abxyz"[:count], 1)
        assert recogniser.accepts(json.dumps(value)) == (count <= most), value
