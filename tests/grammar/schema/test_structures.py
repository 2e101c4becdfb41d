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
    assert rules.free_keys  # no key comes twice: that is watched beside the parser
    recogniser = Recogniser(rules)
    assert recogniser.accepts('{"$schema": "x", "c": 1, "a": 1, "z": {}, "b": 1, "d": 1}')
    assert not recogniser.accepts('{"c": 1, "a": "x", "b": 1, "d": 1}')
    for text in ("{}", '{"b": 1}', '{"z": 1}', '{"z": 1, "b": 2}'):
        assert recogniser.accepts(text) == (not required)


@pytest.mark.parametrize("required", [[], ["a"], ["c", "a"]])
def test_few_properties_that_are_all_there_may_be_have_any_order(required: list[str]):
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
def test_objects_with_many_properties_begin_as_people_begin_them(
    schema: Any, value: Any, expected: Any
):
    assert orders(schema, value, additional_properties="schema") == expected


def test_where_much_is_required_other_properties_come_first_or_last():
    spec = JsonSchema(SOME, additional_properties="schema")
    recogniser = Recogniser(spec.rules(None))
    value = dict.fromkeys("bcdefgh", 1)
    for given in (
        value,
        dict.fromkeys("hgfedcb", 1),
        {"$schema": "x"} | value,
        value | {"z": 1},
        {"y": 1} | dict.fromkeys("hgfedcba", 1) | {"z": 1},
    ):
        assert recogniser.accepts(json.dumps(given))
    for given in ({"b": 1}, {"$schema": "x"}, dict.fromkeys("chbdefg", 1)):
        assert not recogniser.accepts(json.dumps(given))


def test_listed_keys_come_in_the_order_of_their_list():
    schema = {
        "type": "object",
        "propertyNames": {"enum": ["c", "a", "b"]},
        "additionalProperties": {"type": "integer"},
    }
    assert orders(schema, VALUE) == ["cab"]


@pytest.mark.parametrize("most", [0, 1, 2, 3])
@pytest.mark.parametrize("properties", [{}, {"a": True}, dict.fromkeys("abcde", True)])
def test_open_objects_have_no_more_properties_than_they_may(most: int, properties: dict[str, Any]):
    schema = {"type": "object", "properties": properties, "maxProperties": most}
    recogniser = Recogniser(JsonSchema(schema, additional_properties="schema").rules(None))
    for count in range(5):
        value = dict.fromkeys("abxyz"[:count], 1)
        assert recogniser.accepts(json.dumps(value)) == (count <= most), value
