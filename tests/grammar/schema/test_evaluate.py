"""Checks of finished values: they agree with the grammar and keep to limits."""

import json

import pytest
from recogniser import Recogniser

from dlm.grammar import InvalidValueError, JsonSchema
from dlm.grammar.errors import UncheckableError
from dlm.grammar.schema import check

DRAFT_7, DRAFT_2020 = (
    "http://json-schema.org/draft-07/schema#",
    "https://json-schema.org/draft/2020-12/schema",
)
SET = {
    "type": "array",
    "items": {"type": "string"},
    "uniqueItems": True,
}  # the rules alone do not enforce it
HARD = "a" * 50 + "b"
RECURSIVE = [
    ({"type": "integer", "if": {"$ref": "#"}}, 1),
    ({"type": "array", "items": {"$ref": "#"}}, json.loads("[" * 450 + "]" * 450)),
    ({"additionalProperties": {"$ref": "#"}}, json.loads('{"a":' * 300 + "1" + "}" * 300)),
]


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        ({"items": [{"type": "integer"}]}, "[1]", '["a"]'),
        ({"items": [{}], "additionalItems": False}, "[1]", "[1, 2]"),
        ({"items": [{}], "additionalItems": {"type": "null"}}, "[1, null]", "[1, 2]"),
        ({"items": {"type": "null"}, "additionalItems": False}, "[null]", "[1]"),
        ({"minimum": 0, "exclusiveMinimum": True}, "1", "0"),
        ({"maximum": 9, "exclusiveMaximum": True}, "8", "9"),
        ({"minimum": 0, "exclusiveMinimum": False}, "0", "-1"),
        ({"exclusiveMinimum": 3}, "4", "3"),
        ({"dependencies": {"a": ["b"]}}, '{"a": 1, "b": 2}', '{"a": 1}'),
        ({"dependencies": {"c": {"required": ["d"]}}}, "{}", '{"c": 1}'),
        ({"not": {"dependencies": {"a": ["b"]}}}, '{"a": 1}', '{"a": 1, "b": 2}'),
        ({"not": {"dependencies": {"c": {"required": ["d"]}}}}, '{"c": 1}', "{}"),
    ],
)
def test_without_a_draft_the_keywords_of_all_drafts_count(schema, right, wrong):
    spec = JsonSchema(schema)
    assert spec.value(right) == json.loads(right)
    with pytest.raises(InvalidValueError):
        spec.value(wrong)


@pytest.mark.parametrize("draft", [DRAFT_7, DRAFT_2020, "http://json-schema.org/schema#"])
@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        ({"properties": {"p": {"multipleOf": 0.01}, "c": {"items": {"$ref": "#"}}}},
         '{"p": 4.35, "c": [{"p": 4.35}]}', '{"c": [{"c": [{"p": 4.351}]}]}'),
        ({"properties": {"p": {"pattern": r"^\p{L}+$"}, "c": {"$ref": "#"}, "u": SET}},
         '{"c": {"p": "é"}, "u": ["a"]}', '{"c": {"p": "1"}}'),
        ({"properties": {"p": {"const": HARD}, "c": {"$ref": "#", "not": {"$schema": DRAFT_7,
          "properties": {"p": {"pattern": "^(a|a)*$"}}}}}},
         f'{{"c": {{"p": "{HARD}"}}}}', '{"c": {"p": "a"}}'),
        ({"properties": {"a": {"$id": "#/a", "properties": {"x": {"$ref": "#/definitions/d"}}},
          "u": SET}, "definitions": {"d": {"type": "integer"}}},
         '{"a": {"x": 1}, "u": ["a"]}', '{"a": {"x": "b"}, "u": ["a"]}'),
        ({"properties": {"a": {"$id": "http://a.b/c", "properties": {"x": {"$ref":
          "#/definitions/d"}}}, "u": SET}, "definitions": {"d": {"type": "integer"}}},
         '{"a": {"x": 1}, "u": ["a"]}', '{"a": {"x": "b"}, "u": ["a"]}'),
        ({"properties": {"s": {"pattern": "^.{1,5000}$"}, "u": SET}},
         '{"s": "x", "u": ["a"]}', '{"s": ""}'),
        ({"properties": {"a": {}, "b": {}}, "dependencies": {"a": ["b"]}},
         '{"a": 1, "b": 2}', '{"a": 1}'),
        ({"items": [{"type": "integer"}], "additionalItems": False}, "[1]", "[1, 2]"),
    ],
)  # fmt: skip
def test_a_grammar_and_its_check_agree(draft, schema, right, wrong):
    spec = JsonSchema({"$schema": draft} | schema, unenforced="check")
    recogniser = Recogniser(spec.rules())
    assert recogniser.accepts(right)
    assert not recogniser.accepts(wrong)
    assert spec.value(right) == json.loads(right)
    with pytest.raises(InvalidValueError, match="does not fit the schema"):
        spec.value(wrong)


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        ({"patternProperties": {"^(a|a)*$": {}, "b$": {}}}, {HARD: 1}, {HARD + "c": 1}),
        ({"patternProperties": {r"^\p{Lu}": {}}}, {"É": 1}, {"é": 1}),
        ({"$ref": "#/$defs/x", "$defs": {"x": {"properties": {"a": {}}}}}, {"a": 1}, {"b": 1}),
        ({"allOf": [{"properties": {"a": {}}}, {"anyOf": [{"properties": {"b": {"type": "null"}}},
          {"additionalProperties": {"type": "boolean"}}]}]}, {"a": 1, "b": None}, {"c": 1}),
        ({"if": {"required": ["a"], "properties": {"a": {}}}, "then": {"properties": {"b": {}}},
          "else": {"properties": {"c": {}}}}, {"a": 1, "b": 2}, {"a": 1, "c": 2}),
        ({"if": {"required": ["a"], "properties": {"a": {}}}, "then": {"properties": {"b": {}}},
          "else": {"properties": {"c": {}}}}, {"c": 2}, {"b": 2}),
        ({"dependentSchemas": {"a": {"properties": {"a": {}, "b": {}}}}}, {"a": 1, "b": 2},
         {"b": 2}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("draft", [DRAFT_2020, "https://json-schema.org/draft/2019-09/schema"])
def test_properties_that_other_keywords_evaluate_are_not_unevaluated(draft, schema, right, wrong):
    schema = {"$schema": draft, "unevaluatedProperties": False} | schema
    check(right, schema)
    with pytest.raises(InvalidValueError):
        check(wrong, schema)


def test_work_that_doubles_with_each_definition_is_not_checked():
    each = {f"d{i}": {"dependentSchemas": {n: {"$ref": f"#/$defs/d{i + 1}"} for n in "ab"}}
            for i in range(40)}  # fmt: skip
    schema = {"unevaluatedProperties": False, "$ref": "#/$defs/d0", "$defs": each | {"d40": {}}}
    with pytest.raises(UncheckableError, match="more than 50000 steps"):
        check({"a": 1, "b": 2}, schema)


@pytest.mark.parametrize(("schema", "value"), RECURSIVE)
def test_a_check_that_nests_too_deep_is_given_up_at_any_depth_of_the_stack(schema, value):
    def checked(calls):
        return check(value, schema) if calls == 0 else checked(calls - 1)

    for calls in range(0, 700, 9):
        with pytest.raises(UncheckableError):
            checked(calls)


def test_branches_that_fail_do_not_count_as_deep():
    schema = {"items": {"anyOf": [{"type": "null"}, {"type": "string"}, {"type": "integer"}]}}
    check(list(range(500)), schema)


@pytest.mark.parametrize("schema", [{"items": {"type": 5}}, {"required": 5}, {"$ref": 5}])
def test_a_check_against_a_malformed_schema_is_given_up(schema):
    with pytest.raises(UncheckableError):
        check([1] if "items" in schema else {"a": 1}, schema)


@pytest.mark.parametrize("pattern", [r"^(\w{1,100}\s){1,100}$", r"^(x?)\1\w[\s]$"])
def test_white_space_of_a_pattern_without_an_automaton_is_that_of_ecmascript(pattern: str):
    spec = JsonSchema({"type": "string", "pattern": pattern}, unenforced="check")
    for space in " \t\n\v\f\r\xa0\u1680\u2000\u2028\u2029\u202f\u205f\u3000\ufeff":
        assert spec.value(json.dumps(f"a{space}")) == f"a{space}"
    for other in "x_\u200b\x1c\x85":
        with pytest.raises(InvalidValueError):
            spec.value(json.dumps(f"a{other}"))
