"""JSON schemas as users give them: what is told at once, what is checked at the end."""

import json
import pickle
from datetime import date
from typing import Any

import pytest
from pydantic import BaseModel
from recogniser import Recogniser
from spoken import recogniser

from dlm.grammar import InvalidGrammarError, InvalidValueError, JsonObject, JsonSchema


class Invoice(BaseModel):
    number: int
    issued: date
    note: str | None = None


def test_a_pydantic_model_is_a_schema():
    spec = JsonSchema(Invoice)
    text = '{"number": 7, "issued": "2024-02-29", "note": null}'
    assert Recogniser(spec.rules(None)).accepts(text)
    assert not Recogniser(spec.rules(None)).accepts('{"number": 7, "issued": "2023-02-29"}')
    assert Invoice.model_validate(spec.value(text)).issued == date(2024, 2, 29)


def test_a_schema_may_be_text():
    assert JsonSchema('{"type": "null"}').parsed == {"type": "null"}
    with pytest.raises(InvalidGrammarError, match="not JSON") as caught:
        JsonSchema('{"type": }')
    assert caught.value.where == "line 1 column 10"
    with pytest.raises(InvalidGrammarError, match="a schema is an object"):
        JsonSchema("[1]")


@pytest.mark.parametrize(
    ("registry", "problem"),
    [
        ([1], r"a registry has documents by their URIs, not \[1\]"),
        ({5: {}}, "a registry has documents by their URIs, not"),
        ({"http://a/b": {1}}, "JSON schema at http://a/b: not JSON data"),
        ({"http://a/b": {"const": "\ud800"}}, "JSON schema at http://a/b: half a surrogate pair"),
        ({"http://a/b": "{"}, "JSON schema at http://a/b line 1 column 2: not JSON: "),
        ({"http://a/b": 3}, "JSON schema at http://a/b: a schema is an object, not 3"),
    ],
)
def test_a_registry_has_json_documents(registry, problem):
    with pytest.raises(InvalidGrammarError, match=problem):
        JsonSchema({"$ref": "http://a/b"}, registry=registry)
    fine = JsonSchema({"$ref": "http://a/b"}, registry={"http://a/b": '{"type": "null"}'})
    assert fine.value("null") is None


@pytest.mark.parametrize("most", [0, -1, 10**6])
def test_whitespace_is_bounded(most: int):
    with pytest.raises(InvalidGrammarError, match="max_whitespace"):
        JsonSchema({"type": "null"}, max_whitespace=most)


def test_errors_are_told_at_once_with_their_pointers():
    with pytest.raises(InvalidGrammarError) as caught:
        JsonSchema({"properties": {"a/b": {"pattern": "("}}})
    assert caught.value.where == "/properties/a~1b/pattern"


def test_what_takes_long_is_left_to_the_rules():
    spec = JsonSchema({"enum": list(range(200_000))})
    with pytest.raises(InvalidGrammarError, match="steps"):
        spec.rules(None)


def test_keys_tell_meanings_apart():
    one = JsonSchema({"type": "string", "maxLength": 3})
    assert one.key == JsonSchema('{"type": "string", "maxLength": 3}').key
    others = [
        JsonSchema({"type": "string", "maxLength": 4}),
        JsonSchema({"type": "string", "maxLength": 3}, max_whitespace=2),
        JsonSchema({"type": "string", "maxLength": 3}, implied_types=False),
        JsonSchema({"type": "string", "maxLength": 3}, unenforced="check"),
        JsonSchema({"type": "string", "maxLength": 3}, formats=False),
    ]
    assert len({one.key, *(other.key for other in others)}) == 6
    ordered = JsonSchema({"properties": {"a": {}, "b": {}}})
    assert ordered.key != JsonSchema({"properties": {"b": {}, "a": {}}}).key  # another order


def test_a_spec_can_be_sent_to_another_process():
    spec = JsonSchema({"type": "array", "items": {"type": "integer"}})
    assert pickle.loads(pickle.dumps(spec)).key == spec.key


def test_unique_items_are_enforced_and_need_no_check():
    schema = {"type": "array", "items": {"type": "string"}, "uniqueItems": True}
    for unenforced in ("refuse", "check"):
        spec = JsonSchema(schema, unenforced=unenforced)
        assert not spec.checked
        assert spec.value('["a", "b"]') == ["a", "b"]
        with pytest.raises(InvalidValueError, match="twice"):
            spec.value('["a", "a"]')


def test_items_that_have_to_be_equal_are_refused_or_checked():
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


def test_what_the_rules_say_exactly_is_not_checked_again_to_be_streamed():
    spec = JsonSchema({"type": "object"}, unenforced="check")
    assert not spec.checked
    assert spec.rules(None).free_keys


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"a": 1, "a": 2}', "twice"),
        ('{"a": 1e999}', "double"),
        ('{"a": NaN}', "not JSON"),
        ('{"a": "\\ud800"}', "surrogate"),
        ('{"a": }', "not JSON"),
        ("[1]", "does not fit"),
    ],
)
def test_values_that_readers_disagree_on_are_refused(text: str, told: str):
    with pytest.raises(InvalidValueError, match=told):
        JsonObject().value(text)


def test_a_value_that_does_not_fit_is_refused_with_its_path():
    spec = JsonSchema({"properties": {"a": {"items": {"type": "integer"}}}})
    with pytest.raises(InvalidValueError) as caught:
        spec.value('{"a": [1, "x"]}')
    assert caught.value.path == ("a", 1)


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


def test_any_json_object():
    recogniser = Recogniser(JsonObject().rules(None))
    assert recogniser.accepts('{"a": {"b": [1, null, "x"]}, "c": {}}')
    assert not recogniser.accepts("[1]")


def test_a_json_object_is_any_object_and_nothing_else():
    spec = JsonObject()
    reader = recogniser(spec)
    for text in ("{}", '{"a": [1, {"b": null}]}'):
        assert reader.accepts(text)
        assert spec.value(text) == json.loads(text)
    for text in ("[]", "1", '"{}"', "{" + " " * 9 + "}"):
        assert not reader.accepts(text)
    with pytest.raises(InvalidValueError, match="does not fit"):
        spec.value("[]")
    with pytest.raises(InvalidGrammarError, match="max_whitespace is 0"):
        JsonObject(max_whitespace=0)
