"""Options of a JSON schema: which properties an object may have, and what white space there is."""

import json
import pickle
from dataclasses import replace
from typing import Any

import pytest
from recogniser import Recogniser

from dlm.grammar import InvalidGrammarError, JsonObject, JsonSchema

NESTED: dict[str, Any] = {
    "type": "object",
    "properties": {
        "a": {"type": "array", "items": {"$ref": "#/$defs/b"}},
        "c": {"type": "object", "additionalProperties": {"type": "integer"}},
    },
    "required": ["a"],
    "$defs": {
        "b": {"type": "object", "properties": {"d": {"type": "integer"}, "e": {"type": "array"}}}
    },
}
VALUE = {"a": [{"d": 1, "e": [[1, 2], {}]}, {"d": 2, "e": []}], "c": {"f": 3, "g": 4}}
COMPACT = json.dumps(VALUE, separators=(",", ":"))


def reader(schema: Any, **options: Any) -> Recogniser:
    return Recogniser(JsonSchema(schema, **options).rules(None))


@pytest.mark.parametrize(
    ("schema", "others"),
    [
        ({"type": "object", "properties": {"a": {"type": "integer"}}}, True),
        ({"properties": {"a": True}, "required": ["b"], "anyOf": [{"type": "object"}]}, True),
        ({"type": "object", "properties": {"a": True}, "additionalProperties": False}, False),
        ({"properties": {"a": True}, "unevaluatedProperties": False}, False),
        ({"allOf": [{"properties": {"a": True}}, {"additionalProperties": False}]}, False),
        ({"properties": {"o": {"type": "object", "properties": {"a": {}}}}}, True),
    ],
)
def test_open_objects_are_those_that_the_schema_does_not_close(schema: Any, others: bool):
    text = '{"a": 1, "b": 2, "z": [3]}'
    assert reader(schema, additional_properties="schema").accepts(text) == others
    assert not reader(schema).accepts(text)


def test_nested_objects_are_open_or_closed_as_the_outer_one_is():
    schema = {"properties": {"o": {"type": "object", "properties": {"a": {"type": "null"}}}}}
    text = '{"o": {"a": null, "b": 1}}'
    assert reader(schema, additional_properties="schema").accepts(text)
    assert not reader(schema, additional_properties="closed").accepts(text)
    assert not reader(schema, additional_properties="schema").accepts('{"o": {"a": 1}}')


@pytest.mark.parametrize("indent", [2, 4, "\t"])
def test_white_space_may_be_what_json_dumps_writes(indent: int | str):
    found = reader(NESTED)
    for text in (COMPACT, json.dumps(VALUE), json.dumps(VALUE, indent=indent)):
        assert found.accepts(text)
        assert found.accepts(text.replace("\n", "\r\n"))


@pytest.mark.parametrize(
    "text",
    [
        '{\n\n"a": []}',
        '{\n  \n"a": []}',
        '{"a": [\n\n]}',
        '{"a": []\n\n}',
        '{"a": [],\r\n\r\n"c": {}}',
        '{"a": [], \n \n "c": {}}',
        '{"a":\r\r[]}',
        '{"a":' + " " * 9 + "[]}",
        '{"a": []\n' + " " * 17 + "}",
        '{"a": []\n' + " " * 36 + "}",
    ],
)
def test_no_line_is_empty_and_no_run_of_blanks_is_endless(text: str):
    json.loads(text)
    assert not reader(NESTED).accepts(text)
    assert not Recogniser(JsonObject().rules(None)).accepts(text)


def test_compact_text_has_no_white_space():
    found = reader(NESTED, whitespace="compact")
    assert found.accepts(COMPACT)
    for text in (json.dumps(VALUE), COMPACT.replace(":", ": ", 1), COMPACT.replace(",", ", ", 1)):
        assert not found.accepts(text)
    assert found.accepts('{"a":[]}')
    assert not found.accepts('{"a":[ ]}')
    strings = reader({"type": "array", "items": {"type": "string"}}, whitespace="compact")
    assert strings.accepts('["a b, c: d"]')  # it is between tokens only


def test_pretty_text_has_a_line_for_each_member_and_item():
    found = reader(NESTED, whitespace="pretty")
    assert found.accepts(json.dumps(VALUE, indent=2))
    assert found.accepts(json.dumps({"a": [], "c": {}}, indent=2))
    for text in (
        COMPACT,
        json.dumps(VALUE),
        json.dumps(VALUE, indent=2).replace('": ', '":', 1),
        json.dumps(VALUE, indent=2).replace(",\n", ", ", 1),
        json.dumps(VALUE, indent=2).replace("\n", "\n\n", 1),
        '{\n"a": []\n}',  # not indented
    ):
        assert not found.accepts(text)


@pytest.mark.parametrize("style", ["any", "compact", "pretty"])
def test_listed_arrays_and_objects_are_written_in_the_same_style(style: Any):
    value = {"a": [1, {"b": None}], "c": {}}
    texts = {
        "any": json.dumps(value),
        "compact": json.dumps(value, separators=(",", ":")),
        "pretty": json.dumps(value, indent=2),
    }
    found = reader({"const": value}, whitespace=style)
    accepted = {name for name, text in texts.items() if found.accepts(text)}
    assert accepted == ({*texts} if style == "any" else {style})


def test_any_object_takes_the_styles_too():
    text = '{"a":[1,2],"b":{}}'
    spread = json.dumps(json.loads(text), indent=2)
    compact, pretty = (Recogniser(JsonObject(whitespace=w).rules(None)) for w in STYLES)
    assert compact.accepts(text)
    assert not compact.accepts(spread)
    assert pretty.accepts(spread)
    assert not pretty.accepts(text)


STYLES: Any = ("compact", "pretty")


def test_options_are_part_of_what_a_spec_is():
    specs = [
        JsonSchema(NESTED),
        JsonSchema(NESTED, additional_properties="schema"),
        JsonSchema(NESTED, whitespace="compact"),
        JsonSchema(NESTED, whitespace="pretty"),
        JsonObject(),
        JsonObject(whitespace="compact"),
    ]
    assert len({spec.key for spec in specs}) == len(specs)
    for spec in specs:
        assert pickle.loads(pickle.dumps(spec)).key == spec.key
    compact = JsonSchema(NESTED, whitespace="compact")
    assert replace(compact, max_whitespace=3).key == compact.key  # there is none to be bounded


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"whitespace": "none"}, "whitespace is 'none', not 'any' or 'compact' or 'pretty'"),
        ({"whitespace": True}, "whitespace is True, not"),
        (
            {"additional_properties": False},
            "additional_properties is False, not 'closed' or 'schema'",
        ),
    ],
)
def test_an_option_that_is_none_is_refused_with_those_that_there_are(options: Any, problem: str):
    with pytest.raises(InvalidGrammarError, match=problem):
        JsonSchema(NESTED, **options)
