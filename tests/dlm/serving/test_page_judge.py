"""The page judges answers as the specification does, and finds the places of errors in JSON."""

import json

import jsonschema
import pytest
from asks import PERSON
from page_scripts import NASTY_SCHEMA, STATE, WEATHER, needs_node, run

pytestmark = needs_node

SCHEMAS = [
    True,
    False,
    PERSON,
    {"type": ["string", "null"], "minLength": 2, "maxLength": 3},
    {"pattern": "^[a-c]+$"},
    {"enum": [1, "ab", None, {"a": [1]}]},
    {"const": {"a": [1], "b": {}}},
    {"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 2},
    {"prefixItems": [{"type": "string"}], "items": {"type": "integer"}},
    {"minimum": 1, "exclusiveMaximum": 3},
    {"exclusiveMinimum": 1, "maximum": 3},
    {"anyOf": [{"type": "string"}, {"type": "integer"}]},
    {"oneOf": [{"type": "number"}, {"type": "integer"}, {"type": "string"}]},
    {"allOf": [{"type": "number"}, {"not": {"type": "integer"}}]},
    {"properties": {"a": {"$ref": "#/$defs/x~1y"}}, "$defs": {"x/y": {"type": "array"}}},
    {"type": "object", "properties": {"a": True}, "additionalProperties": {"type": "string"}},
    {"properties": {"a": {"type": "array"}}, "required": ["a"], "title": "t", "default": 1},
]
VALUES = [
    *(None, True, False, 0, 1, 2, 3, 1.5, "", "ab", "😀😀", "abcd", "a\nb", [], [1], ["a", 1]),
    *([1, 2, 3], {}, {"a": [1]}, {"a": [1], "b": {}}, {"a": 1, "b": "c"}, {"a": 1, "b": 2}),
    {"name": "Olga", "age": 61},
    {"name": "Olga", "age": 6.5},
    {"name": "Olga", "age": 61, "x": 1},
]


def test_the_page_judges_values_as_the_specification_does():
    judged = run(
        "given[0].map(schema => given[1].map(value => fits(schema, value)))", SCHEMAS, VALUES
    )
    for schema, found in zip(SCHEMAS, judged, strict=True):
        right = jsonschema.Draft202012Validator(schema)
        for value, fits in zip(VALUES, found, strict=True):
            assert fits is right.is_valid(value), (schema, value)


@pytest.mark.parametrize(
    "schema",
    [
        {"format": "email"},
        {"type": "string", "contentEncoding": "base64"},
        {"$ref": "#"},
        {"$ref": "https://example.org"},
        {"enum": 3},
        7,
    ],
)
def test_the_page_does_not_judge_a_schema_that_it_does_not_know(schema):
    assert run('judged(given[0], "a") ?? "unknown"', schema) == "unknown"


def test_an_unknown_keyword_does_not_hide_a_value_that_is_wrong():
    assert run('fits({type: "integer", format: "email"}, "a")') is False


@pytest.mark.parametrize(
    ("state", "text", "calls", "yes", "holds"),
    [
        ({"constraint": {"json": PERSON}}, '{"name": "a", "age": 1}', [], "fits the schema", True),
        ({"constraint": {"json": PERSON}}, '{"name": "a"}', [], "fits the schema", False),
        ({"constraint": {"json": PERSON}}, '{"name": ', [], "fits the schema", False),
        ({"constraint": {"choice": ["a", "b"]}}, "b", [], "is one of the choices", True),
        ({"constraint": {"regex": "a|b"}}, "ab", [], "matches", False),
        ({"constraint": {"grammar": "start: NAME"}}, "a", [], "matches", None),
        ({}, "a", [], "", None),
        ({"tools": [WEATHER]}, "a", [], "calls fit their tools", None),
        ({"tools": [WEATHER], "choice": "required"}, "a", [], "calls fit their tools", False),
        (
            {"tools": [WEATHER]},
            "",
            [("get_weather", {"city": "a", "days": 1})],
            "calls fit their tools",
            True,
        ),
        (
            {"tools": [WEATHER]},
            "",
            [("get_weather", {"city": "a"})],
            "calls fit their tools",
            False,
        ),
        ({"tools": [WEATHER]}, "", [("toString", {})], "calls fit their tools", False),
    ],
)
def test_an_answer_is_judged_by_its_constraint_or_its_tools(state, text, calls, yes, holds):
    made = [{"name": name, "arguments": json.dumps(given)} for name, given in calls]
    expression = "[checkOf(given[0]).yes, checkOf(given[0]).holds(given[1], given[2]) ?? null]"
    assert run(expression, STATE | state, text, made) == [yes, holds]


@pytest.mark.parametrize(
    ("text", "line", "column", "words"),
    [
        ('{\n "a": 1,\n}', 3, 1, "a comma too many"),
        ('{"a" 1}', 1, 6, "A colon is missing"),
        ("[1\n2]", 2, 1, "A comma or “]” is missing"),
        ("{a: 1}", 1, 2, "A key in double quotes is missing"),
        ('["a\nb"]', 1, 2, "no closing quote"),
        (r'"\q"', 1, 1, "a wrong escape"),
        ("", 1, 1, "A value is missing before the end"),
        ("01", 1, 1, "A value is missing"),
        ("{} x", 1, 4, "Nothing may follow"),
        ("[" * 600, 1, 502, "nested too deeply"),
    ],
)
def test_an_error_of_a_json_text_has_its_place(text, line, column, words):
    expression = """(() => {
      try { return readJson(given[0]); } catch (error) {
        return [error.message, placeOf(given[0], error.offset)];
      }
    })()"""
    message, place = run(expression, text)
    assert place == {"line": line, "column": column}
    assert words in message


def test_json_texts_are_read_as_python_reads_them_and_their_parts_have_places():
    values = [*VALUES, NASTY_SCHEMA, {"a/b": {"~": [{"c": 1e300}]}}]
    texts = [json.dumps(value, indent=indent) for value in values for indent in (None, 2)]
    assert run("given[0].map(text => readJson(text).value)", texts) == [*map(json.loads, texts)]
    text = '{"a/b": [\n{"c": 1}]}'
    places = "[...readJson(given[0]).places].map(([pointer, at]) => [pointer, given[0][at]])"
    pointers = [["", "{"], ["/a~1b", "["], ["/a~1b/0", "{"], ["/a~1b/0/c", "1"]]
    assert run(places, text) == pointers
    words = "JSON schema at /a~1b/0/c: wrong"
    assert run("given[0][offsetIn(given[1], readJson(given[0]).places)]", text, words) == "1"
