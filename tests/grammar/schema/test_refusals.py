"""Schemas that are refused: what cannot be enforced, and what takes too much work."""

from typing import Any

import pytest
from written_schemas import written

from dlm.grammar import InvalidGrammarError
from dlm.grammar.schema import TooMuchWorkError


@pytest.mark.parametrize(
    ("schema", "where", "reason"),
    [
        ({"properties": {"a": {"uniqueItems": True}}}, "/properties/a/uniqueItems", "may repeat"),
        ({"items": {"pattern": "(a)\\1"}}, "/items/pattern", "reference"),
        ({"properties": {"a": {"$ref": "#/x"}}}, "/properties/a/$ref", "leads to no schema"),
        ({"$ref": "http://json-schema.org/schema"}, "/$ref", "leads to no schema"),
        ({"anyOf": [{"$ref": "#"}]}, "/", "refers to itself"),
        ({"properties": {"a": {"type": "text"}}}, "/properties/a/type", "is no type"),
        ({"items": {"minLength": "a"}}, "/items/minLength", "non-negative integer"),
        ({"not": {"prefixItems": [{}], "items": [{}]}}, "/not/items", "beside prefixItems"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"required": ["a"], "properties": {"a": {"$ref":
          "#/$defs/a"}}}}}, "/", "no finite value"),
        ({"type": "string", "pattern": "^(?=.*a.{20}$)\\w+$"}, "/pattern", "too large"),
        ({"if": {"patternProperties": {"a.{7}h": {"const": 1}, "b.{7}i": {"const": 2}},
          "additionalProperties": False}, "then": {"required": ["x"]}}, "/", "4096 states"),
        ({"required": ["a"], "patternProperties": {"^.{1,5000}$": {"type": "string"}}}, "/",
         "4096 states"),
        (False, "/", "no finite value"),
        ({"properties": {"a": {"required": ["b"], "properties": {"b": {"enum": []}}}}, "required":
          ["a"]}, "/properties/a/properties/b", "no finite value"),
        ({"type": "array", "minItems": 1, "items": {"type": "number", "minimum": 1e17,
          "multipleOf": 0.01}}, "/items", "no finite value"),
        ({"properties": {"a": {}}, "patternProperties": {"^[k-m][0-9]$": {}}, "minProperties": 32,
          "additionalProperties": False}, "/", "no finite value"),
    ],
)  # fmt: skip
def test_a_schema_that_cannot_be_enforced_is_refused_with_its_pointer(
    schema: Any, where: str, reason: str
):
    with pytest.raises(InvalidGrammarError, match=reason) as caught:
        written(schema)
    assert caught.value.where == where


def _chain(length: int, link: Any) -> dict[str, Any]:
    steps = {f"d{i}": link({"$ref": f"#/$defs/d{i + 1}"}) for i in range(length)}
    return {"$ref": "#/$defs/d0", "$defs": steps | {f"d{length}": {"type": "integer"}}}


@pytest.mark.parametrize(
    "schema",
    [
        _chain(26, lambda r: {"properties": {"a": r, "b": r}, "required": ["a", "b"]}),
        _chain(26, lambda r: {"allOf": [r, dict(r)]}),
        _chain(26, lambda r: {"anyOf": [r, dict(r)]}),
        {"enum": list(range(5_000))},
        {"enum": [f"word {i}" for i in range(4_000)]},
        {"oneOf": [{"properties": {"kind": {"const": f"k{i}"}}, "required": ["kind"]}
                   for i in range(100)]},
        {"type": "object", "properties": {f"p{i}": {"type": "null"} for i in range(300)}},
        {"type": "string", "minLength": 10**9},
        {"type": "array", "minItems": 10**9},
    ],
)  # fmt: skip
def test_large_schemas_take_little_work(schema: Any):
    written(schema, most_work=12_000)


@pytest.mark.parametrize(
    "schema",
    [
        {"oneOf": [{"properties": {"v": {"minimum": i, "maximum": i}}, "required": ["v"]}
                   for i in range(60)]},
        {"type": "array", "prefixItems": [{}] * 3_000},
        {"not": {"oneOf": [True] * 100}},
        {"anyOf": [True] * 3_000},
        {"enum": [list(range(3_000))], "anyOf": [{"minItems": i} for i in range(60)]},
        {"pattern": "^((([a-z]{9}){9}){9}){9}$"},
        {"pattern": "x" * 6_000 + "{999}"},
    ],
)  # fmt: skip
def test_a_schema_that_takes_too_much_work_is_refused_with_the_limit(schema: Any):
    with pytest.raises(TooMuchWorkError, match="more than 1000 steps"):
        written(schema, most_work=1000)
