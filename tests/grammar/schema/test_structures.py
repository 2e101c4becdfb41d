"""Orders of properties: required ones in the schema's, all in it, or any; each comes once."""

import json
from collections.abc import Iterator
from itertools import chain, combinations, permutations
from typing import Any

import pytest
from recogniser import Recogniser

from dlm.grammar import InvalidGrammarError, JsonSchema


def orders(schema: Any, value: dict[str, Any], **options: Any) -> list[str]:
    recogniser = Recogniser(JsonSchema(schema, **options).rules(None))
    ways = (dict(zip(keys, map(value.get, keys), strict=True)) for keys in permutations(value))
    return sorted("".join(way) for way in ways if recogniser.accepts(json.dumps(way)))


def selections(names: str) -> Iterator[str]:
    """Yield all selections of `names`, each in all orders."""
    sets = chain.from_iterable(combinations(names, count) for count in range(len(names) + 1))
    return ("".join(way) for some in sets for way in permutations(some))


def of_properties(names: str, required: str = "", **more: Any) -> dict[str, Any]:
    properties = {name: {"type": "integer"} for name in names}
    return {"type": "object", "properties": properties, "required": [*required], **more}


def written(keys: str) -> str:
    return "{" + ", ".join(f'"{key}": 1' for key in keys) + "}"


VALUE = dict.fromkeys("abc", 1)
EVERY = sorted(map("".join, permutations("abc")))


@pytest.mark.parametrize("required", ["", "a", "b", "bd", "db", "abc", "abcd"])
@pytest.mark.parametrize("order", [None, "required", "schema", "any"])
def test_properties_come_in_the_chosen_order_and_each_once(order: Any, required: str):
    spec = JsonSchema(of_properties("abcd", required), property_order=order)
    in_order = {"schema": "abcd", "any": ""}.get(order, "".join(sorted(required)))
    accepts = Recogniser(spec.rules(None)).accepts
    for keys in selections("abcd"):
        kept = [key for key in keys if key in in_order]
        right = {*required} <= {*keys} and kept == sorted(kept)
        assert accepts(written(keys)) == right, keys
        assert not accepts(written(keys + "z"))
        for key in keys:
            assert not accepts(written(keys + key))
            assert not accepts(written(key + keys))


@pytest.mark.parametrize("low", [0, 2, 3, 5])
@pytest.mark.parametrize("high", [None, 2, 3, 4])
@pytest.mark.parametrize("order", ["required", "schema", "any"])
def test_the_number_of_properties_is_bounded_in_each_order(order: Any, low: int, high: int | None):
    bounds = {"minProperties": low} | ({} if high is None else {"maxProperties": high})
    schema = of_properties("abcde", "bd", **bounds)
    in_order = {"required": "bd", "schema": "abcde", "any": ""}[order]
    try:
        accepts = Recogniser(JsonSchema(schema, property_order=order).rules(None)).accepts
    except InvalidGrammarError:
        assert low > (high or low)
        return
    for keys in selections("abcde"):
        kept = [key for key in keys if key in in_order]
        fits = low <= len(keys) <= (5 if high is None else high)
        right = fits and {*"bd"} <= {*keys} and kept == sorted(kept)
        assert accepts(written(keys)) == right, keys


@pytest.mark.parametrize("order", ["required", "schema", "any"])
def test_keys_without_a_name_come_between_named_ones(order: Any):
    schema = of_properties("ab", "a", additionalProperties={"type": "integer"})
    accepts = Recogniser(JsonSchema(schema, property_order=order).rules(None)).accepts
    for keys in selections("abyz"):
        named = keys[: max(keys.rfind("a"), keys.rfind("b")) + 1]
        right = "a" in keys
        if order == "schema":
            right = right and named in ("a", "ab")
        assert accepts(written(keys)) == right, keys


FEW = [
    {"propertyNames": {"enum": ["c", "a", "b"]}, "additionalProperties": {"type": "integer"}},
    {"patternProperties": {"^[abc]$": {"type": "integer"}}, "additionalProperties": False},
    {"patternProperties": {"^[abc]$": {"type": "integer"}}},
]


@pytest.mark.parametrize("schema", FEW)
def test_the_keys_of_a_finite_map_come_in_any_order_each_once(schema: Any):
    accepts = Recogniser(JsonSchema({"type": "object", **schema}).rules(None)).accepts
    for keys in selections("abcd"):
        assert accepts(written(keys)) == ("d" not in keys), keys
        for key in keys:
            assert not accepts(written(keys + key))


def test_many_properties_take_rules_in_proportion_to_their_number():
    sizes = []
    for count in (100, 400):
        names = [f"p{i}" for i in range(count)]
        schema = {"type": "object", "properties": {name: {} for name in names}}
        sizes.append(len(repr(JsonSchema(schema | {"required": names[::2]}).rules(None).nodes)))
    assert sizes[1] < 5 * sizes[0]


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
    spec = JsonSchema(schema, additional_properties="schema")
    rules = spec.rules(None)
    assert rules.free_keys  # the parser's keys, not its rules, refuse a key that occurs twice
    recogniser = Recogniser(rules)
    assert recogniser.accepts('{"$schema": "x", "c": 1, "a": 1, "z": {}, "b": 1, "d": 1}')
    assert not recogniser.accepts('{"c": 1, "a": "x", "b": 1, "d": 1}')
    for text in ("{}", '{"b": 1}', '{"z": 1}', '{"z": 1, "b": 2}'):
        assert recogniser.accepts(text) == (not required)


def test_the_order_of_properties_from_several_schemas_is_free():
    schema = {
        "properties": {name: {} for name in "ade"},
        "allOf": [{"properties": {"b": {}, "f": {}}}, {"properties": {"c": {}, "g": {}}}],
        "unevaluatedProperties": False,
    }
    assert orders(schema, VALUE, additional_properties="schema") == EVERY
    assert orders(schema, VALUE) == EVERY


def test_an_order_is_one_of_three():
    with pytest.raises(InvalidGrammarError, match="property_order must be 'required' or"):
        JsonSchema({"type": "object"}, property_order="sorted")  # pyright: ignore


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


PAIR = {"properties": {name: {"type": "integer"} for name in "abc"}, "type": "object"}


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"dependentRequired": {"a": ["b"]}}, EVERY),
        ({"dependentSchemas": {"a": {"properties": {"b": {"minimum": 0}}}}}, EVERY),
        ({"dependentRequired": {"a": ["b"]}, "required": ["c", "a"]}, ["abc", "acb", "bac"]),
        ({"not": {"properties": {"a": {"minimum": 5}}}}, EVERY),
        ({"not": {"properties": {"a": {"const": 5}}, "required": ["a"]}}, EVERY),
        ({"required": ["b"], "allOf": [{"dependentRequired": {"c": ["b"]}}]}, EVERY),
    ],
)
def test_a_property_that_another_one_requires_comes_anywhere(more: Any, expected: list[str]):
    assert orders(PAIR | more, VALUE) == expected
