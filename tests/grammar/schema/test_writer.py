"""What a schema lets through and what not, each case once wrong; judged by a naive recogniser."""

import json
from typing import Any

import pytest
from recogniser import Recogniser

from dlm.grammar import InvalidGrammarError
from dlm.grammar.rules import Rules
from dlm.grammar.schema import Dialect, TooMuchWorkError, Written, write


def written(schema: Any, **options: Any) -> tuple[Recogniser, Written]:
    rules = Rules()
    found = write(schema, dialect=options.pop("dialect", Dialect()), rules=rules, **options)
    rules.nodes[rules.root] = found.node
    return Recogniser(rules, options.pop("tokens", {7: "|"})), found


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
    ("dates know the calendar", {"format": "date"}, ['"2020-02-29"'], ['"2021-02-29"']),
    ("a number that no double holds", {"type": "number"}, ["1e10", "-0.5"], ["1e999", "-1e400"]),
    ("half a surrogate pair", {"type": "string"}, ['"\\ud83d\\ude00"'], ['"\\ud800"']),
    ("a keyword implies its type", {"maxLength": 3}, ['"abc"'], ["1", '"abcd"']),
    ("patterns search", {"type": "string", "pattern": "b"}, ['"abc"', '"b"'], ['"ac"', '""']),
    (
        "long and short strings have escapes",
        {"type": "string", "maxLength": 32},
        ['"\\n\\"\\u0041"'],
        ['"' + "a" * 33 + '"'],
    ),
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
]


@pytest.mark.parametrize(
    ("schema", "good", "bad"), [c[1:] for c in CASES], ids=[c[0] for c in CASES]
)
def test_it_lets_through_what_fits_and_nothing_else(schema: Any, good: list[str], bad: list[str]):
    recogniser, _ = written(schema)
    assert [text for text in good if not recogniser.accepts(text)] == []
    assert [text for text in bad if recogniser.accepts(text)] == []


def test_read_to_the_letter_a_keyword_says_nothing_of_other_types():
    recogniser, _ = written({"maxLength": 3, "format": "date"}, implied_types=False)
    assert recogniser.accepts("12345")
    assert recogniser.accepts('"abc"')
    assert not recogniser.accepts('"abcd"')


def test_formats_may_be_asked_for_where_types_are_not_implied():
    recogniser, _ = written({"format": "date"}, implied_types=False, formats=True)
    assert recogniser.accepts("1")
    assert not recogniser.accepts('"yesterday"')


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
def test_older_drafts_are_read_as_they_say(
    draft: str, schema: dict[str, Any], good: list[str], bad: list[str]
):
    recogniser, _ = written({"$schema": f"http://json-schema.org/{draft}/schema#", **schema})
    assert all(map(recogniser.accepts, good))
    assert not any(map(recogniser.accepts, bad))


def test_a_reference_leads_to_a_document_of_the_registry():
    registry = {"http://x/item.json": {"$defs": {"n": {"const": 5}}, "$ref": "#/$defs/n"}}
    schema = {"$id": "http://x/main.json", "items": {"$ref": "item.json"}}
    recogniser, _ = written(schema, registry=registry)
    assert recogniser.accepts("[5, 5]")
    assert not recogniser.accepts("[6]")
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
    assert recogniser.accepts('{"c": [{"d": 1}]}')
    assert not recogniser.accepts('{"c": [{"x": 1}]}')


@pytest.mark.parametrize(
    ("schema", "where", "reason"),
    [
        ({"properties": {"a": {"uniqueItems": True}}}, "/properties/a/uniqueItems", "may repeat"),
        ({"items": {"pattern": "(a)\\1"}}, "/items/pattern", "reference"),
        ({"properties": {"a": {"$ref": "#/x"}}}, "/properties/a/$ref", "leads to no schema"),
        ({"$ref": "http://json-schema.org/schema"}, "/$ref", "leads to no schema"),
        ({"anyOf": [{"$ref": "#"}]}, "/", "refers to itself"),
        ({"properties": {"a": {"type": "text"}}}, "/properties/a/type", "is no type"),
        ({"items": {"minLength": "a"}}, "/items/minLength", "non-negative integer"),
        ({"not": {"prefixItems": [{}], "items": [{}]}}, "/not/items", "beside prefixItems"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"required": ["a"], "properties": {"a": {"$ref":
          "#/$defs/a"}}}}}, "/", "no finite value"),
        ({"type": "string", "pattern": "^(ab){2,99999999999}$"}, "/pattern", "[0-9]"),
        ({"if": {"patternProperties": {"a.{7}h": {"const": 1}, "b.{7}i": {"const": 2}},
          "additionalProperties": False}, "then": {"required": ["x"]}}, "/", "4096 states"),
        ({"required": ["a"], "patternProperties": {"^.{1,5000}$": {"type": "string"}}}, "/",
         "4096 states"),
        (False, "/", "no finite value"),
        ({"properties": {"a": {"required": ["b"], "properties": {"b": {"enum": []}}}}, "required":
          ["a"]}, "/properties/a/properties/b", "no finite value"),
        ({"type": "array", "minItems": 1, "items": {"type": "number", "minimum": 1e17,
          "multipleOf": 0.01}}, "/items", "no finite value"),
        ({"type": "object", "propertyNames": {"enum": [f"k{i}" for i in range(20)]},
          "minProperties": 21}, "/", "no finite value"),
        ({"properties": {"a": {}}, "patternProperties": {"^[k-m][0-9]$": {}}, "minProperties": 32,
          "additionalProperties": False}, "/", "no finite value"),
    ],
)  # fmt: skip
def test_what_cannot_be_enforced_is_refused_by_its_pointer(schema: Any, where: str, reason: str):
    with pytest.raises(InvalidGrammarError, match=reason) as caught:
        written(schema)
    assert caught.value.where == where


def test_what_cannot_be_enforced_is_told_where_it_is_to_be_checked():
    schema = {"type": "array", "items": {"type": "string"}, "uniqueItems": True}
    recogniser, found = written(schema, unenforced="check")
    told = "uniqueItems cannot be enforced within other text: its items may repeat"
    assert found.inexact == (("/uniqueItems", told),)
    assert recogniser.accepts('["a", "a"]')
    recogniser, found = written({"not": schema}, unenforced="check")
    told = "uniqueItems: that two items are equal cannot be enforced"
    assert found.inexact == (("/uniqueItems", told),)
    assert recogniser.accepts('["a", "b"]')


def test_as_many_keys_as_there_are_may_be_asked_for():
    keys = [f"k{i}" for i in range(20)]
    schema = {"type": "object", "propertyNames": {"enum": keys}, "minProperties": 20}
    recogniser, _ = written(schema)
    assert recogniser.accepts(json.dumps(dict.fromkeys(keys, 1)))
    assert not recogniser.accepts(json.dumps(dict.fromkeys(keys[1:], 1)))


def test_objects_that_may_hold_a_key_twice_are_told():
    assert written({"type": "object"})[1].free_keys
    assert not written({"type": "object", "properties": {"a": {"type": "null"}}})[1].free_keys


def _chain(length: int, link: Any) -> dict[str, Any]:
    steps = {f"d{i}": link({"$ref": f"#/$defs/d{i + 1}"}) for i in range(length)}
    return {"$ref": "#/$defs/d0", "$defs": steps | {f"d{length}": {"type": "integer"}}}


@pytest.mark.parametrize(
    "schema",
    [
        _chain(26, lambda r: {"properties": {"a": r, "b": r}, "required": ["a", "b"]}),
        _chain(26, lambda r: {"allOf": [r, dict(r)]}),
        _chain(26, lambda r: {"anyOf": [r, dict(r)]}),
        {"enum": list(range(5_000))},
        {"enum": [f"word {i}" for i in range(4_000)]},
        {"oneOf": [{"properties": {"kind": {"const": f"k{i}"}}, "required": ["kind"]}
                   for i in range(100)]},
        {"type": "object", "properties": {f"p{i}": {"type": "null"} for i in range(300)}},
        {"type": "string", "minLength": 10**9},
        {"type": "array", "minItems": 10**9},
    ],
)  # fmt: skip
def test_large_schemas_take_little_work(schema: Any):
    written(schema, most_work=12_000)


@pytest.mark.parametrize(
    "schema",
    [
        {"oneOf": [{"properties": {"v": {"minimum": i, "maximum": i}}, "required": ["v"]}
                   for i in range(60)]},
        {"type": "array", "prefixItems": [{}] * 3_000},
        {"not": {"oneOf": [True] * 100}},
        {"anyOf": [True] * 3_000},
        {"enum": [list(range(3_000))], "anyOf": [{"minItems": i} for i in range(60)]},
        {"pattern": "^((([a-z]{9}){9}){9}){9}$"},
        {"pattern": "x" * 6_000 + "{999}"},
    ],
)  # fmt: skip
def test_work_without_end_is_refused_with_the_limit(schema: Any):
    with pytest.raises(TooMuchWorkError, match="more than 1000 steps"):
        written(schema, most_work=1000)


def test_in_gemma_s_own_form_keys_are_bare_and_strings_stand_between_tokens():
    schema = {
        "type": "object",
        "properties": {"a": {"enum": ["x"]}, "b": {"type": "string", "maxLength": 2}},
        "required": ["a"],
        "additionalProperties": {"type": "integer"},
    }
    recogniser, _ = written(schema, dialect=Dialect(quote=7))
    for good in ("{a:|x|}", "{a:|x|,b:|yz|}", "{a:|x|,c:1}"):
        assert recogniser.accepts(good)
    for bad in ('{"a":|x|}', "{a:x}", "{a: |x|}", "{a:|x|,b:|xyz|}", "{a:|x|,a:1}"):
        assert not recogniser.accepts(bad)
    spaced, _ = written({"properties": {"a b": {"type": "null"}}}, dialect=Dialect(quote=7))
    assert spaced.accepts("{a b:null}")
    with pytest.raises(InvalidGrammarError, match="where names have no quotes"):
        written({"properties": {"a:[": {}}}, dialect=Dialect(quote=7))


def test_whitespace_is_bounded():
    recogniser, _ = written({"type": "array", "items": {"type": "null"}}, dialect=Dialect(2))
    assert recogniser.accepts("[ \nnull\t , null ]")
    assert not recogniser.accepts("[   null]")
    assert not recogniser.accepts("[   ]")
