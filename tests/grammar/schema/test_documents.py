"""Documents of schemas: null keywords, siblings of references, drafts, open objects."""

import json
from typing import Any

import pytest
from recogniser import Recogniser

from dlm.grammar import InvalidGrammarError, InvalidValueError, JsonSchema

DRAFTS = {
    4: "http://json-schema.org/draft-04/schema#",
    6: "http://json-schema.org/draft-06/schema#",
    7: "http://json-schema.org/draft-07/schema#",
    2019: "https://json-schema.org/draft/2019-09/schema",
    2020: "https://json-schema.org/draft/2020-12/schema",
}


def accepts(schema: Any, value: Any, **options: Any) -> bool:
    """Whether the rules accept a value; the check of finished values must agree."""
    spec = JsonSchema(schema, **options)
    accepted = Recogniser(spec.rules(None)).accepts(json.dumps(value))
    try:
        spec.value(json.dumps(value))
    except InvalidValueError:
        assert not accepted
    return accepted


KEYWORDS = """$id $anchor $ref $defs definitions title description type properties required
patternProperties additionalProperties propertyNames minProperties maxProperties items prefixItems
additionalItems minItems maxItems uniqueItems contains minContains maxContains minLength maxLength
pattern format minimum maximum exclusiveMinimum exclusiveMaximum multipleOf allOf anyOf oneOf not if
then else dependentRequired dependentSchemas dependencies unevaluatedItems unevaluatedProperties
enum examples""".split()


@pytest.mark.parametrize("word", KEYWORDS)
def test_a_keyword_that_is_null_is_absent(word: str):
    assert accepts({word: None}, {"a": [1]}, implied_types=False)
    inner = {"type": "integer", "enum": [1, 2]} | {word: None}
    outer = {"type": "array", "items": inner} | {word: None}
    assert accepts(outer, [1])
    if word not in ("enum", "items", "type"):
        assert not accepts(outer, [3])


@pytest.mark.parametrize(
    ("schema", "fits", "other"),
    [
        ({"const": None}, None, 1),
        ({"enum": [None, 1], "const": None}, None, 1),
        ({"type": "object", "properties": {"a": {"enum": [None]}}}, {"a": None}, {"a": 1}),
        ({"items": {"anyOf": [{"const": None, "title": None}]}}, [None], [1]),
        ({"$defs": {"a": {"type": "null", "minLength": None}}, "$ref": "#/$defs/a"}, None, 1),
        ({"x": {"a": {"type": "null", "enum": None}}, "$ref": "#/x/a"}, None, 1),
        ({"type": "null", "default": None, "examples": [None]}, None, 1),
        ({"items": [{"type": "null", "pattern": None}]}, [None], [1]),
        ({"properties": {"required": {"type": "null"}}}, {"required": None}, {"required": 1}),
    ],
)
def test_a_null_that_is_a_value_is_kept(schema: Any, fits: Any, other: Any):
    assert accepts(schema, fits)
    assert not accepts(schema, other)


def test_a_property_whose_schema_is_null_is_refused_with_its_place():
    with pytest.raises(
        InvalidGrammarError, match="a schema must be an object, true or false, got None"
    ) as caught:
        JsonSchema({"properties": {"a": None}})
    assert caught.value.where == "/properties/a"


def test_documents_of_a_registry_may_have_keywords_that_are_null():
    registry = {"http://a/b": {"type": "integer", "minimum": None, "required": None}}
    assert accepts({"$ref": "http://a/b"}, 1, registry=registry)
    assert not accepts({"$ref": "http://a/b"}, "1", registry=registry)


def sibling(draft: int) -> dict[str, Any]:
    """A reference that leads to another schema if the identifier beside it counts."""
    schema = {
        "$schema": DRAFTS[draft],
        "$id": "http://a/base/",
        "definitions": {
            "far": {"$id": "http://a/foo.json", "type": "string"},
            "near": {"$id": "foo.json", "type": "integer"},
        },
        "properties": {"a": {"$id": "http://a/", "$ref": "foo.json"}},
    }
    if draft > 4:
        return schema
    return json.loads(json.dumps(schema).replace('"$id"', '"id"'))


@pytest.mark.parametrize("draft", DRAFTS)
def test_an_identifier_beside_a_reference_counts_from_2019_09_on(draft: int):
    near, far = {"a": 1}, {"a": "x"}
    assert accepts(sibling(draft), near) == (draft <= 7)
    assert accepts(sibling(draft), far) == (draft > 7)


@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize(
    "more", [{"maxLength": 1}, {"type": "integer"}, {"enum": [1]}, {"not": {}}, {"pattern": "^b"}]
)
def test_keywords_beside_a_reference_count_from_2019_09_on(draft: int, more: Any):
    schema = {
        "$schema": DRAFTS[draft],
        "definitions": {"s": {"type": "string"}},
        "items": {"$ref": "#/definitions/s", **more},
    }
    try:
        assert accepts(schema, ["abc"]) == (draft <= 7)
    except InvalidGrammarError:
        assert draft > 7


def test_ignored_keywords_beside_a_reference_may_be_malformed():
    schema = {
        "$schema": DRAFTS[7],
        "definitions": {"s": {"type": "string"}},
        "items": {"$ref": "#/definitions/s", "type": "text", "minLength": -1},
    }
    assert accepts(schema, ["abc"])
    assert not accepts(schema, [1])
    with pytest.raises(InvalidGrammarError, match="is no type"):
        JsonSchema(schema | {"$schema": DRAFTS[2020]})


def test_a_document_whose_root_is_a_reference_is_known_by_its_name():
    schema = {
        "$schema": DRAFTS[7],
        "$id": "http://a/root.json",
        "$ref": "#/definitions/list",
        "definitions": {
            "list": {"type": "array", "items": {"$ref": "http://a/root.json#/definitions/one"}},
            "one": {"type": "integer"},
        },
    }
    assert accepts(schema, [1])
    assert not accepts(schema, ["1"])


@pytest.mark.parametrize(
    "uri",
    [
        "https://json-schema.org/draft-07/schema",
        "https://json-schema.org/draft-07/schema#",
        "http://json-schema.org/draft-07/schema#/",
    ],
)
def test_drafts_are_known_by_http_and_https(uri: str):
    schema = sibling(7) | {"$schema": uri}
    for implied in (True, False):
        assert accepts(schema, {"a": 1}, implied_types=implied)
        assert not accepts(schema, {"a": "x"}, implied_types=implied)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"gone": False}},
        {"type": "object", "properties": {"gone": {"not": {}}}},
        {"type": "object", "properties": {"gone": {"type": "string", "enum": [1]}, "off": False}},
        {"type": "object", "properties": {}},
        {"allOf": [{"properties": {"gone": True}}, {"properties": {"gone": False}}]},
    ],
)
def test_an_object_without_possible_properties_stays_closed(schema: Any):
    for nested, empty, other in (
        (schema, {}, {"zz": "invented"}),
        ({"properties": {"m": schema}}, {"m": {}}, {"m": {"zz": "invented"}}),
        ({"items": schema}, [{}], [{"zz": "invented"}]),
    ):
        assert accepts(nested, empty)
        assert not accepts(nested, other)
        assert accepts(nested, other, additional_properties="schema")


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object"},
        {"type": "object", "not": {"required": ["gone"]}},
        {"type": "object", "properties": {"gone": False}, "additionalProperties": True},
        {"type": "object", "properties": {}, "minProperties": 1},
    ],
)
def test_an_object_whose_schema_names_no_properties_or_allows_others_is_open(schema: Any):
    assert accepts(schema, {"zz": "any"})
    assert not accepts(schema, {"gone": 1, "zz": 1}) or "not" not in json.dumps(schema)


_NAMED = {"$defs": {"a": {"type": "string", "minLength": 1}}}


@pytest.mark.parametrize(
    ("schema", "fits", "other"),
    [
        ({"type": "string"}, "x", 1),
        ({"type": "integer", "minimum": 3}, 4, 1),
        ({"type": ["string", "integer"]}, 4, [1]),
        ({"type": "string", "enum": ["a", "b"]}, "a", "c"),
        ({"type": "string", "enum": ["a", None]}, "a", "c"),
        ({"enum": ["a", "b"]}, "a", "c"),
        ({"const": "a"}, "a", "c"),
        ({"type": "string", "const": "a"}, "a", "c"),
        ({"type": "array", "items": {"type": "integer"}}, [1], ["x"]),
        ({"type": "object", "properties": {"a": {"type": "integer"}}}, {"a": 1}, {"a": "x"}),
        ({"properties": {"a": {"type": "integer"}}}, {"a": 1}, {"a": "x"}),
        (_NAMED | {"$ref": "#/$defs/a"}, "x", ""),
        (_NAMED | {"allOf": [{"$ref": "#/$defs/a"}]}, "x", ""),
        (_NAMED | {"type": "string", "allOf": [{"$ref": "#/$defs/a"}]}, "x", ""),
        (_NAMED | {"oneOf": [{"$ref": "#/$defs/a"}, {"type": "integer"}]}, "x", ""),
        ({"anyOf": [{"type": "string"}, {"type": "integer"}]}, 1, [1]),
        ({"type": "string", "not": {"const": "a"}}, "x", "a"),
        ({"$id": "http://a/b/", "$ref": "#/$defs/c", "$defs": {"c": {"const": 1}}}, 1, 2),
        ({"$ref": "#s", "$defs": {"c": {"$anchor": "s", "const": 1}}}, 1, 2),
    ],
)
@pytest.mark.parametrize("implied", [True, False])
def test_a_nullable_schema_accepts_null_too(schema: Any, fits: Any, other: Any, implied: bool):
    options = {"implied_types": implied, "additional_properties": "schema"}
    for around, within in (
        (lambda s: s, lambda v: v),
        (lambda s: {"type": "object", "properties": {"p": s}}, lambda v: {"p": v}),
    ):
        if around(1) != 1 and "$defs" in schema:
            continue  # the references are those of the root
        nullable = around(schema | {"nullable": True})
        assert accepts(nullable, within(None), **options)
        assert accepts(nullable, within(fits), **options)
        assert not accepts(nullable, within(other), **options)
        refuses_null = "enum" not in schema or None not in schema["enum"]
        if refuses_null and (implied or schema.keys() != {"properties"}):
            for off in ({}, {"nullable": False}, {"nullable": "true"}):
                assert not accepts(around(schema | off), within(None), **options)


@pytest.mark.parametrize("draft", DRAFTS)
def test_nullable_is_read_in_every_draft_and_never_as_a_name(draft: int):
    schema = {
        "$schema": DRAFTS[draft],
        "properties": {"nullable": {"type": "integer"}, "n": {"type": "string", "nullable": True}},
        "required": ["nullable"],
        "type": "object",
    }
    assert accepts(schema, {"nullable": 1, "n": None})
    assert not accepts(schema, {"nullable": None})


@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize("strict", [True, False])
def test_a_boolean_bound_means_the_same_in_every_draft(draft: int, strict: bool):
    for limit, beyond in (("Minimum", -1), ("Maximum", 1)):
        schema = {
            "$schema": DRAFTS[draft],
            "type": "integer",
            limit.lower(): 5,
            f"exclusive{limit}": strict,
        }
        assert accepts(schema, 5) == (not strict)
        assert accepts(schema, 5 - beyond)
        assert not accepts(schema, 5 + beyond)
    assert accepts({"$schema": DRAFTS[draft], "items": {"exclusiveMinimum": True}}, [-7])
