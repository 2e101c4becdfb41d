"""Options of a JSON schema: additional properties and white space."""

import json
import pickle
from dataclasses import replace
from typing import Any

import pytest
from readers import misread
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


NULL = {"type": "null"}
TEXT = '{"a": 1, "b": 2, "z": [3]}'


@pytest.mark.parametrize(
    ("schema", "text", "is_open"),
    [
        ({"type": "object", "properties": {"a": {"type": "integer"}}}, TEXT, True),
        ({"properties": {"a": True}, "required": ["b"], "anyOf": [{"type": "object"}]}, TEXT, True),
        ({"type": "object", "properties": {"a": True}, "additionalProperties": False}, TEXT, False),
        ({"properties": {"a": True}, "unevaluatedProperties": False}, TEXT, False),
        ({"allOf": [{"properties": {"a": True}}, {"additionalProperties": False}]}, TEXT, False),
        ({"properties": {"o": {"properties": {"a": NULL}}}}, TEXT, True),
        ({"properties": {"o": {"properties": {"a": NULL}}}}, '{"o": {"a": null, "b": 1}}', True),
    ],
)
def test_an_object_is_open_only_by_option_and_if_its_schema_does_not_close_it(
    schema: Any, text: str, is_open: bool
):
    assert reader(schema, additional_properties="schema").accepts(text) == is_open
    assert not reader(schema, additional_properties="closed").accepts(text)
    assert not reader(schema).accepts(text)


@pytest.mark.parametrize("indent", [2, 4, "\t"])
def test_the_white_space_of_json_dumps_is_accepted(indent: int | str):
    texts = [COMPACT, json.dumps(VALUE), json.dumps(VALUE, indent=indent)]
    texts += [text.replace("\n", "\r\n") for text in texts]
    assert misread(reader(NESTED).accepts, texts, []) == []


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
def test_empty_lines_and_long_runs_of_blanks_are_refused(text: str):
    json.loads(text)
    assert not reader(NESTED).accepts(text)
    assert not Recogniser(JsonObject().rules(None)).accepts(text)


def test_compact_text_has_no_white_space():
    spaced = [json.dumps(VALUE), COMPACT.replace(":", ": ", 1), COMPACT.replace(",", ", ", 1)]
    found = reader(NESTED, whitespace="compact")
    assert misread(found.accepts, [COMPACT, '{"a":[]}'], [*spaced, '{"a":[ ]}']) == []
    strings = reader({"type": "array", "items": {"type": "string"}}, whitespace="compact")
    assert strings.accepts('["a b, c: d"]')  # white space within strings is content


def test_pretty_text_has_a_line_for_each_member_and_item():
    pretty = json.dumps(VALUE, indent=2)
    refused = [
        COMPACT,
        json.dumps(VALUE),
        pretty.replace('": ', '":', 1),
        pretty.replace(",\n", ", ", 1),
        pretty.replace("\n", "\n\n", 1),
        '{\n"a": []\n}',  # not indented
    ]
    taken = [pretty, json.dumps({"a": [], "c": {}}, indent=2)]
    assert misread(reader(NESTED, whitespace="pretty").accepts, taken, refused) == []


@pytest.mark.parametrize("style", ["any", "compact", "pretty"])
def test_constants_and_objects_of_any_content_are_written_in_the_same_style(style: Any):
    value = {"a": [1, {"b": None}], "c": {}}
    texts = {
        "any": json.dumps(value),
        "compact": json.dumps(value, separators=(",", ":")),
        "pretty": json.dumps(value, indent=2),
    }
    for spec in (JsonSchema({"const": value}, whitespace=style), JsonObject(whitespace=style)):
        found = Recogniser(spec.rules(None))
        accepted = {name for name, text in texts.items() if found.accepts(text)}
        assert accepted == ({*texts} if style == "any" else {style})


def test_specs_of_other_schemas_or_options_have_other_keys_also_after_pickling():
    schema = {"type": "string", "maxLength": 3}
    specs = [
        JsonSchema(NESTED),
        JsonSchema(NESTED, additional_properties="schema"),
        JsonSchema(NESTED, whitespace="compact"),
        JsonSchema(NESTED, whitespace="pretty"),
        JsonObject(),
        JsonObject(whitespace="compact"),
        JsonSchema(schema),
        JsonSchema(schema | {"maxLength": 4}),
        JsonSchema(schema, max_whitespace=2),
        JsonSchema(schema, implied_types=False),
        JsonSchema(schema, unenforced="check"),
        JsonSchema(schema, formats=False),
        JsonSchema({"properties": {"a": {}, "b": {}}}),
        JsonSchema({"properties": {"b": {}, "a": {}}}),  # another order
    ]
    assert len({spec.key for spec in specs}) == len(specs)
    for spec in specs:
        assert pickle.loads(pickle.dumps(spec)).key == spec.key


def test_specs_of_equal_meaning_have_equal_keys():
    assert (
        JsonSchema('{"type": "null", "title": "x"}').key
        == JsonSchema({"type": "null", "title": "x"}).key
    )
    compact = JsonSchema(NESTED, whitespace="compact")
    assert replace(compact, max_whitespace=3).key == compact.key  # there is none to be bounded


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"whitespace": "none"}, "whitespace must be 'any' or 'compact' or 'pretty', got 'none'"),
        ({"whitespace": True}, "whitespace must be .*, got True"),
        (
            {"additional_properties": False},
            "additional_properties must be 'closed' or 'schema', got False",
        ),
    ],
)
def test_an_unknown_option_is_refused_with_the_known_ones(options: Any, problem: str):
    with pytest.raises(InvalidGrammarError, match=problem):
        JsonSchema(NESTED, **options)
