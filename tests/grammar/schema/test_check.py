"""Finished values, judged by a library that others wrote: as the grammar reads the schema, and
without its faults."""

import json

import pytest

from dlm.grammar import InvalidGrammarError, InvalidValueError, JsonSchema
from dlm.grammar.schema.check import UncheckableError, check

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
    ],
)
def test_without_a_draft_a_value_is_judged_by_the_keywords_of_all_of_them(schema, right, wrong):
    spec = JsonSchema(schema)
    assert spec.value(right) == json.loads(right)
    with pytest.raises(InvalidValueError):
        spec.value(wrong)


@pytest.mark.parametrize(("schema", "value"), RECURSIVE)
def test_what_never_ends_cannot_be_checked_wherever_the_stack_is(schema, value):
    """A library beneath panics where the stack ends, with what is no `Exception`."""

    def checked(calls):
        return check(value, schema) if calls == 0 else checked(calls - 1)

    for calls in range(0, 700, 9):
        with pytest.raises(UncheckableError):
            checked(calls)


def test_branches_that_fail_do_not_count_as_deep():
    schema = {"items": {"anyOf": [{"type": "null"}, {"type": "string"}, {"type": "integer"}]}}
    check(list(range(500)), schema)


@pytest.mark.parametrize("schema", [{"items": {"type": 5}}, {"required": 5}, {"$ref": 5}])
def test_a_schema_that_the_library_trips_over_cannot_be_checked(schema):
    with pytest.raises(UncheckableError):
        check([1] if "items" in schema else {"a": 1}, schema)


@pytest.mark.parametrize("word", ["minimum", "maxLength", "minItems", "multipleOf"])
def test_a_number_that_no_double_holds_is_refused_by_name(word):
    with pytest.raises(InvalidGrammarError, match=f"at /{word}"):
        JsonSchema({word: 10**400})


@pytest.mark.parametrize("schema", [{"properties": {"\ud800": {}}}, {"enum": ["\ud800"]}])
def test_half_a_surrogate_pair_is_refused(schema):
    with pytest.raises(InvalidGrammarError, match="half a surrogate pair"):
        JsonSchema(schema)
