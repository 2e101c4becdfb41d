"""Rules of schemas: the texts that they accept and refuse, judged by a naive recogniser."""

import json
from typing import Any

import pytest
from readers import misread
from written_schemas import written

from dlm.grammar import InvalidGrammarError
from dlm.grammar.regex.nodes import concatenation
from dlm.grammar.schema import Dialect, arrays

KEYS = [f"k{i}" for i in range(20)]
CASES: list[tuple[str, Any, list[str], list[str]]] = [
    (
        "a number between tiny bounds is never empty",
        {"type": "number", "exclusiveMinimum": 0, "maximum": 1e-7},
        ["0.0000001"],
        ["", "0", "1", "0.000001"],
    ),
    (
        "control characters are escaped in short strings too",
        {"type": "string", "maxLength": 1},
        ['""', '"a"', '"\\t"', '"\\u0000"', '"\\ud83d\\ude00"'],
        ['"\t"', '"\0"', '"ab"', '"\\ud83d"'],
    ),
    (
        "names that nothing fits leave the empty object",
        {"type": "object", "propertyNames": False},
        ["{}"],
        ['{"a": 1}'],
    ),
    ("an empty enum of names", {"propertyNames": {"enum": []}}, ["{}"], ['{"a": 1}']),
    (
        "an impossible pattern still forbids its keys",
        {"type": "object", "patternProperties": {"^x": {"type": "integer"}, "y": False}},
        ["{}", '{"x": 1}'],
        ['{"xy": 1}', '{"x": "a"}', '{"y": 1}'],
    ),
    (
        "a reference to a bare array",
        {"$ref": "#/$defs/a", "$defs": {"a": {"type": "array"}}},
        ["[]", '[1, ["a"]]'],
        ["{}"],
    ),
    (
        "a format beside a length",
        {"type": "string", "format": "email", "maxLength": 20},
        ['"a@b.de"'],
        ['"not an email"', '"a@bbbbbbbbbbbbbbbbbbbbbbbbbb.de"'],
    ),
    (
        "a format beside a pattern",
        {"type": "string", "format": "date", "pattern": "^2024"},
        ['"2024-02-29"'],
        ['"2023-01-01"', '"2024-02-30"'],
    ),
    ("a number that no double holds", {"type": "number"}, ["1e10", "-0.5"], ["1e999", "-1e400"]),
    ("a keyword implies its type", {"maxLength": 3}, ['"abc"'], ["1", '"abcd"']),
    ("patterns search", {"type": "string", "pattern": "b"}, ['"abc"', '"b"'], ['"ac"', '""']),
    (
        "constant objects have spaces",
        {"const": {"a": [1, {"b": None}]}},
        ['{"a":[1,{"b":null}]}', '{ "a" : [1, {"b": null}] }'],
        ['{"a":[1,{}]}'],
    ),
    (
        "a nested $id is joined once",
        {
            "$id": "http://x/root/",
            "properties": {"a": {"$id": "sub/", "$ref": "#/$defs/n", "$defs": {"n": {"const": 1}}}},
        },
        ['{"a": 1}'],
        ['{"a": 2}'],
    ),
    (
        "if, then, else on a constant",
        {
            "type": "object",
            "properties": {"c": {"enum": ["us", "nl"]}, "zip": {"type": "string"}},
            "required": ["c", "zip"],
            "if": {"properties": {"c": {"const": "us"}}},
            "then": {"properties": {"zip": {"pattern": "^[0-9]{2}$"}}},
            "else": {"properties": {"zip": {"pattern": "^[A-Z]$"}}},
        },
        ['{"c": "us", "zip": "12"}', '{"c": "nl", "zip": "A"}'],
        ['{"c": "us", "zip": "A"}', '{"c": "nl", "zip": "12"}'],
    ),
    (
        "not required, not const, not enum",
        {
            "type": "object",
            "properties": {"a": {"not": {"const": 1}}, "b": {"not": {"enum": ["x", None]}}},
            "not": {"required": ["a", "b"]},
        },
        ['{"a": 2}', '{"b": "y"}', "{}", '{"a": "x"}'],
        ['{"a": 1}', '{"b": null}', '{"a": 2, "b": "y"}'],
    ),
    (
        "overlapping branches of oneOf",
        {"oneOf": [{"type": "integer", "minimum": 2}, {"type": "integer", "maximum": 5}]},
        ["1", "6", "-3"],
        ["2", "5", '"a"'],
    ),
    (
        "unevaluated properties through allOf",
        {
            "allOf": [{"properties": {"a": {"type": "integer"}}}],
            "properties": {"b": {"type": "string"}},
            "unevaluatedProperties": False,
        },
        ['{"b": "x", "a": 1}', "{}"],
        ['{"c": 1}', '{"a": "x"}'],
    ),
    (
        "fractional multiples",
        {"type": "number", "multipleOf": 0.01, "minimum": 0},
        ["0.25", "3", "12.5"],
        ["0.255", "-1"],
    ),
    (
        "how many items fit",
        {"type": "array", "contains": {"const": 1}, "minContains": 1, "maxContains": 2},
        ["[1]", '["a", 1, 1]'],
        ["[]", "[1, 1, 1]", "[2]"],
    ),
    (
        "different items of few",
        {"type": "array", "items": {"enum": ["a", "b"]}, "uniqueItems": True},
        ["[]", '["b", "a"]'],
        ['["a", "a"]', '["c"]'],
    ),
    (
        "free keys are none of the named",
        {"properties": {"a": {"type": "integer"}}, "additionalProperties": {"type": "string"}},
        ['{"a": 1, "b": "x"}', '{"aa": "x"}'],
        ['{"a": "x"}', '{"\\u0061": "x"}', '{"b": 1}'],
    ),
    (
        "patterns beside properties and other keys",
        {
            "properties": {"ab": {"type": "integer"}},
            "patternProperties": {"^a": {"minimum": 5}, "b$": {"maximum": 7}},
            "additionalProperties": {"type": "null"},
        },
        ['{"ab": 6}', '{"ac": 9}', '{"c": null}', '{"axb": 7}'],
        ['{"ab": 8}', '{"ab": 6.5}', '{"axb": 8}', '{"c": 1}'],
    ),
    (
        "a least and a most number of properties",
        {
            "type": "object",
            "properties": {name: {"type": "null"} for name in "abcd"},
            "minProperties": 2,
            "maxProperties": 3,
        },
        ['{"a": null, "d": null}', '{"b": null, "c": null, "d": null}'],
        ["{}", '{"c": null}', '{"a": null, "b": null, "c": null, "d": null}'],
    ),
    (
        "dependencies",
        {
            "type": "object",
            "properties": {"a": {"type": "null"}, "b": {"type": "null"}},
            "dependentRequired": {"a": ["b"]},
        },
        ["{}", '{"b": null}', '{"a": null, "b": null}'],
        ['{"a": null}'],
    ),
    (
        "a literal that looks like a rule",
        {"const": 'x ::= (([^\\"\\\\\\r\\n]))'},
        [json.dumps('x ::= (([^\\"\\\\\\r\\n]))')],
        ['"x"'],
    ),
    (
        "a long repetition in a pattern",
        {"type": "string", "pattern": "^[0-9a-z]{1,255}$"},
        ['"a1"'],
        ['"A"', '""', '"' + "a" * 256 + '"'],
    ),
    (
        "as many keys as there are names",
        {"type": "object", "propertyNames": {"enum": KEYS}, "minProperties": 20},
        [json.dumps(dict.fromkeys(KEYS, 1))],
        [json.dumps(dict.fromkeys(KEYS[1:], 1))],
    ),
    (
        "a key that is a word to some readers of patterns fits both of its schemas",
        {
            "type": "object",
            "properties": {"é": {}},
            "patternProperties": {r"^\w+$": {"type": "integer"}},
            "additionalProperties": {"type": "string"},
        },
        ['{"a": 1}', '{"-": "x"}', '{"é": 1}'],
        ['{"a": "x"}', '{"-": 1}', '{"é": "x"}', '{"ö": 1}', '{"ö": "x"}', '{"a\\n": "x"}'],
    ),
    (
        "a pattern that must not match does not match before a last line feed either, as in Python",
        {"type": "string", "not": {"pattern": "^a$"}},
        ['"b"', '"a\\n\\n"', '"ab"'],
        ['"a"', '"a\\n"'],
    ),
    (
        "one property may meet two conditions",
        {
            "type": "object",
            "maxProperties": 1,
            "allOf": [
                {"not": {"patternProperties": {"^a": {"type": "string"}}}},
                {"not": {"patternProperties": {"b$": {"type": "integer"}}}},
            ],
        },
        ['{"ab": null}'],
        ["{}", '{"ab": 1}', '{"ab": "x"}', '{"a": 1}', '{"b": "x"}'],
    ),
    (
        "a property whose numbers no double holds is left out",
        {
            "type": "object",
            "properties": {
                "a": {
                    "type": "number",
                    "multipleOf": 1e-20,
                    "exclusiveMinimum": 0,
                    "maximum": 1e-19,
                }
            },
        },
        ["{}"],
        ['{"a": 1e-20}', '{"a": 0.00000000000000000001}'],
    ),
    (
        "a unique array may have too few values for its least length",
        {
            "type": "object",
            "properties": {
                "a": {
                    "type": "array",
                    "items": {"enum": [1, 2]},
                    "uniqueItems": True,
                    "minItems": 3,
                }
            },
        },
        ["{}"],
        ['{"a": [1, 2]}', '{"a": []}'],
    ),
    (
        "a lookbehind that begins at the start of the text ends where it cannot go on",
        {"type": "string", "pattern": "(?<=^ab*)c"},
        ['"abc"', '"ac"', '"abbcx"'],
        ['"xbc"', '"c"', '"bc"'],
    ),
    (
        "a bound between two doubles",
        {"type": "number", "minimum": 9007199254740993},
        ["9007199254740994", "9007199254740994.0", "9007199254740996"],
        ["9007199254740993.0", "9007199254740992"],
    ),
    (
        "a key that is empty is no keyword",
        {"type": "object", "properties": {"a": {"type": "string", "": 5}}, "": None},
        ['{"a": "x"}'],
        ['{"a": 1}'],
    ),
    (
        "only a line feed ends a line for every reader",
        {"type": "string", "pattern": "(?m:^)a"},
        ['"x\\na"', '"a"'],
        ['"x\\ra"', '"xa"'],
    ),
]


@pytest.mark.parametrize(
    ("schema", "good", "bad"), [c[1:] for c in CASES], ids=[c[0] for c in CASES]
)
def test_rules_accept_the_values_of_a_schema_and_no_others(
    schema: Any, good: list[str], bad: list[str]
):
    assert misread(written(schema)[0].accepts, good, bad) == []


@pytest.mark.parametrize(
    ("schema", "options", "good", "bad"),
    [
        ({"maxLength": 3, "format": "date"}, {}, ["12345", '"abc"'], ['"abcd"']),
        ({"format": "date"}, {"formats": True}, ["1"], ['"yesterday"']),
    ],
)
def test_without_implied_types_a_keyword_does_not_restrict_values_of_other_types(
    schema: Any, options: Any, good: list[str], bad: list[str]
):
    recogniser, _ = written(schema, implied_types=False, **options)
    assert misread(recogniser.accepts, good, bad) == []


@pytest.mark.parametrize(
    ("draft", "schema", "good", "bad"),
    [
        ("draft-04", {"minimum": 3, "exclusiveMinimum": True}, ["4"], ["3"]),
        ("draft-04", {"items": [{"type": "null"}], "additionalItems": False}, ["[null]"], ["[1]"]),
        ("draft-07", {"items": [{"type": "null"}], "prefixItems": [False]}, ["[null]"], ["[1]"]),
        ("draft-07", {"$ref": "#/definitions/a", "minimum": 9, "definitions": {"a": {"enum": [1]}}},
         ["1"], ["9"]),
        ("draft-07", {"dependencies": {"a": ["b"]}, "properties": {"a": {}, "b": {}}},
         ["{}", '{"b": 1}'], ['{"a": 1}']),
    ],
)  # fmt: skip
def test_older_drafts_keep_their_meaning(
    draft: str, schema: dict[str, Any], good: list[str], bad: list[str]
):
    recogniser, _ = written({"$schema": f"http://json-schema.org/{draft}/schema#", **schema})
    assert misread(recogniser.accepts, good, bad) == []


def test_a_reference_leads_to_a_document_of_the_registry():
    registry = {"http://x/item.json": {"$defs": {"n": {"const": 5}}, "$ref": "#/$defs/n"}}
    schema = {"$id": "http://x/main.json", "items": {"$ref": "item.json"}}
    recogniser, _ = written(schema, registry=registry)
    assert misread(recogniser.accepts, ["[5, 5]"], ["[6]"]) == []
    with pytest.raises(InvalidGrammarError, match="leads to no schema") as caught:
        written(schema)
    assert caught.value.where == "/items/$ref"


def test_a_dynamic_reference_leads_to_the_outermost_anchor():
    schema = {
        "$id": "http://x/strict",
        "$dynamicAnchor": "node",
        "$ref": "tree",
        "unevaluatedProperties": False,
        "$defs": {
            "tree": {
                "$id": "tree",
                "$dynamicAnchor": "node",
                "type": "object",
                "properties": {"d": {}, "c": {"items": {"$dynamicRef": "#node"}}},
            }
        },
    }
    recogniser, _ = written(schema)
    assert misread(recogniser.accepts, ['{"c": [{"d": 1}]}'], ['{"c": [{"x": 1}]}']) == []


UNIQUE = {"type": "array", "items": {"type": "string"}, "uniqueItems": True}


@pytest.mark.parametrize(
    ("schema", "reason", "accepted"),
    [
        (UNIQUE, " cannot be enforced within other text: its items may repeat", '["a", "a"]'),
        ({"not": UNIQUE}, ": that two items are equal cannot be enforced", '["a", "b"]'),
    ],
)
def test_keywords_that_are_left_to_the_check_are_listed_with_their_reasons(
    schema: Any, reason: str, accepted: str
):
    recogniser, found = written(schema, unenforced="check")
    assert found.inexact == (("/uniqueItems", f"uniqueItems{reason}"),)
    assert recogniser.accepts(accepted)


def test_rules_state_whether_an_object_may_repeat_a_key():
    assert written({"type": "object"})[1].free_keys
    assert not written({"type": "object", "properties": {"a": {"type": "null"}}})[1].free_keys


def test_in_gemma_s_own_form_keys_have_no_quotes_and_strings_are_between_tokens():
    schema = {
        "type": "object",
        "properties": {"a": {"enum": ["x"]}, "b": {"type": "string", "maxLength": 2}},
        "required": ["a"],
        "additionalProperties": {"type": "integer"},
    }
    recogniser, _ = written(schema, dialect=Dialect(quote=7))
    good = ["{a:|x|}", "{a:|x|,b:|yz|}", "{a:|x|,c:1}"]
    bad = ['{"a":|x|}', "{a:x}", "{a: |x|}", "{a:|x|,b:|xyz|}", "{a:|x|,a:1}"]
    assert misread(recogniser.accepts, good, bad) == []
    spaced, _ = written({"properties": {"a b": {"type": "null"}}}, dialect=Dialect(quote=7))
    assert spaced.accepts("{a b:null}")
    with pytest.raises(InvalidGrammarError, match="where names have no quotes"):
        written({"properties": {"a:[": {}}}, dialect=Dialect(quote=7))


def test_whitespace_is_bounded():
    recogniser, _ = written({"type": "array", "items": {"type": "null"}}, dialect=Dialect(2))
    assert misread(recogniser.accepts, ["[ \nnull\t , null ]"], ["[   null]", "[   ]"]) == []


def test_arrays_of_many_required_items_are_written_in_linear_work(monkeypatch):
    joined: list[int] = []
    monkeypatch.setattr(
        arrays, "concatenation", lambda *parts: joined.append(len(parts)) or concatenation(*parts)
    )
    work = []
    for count in (50, 400):
        joined.clear()
        written({"prefixItems": [{"const": i} for i in range(count)], "minItems": count})
        work.append(sum(joined))
    assert count < work[1] < 9 * work[0]
