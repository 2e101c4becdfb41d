"""Listed values and keys, and schemas in OpenAI's wrapping."""

import json
from typing import Any

import pytest
from readers import misread
from recogniser import Recogniser

from dlm.grammar import InvalidGrammarError, InvalidValueError, JsonSchema

DRAFT_4 = {"$schema": "http://json-schema.org/draft-04/schema#"}


@pytest.mark.parametrize(
    ("schema", "texts", "others"),
    [
        ({"enum": [1e20]}, ["100000000000000000000", "1e+20"], ["1e+21", "1"]),
        ({"const": 1.0}, ["1", "1.0"], ["1.00", "1e0"]),
        ({"const": {"a": [1.0]}}, ['{"a":[1]}', '{"a":[1.0]}'], ['{"a":[2]}']),
        ({"enum": [1e300, 0.5]}, ["1e+300", "0.5"], ["1"]),
        (DRAFT_4 | {"enum": [1.0]}, ["1", "1.0"], ["2"]),
        (DRAFT_4 | {"type": "integer", "enum": [1.0, 2, 1e20]}, ["1", "2", "1" + "0" * 20],
         ["1.0", "1e+20"]),
        (DRAFT_4 | {"type": "integer", "enum": [1e25]}, [str(int(1e25))], ["1e+25"]),
        (DRAFT_4 | {"enum": [{"a": 1.0}], "properties": {"a": {"type": "integer"}}},
         ['{"a":1}'], ['{"a":1.0}']),
        (DRAFT_4 | {"enum": [[1.0, [2.0]]], "items": {}}, ["[1,[2]]"], ["[1.0,[2]]", "[1,[2.0]]"]),
    ],
)  # fmt: skip
def test_a_listed_number_is_spelled_as_its_draft_defines_integers(
    schema: Any, texts: Any, others: Any
):
    spec = JsonSchema(schema)
    assert misread(Recogniser(spec.rules(None)).accepts, texts, others) == []
    assert [spec.value(text) for text in texts] == [*map(json.loads, texts)]


@pytest.mark.parametrize("low", [21, 65, 10**6])
@pytest.mark.parametrize(
    "keys",
    [
        {"propertyNames": {"enum": [f"k{i}" for i in range(20)]}},
        {"propertyNames": {"pattern": "^[a-t]$"}},
        {"patternProperties": {"^[a-j]$": {"type": "null"}, "^[k-t]$": {}},
         "additionalProperties": False},
        {"properties": {f"k{i}": {} for i in range(20)}, "additionalProperties": {"not": {}}},
    ],
)  # fmt: skip
def test_no_value_has_more_properties_than_there_are_keys(keys: Any, low: int):
    with pytest.raises(InvalidGrammarError, match="no finite value fits"):
        JsonSchema({"type": "object", "minProperties": low} | keys).rules(None)
    if low == 21:
        JsonSchema({"type": "object", "minProperties": 20} | keys).rules(None)


SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


@pytest.mark.parametrize(
    "wrapped",
    [
        {"name": "n", "strict": True, "schema": SCHEMA},
        {"name": "n", "description": "d", "schema": SCHEMA},
        {"schema": SCHEMA},
        {"type": "json_schema", "json_schema": {"name": "n", "strict": False, "schema": SCHEMA}},
        {"type": "json_schema", "name": "n", "schema": SCHEMA},
        json.dumps({"name": "n", "schema": SCHEMA}),
    ],
)
def test_a_schema_in_openai_s_wrapping_is_unwrapped(wrapped: Any):
    spec = JsonSchema(wrapped)
    assert spec.key == JsonSchema(SCHEMA).key
    assert spec.value('{"a": 1}') == {"a": 1}
    with pytest.raises(InvalidValueError):
        spec.value("{}")


@pytest.mark.parametrize(
    "schema",
    [{"title": "n", "schema": SCHEMA}, {"properties": {"schema": SCHEMA}}, {"name": "n"}],
)
def test_other_schemas_are_not_unwrapped(schema: Any):
    assert JsonSchema(schema).parsed == schema
