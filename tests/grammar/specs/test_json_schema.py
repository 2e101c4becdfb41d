"""JSON schemas as users give them: errors at once, checks of finished values."""

import json
import pickle
from datetime import date
from typing import Any

import pytest
from pydantic import BaseModel
from readers import misread
from recogniser import Recogniser

from dlm.grammar import InvalidGrammarError, InvalidValueError, JsonObject, JsonSchema
from dlm.grammar.canvas.workers import build
from dlm.grammar.limits import LimitedCache
from dlm.grammar.specs import json_schema

WRITE = json_schema.write


class Invoice(BaseModel):
    number: int
    issued: date
    note: str | None = None


def test_a_pydantic_model_is_a_schema():
    spec = JsonSchema(Invoice)
    text, wrong = (
        f'{{"number": 7, "issued": "{year}-02-29", "note": null}}' for year in (2024, 2023)
    )
    assert misread(Recogniser(spec.rules(None)).accepts, [text], [wrong]) == []
    assert Invoice.model_validate(spec.value(text)).issued == date(2024, 2, 29)


def test_a_schema_may_be_text():
    assert JsonSchema('{"type": "null"}').parsed == {"type": "null"}


@pytest.mark.parametrize(
    ("schema", "where", "problem"),
    [
        ("not json", "line 1 column 1", "not JSON"),
        ('{"type": }', "line 1 column 10", "not JSON"),
        ('{"type": "string"', "line 1 column 18", "not JSON"),
        ("[1, 2]", "", "a schema must be an object, true or false, got"),
        ("7", "", "a schema must be an object, true or false, got 7"),
        ({"a": object()}, "", "not JSON data"),
        ({"type": "objectt"}, "/type", "JSON schema at /type: 'objectt' is no type"),
        ({"properties": {"a": {"minimum": "x"}}}, "/properties/a/minimum", "must be a number"),
        ({"type": "object", "required": "a"}, "/required", "a list of names"),
        ({"type": "string", "pattern": "(a"}, "/pattern", "this group does not end"),
        ({"properties": {"a/b": {"pattern": "("}}}, "/properties/a~1b/pattern", "group"),
        ({"minimum": 10**400}, "/minimum", "must be a number, not 1000"),
        ({"maxLength": 10**400}, "/maxLength", "must be a non-negative integer, not 1000"),
        ({"multipleOf": 10**400}, "/multipleOf", "must be a positive number, not 1000"),
        ({"properties": {"\ud800": {}}}, "", "a lone surrogate"),
        ({"enum": ["\ud800"]}, "", "a lone surrogate"),
    ],
)
def test_an_invalid_schema_is_refused_with_its_place_and_the_reason(schema, where, problem):
    with pytest.raises(InvalidGrammarError, match=problem) as caught:
        JsonSchema(schema)
    assert caught.value.where == where


@pytest.mark.parametrize(
    ("registry", "problem"),
    [
        ([1], r"registry must map URIs to documents, got \[1\]"),
        ({5: {}}, "registry must map URIs to documents, got"),
        ({"http://a/b": {1}}, "JSON schema at http://a/b: not JSON data"),
        ({"http://a/b": {"const": "\ud800"}}, "JSON schema at http://a/b: a lone surrogate"),
        ({"http://a/b": "{"}, "JSON schema at http://a/b line 1 column 2: not JSON: "),
        (
            {"http://a/b": 3},
            "JSON schema at http://a/b: a schema must be an object, true or false, got 3",
        ),
    ],
)
def test_a_registry_has_json_documents(registry, problem):
    with pytest.raises(InvalidGrammarError, match=problem):
        JsonSchema({"$ref": "http://a/b"}, registry=registry)
    fine = JsonSchema({"$ref": "http://a/b"}, registry={"http://a/b": '{"type": "null"}'})
    assert fine.value("null") is None


_WRONG = {"properties": {"x": {"type": "strin"}}}  # no subschema of a document, unless referred to
_OBJECT, _OTHER = ({"type": kind, "$ref": "#/wrong"} for kind in ("object", "string"))


@pytest.mark.parametrize(
    ("schema", "where"),
    [
        ({"$ref": "#/wrong"}, "/wrong/properties/x/type"),
        ({"$ref": "#/wrong/properties/x"}, "/wrong/properties/x/type"),
        ({"anyOf": [_OBJECT, {"$ref": "#/wrong/properties/x"}]}, "/wrong/properties/x/type"),
        ({"properties": {"a": _OTHER, "b": {"$ref": "#/wrong"}}}, "/wrong/properties/x/type"),
        ({"type": "string", "anyOf": [_OBJECT, _OTHER]}, "/wrong/properties/x/type"),
        ({"allOf": [{"$ref": "http://a/b"}]}, "http://a/b/properties/x/type"),
        ({"anyOf": [{"$ref": "http://a/b"}, {"$ref": "http://a/b"}]}, "http://a/b/properties/x"),
        ({"$ref": "http://a/b#/properties/x"}, "http://a/b/properties/x/type"),
    ],
)
def test_a_wrong_schema_that_is_referred_to_is_refused_however_often_it_is_looked_at(schema, where):
    with pytest.raises(InvalidGrammarError, match=f"{where}.*'strin' is no type"):
        JsonSchema(schema | {"wrong": _WRONG}, registry={"http://a/b": _WRONG}).rules()


def test_a_wrong_schema_is_no_error_where_no_value_is_read_by_it():
    schema = {"type": "string", "anyOf": [_OBJECT, {"type": "string"}], "wrong": _WRONG}
    assert JsonSchema(schema).rules().nodes


@pytest.mark.parametrize("most", [0, -1, 10**6])
def test_a_limit_of_white_space_outside_its_range_is_refused(most: int):
    with pytest.raises(InvalidGrammarError, match="max_whitespace"):
        JsonSchema({"type": "null"}, max_whitespace=most)


def test_too_long_a_schema_is_refused_when_its_rules_are_made():
    spec = JsonSchema({"enum": list(range(200_000))})
    with pytest.raises(InvalidGrammarError, match="steps"):
        spec.rules(None)


def test_unique_items_are_enforced_and_need_no_check():
    schema = {"type": "array", "items": {"type": "string"}, "uniqueItems": True}
    for unenforced in ("refuse", "check"):
        spec = JsonSchema(schema, unenforced=unenforced)
        assert not spec.checked
        assert spec.value('["a", "b"]') == ["a", "b"]
        with pytest.raises(InvalidValueError, match="twice"):
            spec.value('["a", "a"]')


def test_a_keyword_for_equal_items_is_refused_or_checked_at_the_end():
    schema = {"type": "array", "items": {"type": "string"}, "not": {"uniqueItems": True}}
    with pytest.raises(InvalidGrammarError, match="two items are equal cannot be enforced"):
        JsonSchema(schema)
    spec = JsonSchema(schema, unenforced="check")
    assert spec.checked
    assert spec.value('["a", "a"]') == ["a", "a"]
    with pytest.raises(InvalidValueError, match="does not fit"):
        spec.value('["a", "b"]')


def test_items_that_cannot_be_unique_are_refused():
    schema = {"type": "array", "items": {"const": 7}, "minItems": 2, "uniqueItems": True}
    for unenforced in ("refuse", "check"):
        with pytest.raises(InvalidGrammarError, match="no finite value fits"):
            JsonSchema(schema, unenforced=unenforced)


def test_a_schema_that_its_rules_enforce_exactly_needs_no_check():
    spec = JsonSchema({"type": "object"}, unenforced="check")
    assert not spec.checked
    assert spec.rules(None).free_keys


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"a": 1, "a": 2}', "twice"),
        ('{"a": 1e999}', "double"),
        ('{"a": NaN}', "not JSON"),
        ('{"a": "\\ud800"}', "surrogate"),
        ('{"a": }', "not JSON"),
        ("{", "the text is not JSON"),
        ("[1]", "does not fit"),
    ],
)
def test_texts_that_are_not_json_for_every_reader_are_refused(text: str, problem: str):
    with pytest.raises(InvalidValueError, match=problem):
        JsonObject().value(text)


@pytest.mark.parametrize(
    ("schema", "text", "path", "problem"),
    [
        (
            {"type": "integer", "multipleOf": 12},
            "7",
            (),
            "does not fit .* at /: 7 is not a multiple",
        ),
        ({"properties": {"a": {"type": "string"}}}, '{"a": 1}', ("a",), "at /a: 1 is not of type"),
        ({"properties": {"a": {"items": {"type": "null"}}}}, '{"a": [null, 1]}', ("a", 1), "null"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_with_its_path(schema, text, path, problem):
    with pytest.raises(InvalidValueError, match=problem) as caught:
        JsonSchema(schema).value(text)
    assert caught.value.path == path


def test_a_value_that_python_cannot_hold_is_returned_as_none():
    assert JsonSchema(True).value("9" * 5000) is None
    assert JsonSchema(True).value("[" * 5000 + "]" * 5000) is None
    assert JsonSchema(True).value("[1]") == [1]


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "string", "pattern": "^((a+)+b{90}|a{50})$"}, "a" * 50),
        ({"patternProperties": {"^(a+)+$": {"type": "null"}}}, {"a" * 50 + "b": 1}),
        ({"type": "number", "multipleOf": 0.01}, 10**300),
    ],
)
def test_the_check_neither_backtracks_nor_overflows(schema: dict[str, Any], value: Any):
    assert JsonSchema(schema, unenforced="check").value(json.dumps(value)) == value


def test_the_check_counts_its_steps():
    steps = {f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(26)}
    schema = {"$ref": "#/$defs/d0", "$defs": steps | {"d26": {"type": "integer"}}}
    assert JsonSchema(schema).value("5") == 5  # its rules are exact
    unique = {"allOf": [schema["$defs"]["d26"] | {"not": {"uniqueItems": True}}]}
    with pytest.raises(InvalidGrammarError):
        JsonSchema(unique).rules(None)


def test_a_json_object_is_any_object_and_nothing_else():
    spec = JsonObject()
    taken = ["{}", '{"a": {"b": [1, null, "x"]}, "c": {}}']
    refused = ["[]", "1", '"{}"', "{" + " " * 9 + "}"]
    assert misread(Recogniser(spec.rules(None)).accepts, taken, refused) == []
    assert [spec.value(text) for text in taken] == [*map(json.loads, taken)]
    with pytest.raises(InvalidValueError, match="does not fit"):
        spec.value("[]")
    with pytest.raises(InvalidGrammarError, match="max_whitespace must be from 1 to 1000, got 0"):
        JsonObject(max_whitespace=0)


@pytest.fixture
def written(monkeypatch):
    """Schemas that are written as rules."""
    written = []

    def noted(schema, **options):
        written.append(schema)
        return WRITE(schema, **options)

    monkeypatch.setattr(json_schema, "write", noted)
    monkeypatch.setattr(json_schema, "_ACCEPTED", LimitedCache(4096))
    return written


def test_an_accepted_schema_that_comes_again_is_written_for_its_rules_alone(written):
    schema = {"type": "array", "items": {"type": "integer"}, "maxItems": 3}
    first = JsonSchema(schema).rules()
    assert len(written) == 1
    again = JsonSchema(schema)
    assert len(written) == 1
    assert not again.checked
    assert again.rules().nodes == first.nodes
    assert len(written) == 2
    JsonSchema(schema, property_order="schema")
    assert len(written) == 3


def test_a_keyword_beyond_rules_is_refused_or_checked_each_time(written):
    schema = {"type": "array", "items": {"type": "string"}, "not": {"uniqueItems": True}}
    for _ in range(2):
        assert JsonSchema(schema, unenforced="check").checked
        with pytest.raises(InvalidGrammarError, match="two items are equal"):
            JsonSchema(schema)
    assert len(written) == 3


def test_the_process_that_compiles_a_schema_gets_its_rules(written):
    spec = JsonSchema({"type": "object", "properties": {"first process": {"type": "null"}}})
    sent, task = pickle.dumps(spec), pickle.dumps((spec, None, spec.take_written()))
    assert b"itertools" not in task  # whose objects Python 3.14 does not pickle
    build(*pickle.loads(task))
    assert len(written) == 1
    assert pickle.loads(sent).rules().nodes == spec.rules().nodes
    assert len(written) == 3


def test_schemas_share_the_rule_of_any_value():
    ones = JsonSchema({"properties": {"a": {}}}, additional_properties="schema").rules()
    others = JsonSchema({"type": "array"}, additional_properties="schema").rules()
    assert ones.nodes["any"] is others.nodes["any"]


@pytest.mark.parametrize("order", ["required", "schema", "any"])
@pytest.mark.parametrize("whitespace", ["any", "compact", "pretty"])
def test_the_shared_rule_of_any_value_is_that_of_its_spec(order, whitespace):
    spec = JsonSchema({"items": {}}, property_order=order, whitespace=whitespace)
    text = json.dumps([{"a": [None, {"b": 1.5, "": []}]}], indent=2)
    text = text if whitespace == "pretty" else json.dumps(json.loads(text), separators=(",", ":"))
    reader = Recogniser(spec.rules())
    assert reader.accepts(text)
    assert not reader.accepts(text[:-1])
    assert reader.accepts(text.replace(":", ":\n\t")) is (whitespace == "any")


def test_the_key_of_a_schema_is_that_of_its_json_text():
    schema = {"type": ["object"], "properties": {"a": {"const": "\u00e9"}}, "required": ("a",)}
    keys = [
        JsonSchema(schema).key,
        JsonSchema(json.dumps(schema, indent=1)).key,
        JsonSchema({"schema": schema}).key,
        pickle.loads(pickle.dumps(JsonSchema(schema))).key,
    ]
    assert keys == keys[:1] * len(keys)
    assert JsonSchema({**schema, "required": ()}).key != keys[0]
