"""What the grammar of a schema accepts, `jsonschema` accepts; the rest is refused, and says where.

The oracle is `jsonschema`. Sentences are drawn from the grammar by random walks over bytes.
"""

import contextlib
import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import validators
from referencing import Registry
from sentences import BYTES, accepts, compiled, walk

from dlm.grammar import InvalidGrammarError, InvalidValueError, JsonSchema

DRAFT4 = "http://json-schema.org/draft-04/schema#"
DRAFT7 = "http://json-schema.org/draft-07/schema#"
NAMED_A = {"type": "object", "properties": {"a": {"type": "integer"}}}
KIND_A = {"properties": {"kind": {"const": "a"}, "x": {"type": "integer"}}, "required": ["kind"]}
KIND_B = {"properties": {"kind": {"enum": ["b", "c"]}}, "required": ["kind"]}


def refusals(schema, value):
    kind = validators.validator_for(schema, default=validators.Draft202012Validator)
    return [e.message for e in kind(schema, registry=Registry()).iter_errors(value)]


def check_sentences(spec, seed, walks):
    grammar, rng = compiled(spec), random.Random(seed)
    for _ in range(walks):
        text = walk(grammar, rng)
        if text is not None:
            assert not refusals(spec.parsed, json.loads(text)), text


@pytest.mark.parametrize(
    ("schema", "where"),
    [
        ({"type": "number", "multipleOf": 0.1}, "/multipleOf"),
        ({"type": "integer", "multipleOf": 7, "minimum": 0}, "/multipleOf"),
        ({"properties": {"a": {"not": {"type": "string"}}}}, "/properties/a/not"),
        ({"type": "array", "uniqueItems": True}, "/uniqueItems"),
        ({"type": "array", "contains": {"type": "integer"}}, "/contains"),
        ({"if": {"required": ["a"]}, "then": {"required": ["b"]}}, "/if"),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "/oneOf"),
        ({"oneOf": [{"type": "string", "pattern": "a"}, {"type": "string"}]}, "/oneOf"),
        ({"required": ["a"], "oneOf": [NAMED_A, {"properties": {"b": {}}}]}, "/oneOf"),
        (
            NAMED_A | {"oneOf": [{"required": ["a"]}, {"properties": {"a": True}}]},
            "/oneOf",
        ),
        ({"type": "object", "additionalProperties": True, "minProperties": 2}, "/minProperties"),
        (
            NAMED_A | {"additionalProperties": {}, "propertyNames": {"maxLength": 3}},
            "/propertyNames",
        ),
        (
            {"properties": {"a": {"type": "integer"}}, "patternProperties": {"^[ab]$": {}}},
            "/patternProperties",
        ),
        (
            {"patternProperties": {"^a": {"type": "string"}, "z$": {"type": "integer"}}},
            "/patternProperties",
        ),
        ({"properties": {"\u00e9": {"const": 1}}, "additionalProperties": True}, "/additionalProp"),
        ({"properties": {"a": False}, "additionalProperties": True}, "/additionalProperties"),
        ({"type": "string", "pattern": "^((?!a).)*$"}, "/pattern"),
        ({"type": "string", "pattern": r"a^b"}, "/pattern"),
        ({"type": "number", "maximum": 2**53 + 1}, "/maximum"),
        ({"type": "number", "exclusiveMaximum": 1e12}, "/exclusiveMaximum"),
        ({"const": 2**64}, "/enum"),
        ({"unevaluatedProperties": False, "anyOf": [NAMED_A]}, "/unevaluatedProperties"),
        ({"$dynamicRef": "#x"}, "/$dynamicRef"),
        ({"$ref": "#"}, "/"),
        ({"$defs": {"a": {"$ref": "#/$defs/a"}}, "properties": {"x": {"$ref": "#/$defs/a"}}}, "/"),
        ({"$schema": "http://json-schema.org/draft-03/schema#"}, "/$schema"),
    ],
)
def test_a_keyword_that_the_grammar_cannot_enforce_is_refused_with_its_pointer(schema, where):
    with pytest.raises(InvalidGrammarError, match="JSON schema at ") as raised:
        JsonSchema(schema)
    assert raised.value.where.startswith(where)
    assert JsonSchema(schema, unenforced="check").grammar(BYTES) is not None


@pytest.mark.parametrize("reference", ["http://127.0.0.1:9/x", "#/nowhere", "#/$defs/a/0", "#x"])
@pytest.mark.parametrize("unenforced", ["refuse", "check"])
def test_a_reference_out_of_the_document_is_refused_always(reference, unenforced):
    schema = {"items": {"$ref": reference}, "$defs": {"a": {"enum": [1]}}}
    with pytest.raises(InvalidGrammarError, match="leads to no schema") as raised:
        JsonSchema(schema, unenforced=unenforced)
    assert raised.value.where == "/items/$ref"


def test_all_offending_keywords_are_told_up_to_five():
    schema = {"properties": {c: {"uniqueItems": True, "type": "array"} for c in "abcdefg"}}
    with pytest.raises(InvalidGrammarError) as raised:
        JsonSchema(schema)
    assert raised.value.where == "/properties/a/uniqueItems"
    assert "/properties/e/uniqueItems" in raised.value.reason
    assert "/properties/f" not in raised.value.reason
    assert raised.value.reason.endswith("...")


@pytest.mark.parametrize("depth", [200, 2000])
@pytest.mark.parametrize("key", ["items", "not", "additionalProperties"])
def test_a_schema_that_is_nested_too_deeply_is_no_traceback(depth, key):
    schema = True
    for _ in range(depth):
        schema = {key: schema}
    with pytest.raises(InvalidGrammarError):
        JsonSchema(schema)


EXACT = [
    (True, [0, "a", [None], {"a": 1}], []),
    ({"type": "object"}, [{}, {"a": [1]}], [1]),
    ({"type": "array", "minItems": 1}, [[1]], [[]]),
    ({"type": "object", "minProperties": 1}, [{"a": 1}], [{}]),
    ({"minimum": 3}, [3, 4.5], [2, "a"]),
    ({"type": "integer", "multipleOf": 7}, [0, 14], [5]),
    ({"type": "number", "multipleOf": 12, "minimum": 0, "maximum": 50}, [12, 48], [50, 60]),
    ({"type": "integer", "minimum": 0.5, "exclusiveMaximum": 3.0}, [1, 2], [0, 3]),
    ({"type": "array", "uniqueItems": False}, [[1, 1]], []),
    ({"allOf": [NAMED_A, {"required": ["a"]}]}, [{"a": 1}], [{}, {"a": "x"}]),
    ({"allOf": [{"minimum": 2}, {"maximum": 3, "type": "integer"}]}, [2, 3], [1, 4]),
    ({"type": "object", "required": ["a"]}, [{"a": 1}], [{}]),
    (NAMED_A | {"required": ["b"]}, [{"b": 0}, {"a": 1, "b": 0}], [{"a": 1}]),
    ({"enum": ["a", 1, None], "type": "string"}, ["a"], [1, None]),
    ({"const": 1, "minimum": 0}, [1], [2]),
    ({"enum": [1, 2, 3], "not": {"const": 2}}, [1, 3], [2]),
    ({"oneOf": [{"type": "integer"}, {"type": "string"}]}, [1, "a"], [None]),
    ({"oneOf": [KIND_A, KIND_B]}, [{"kind": "a", "x": 1}, {"kind": "c"}], [{"kind": "d"}]),
    (
        {"oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
        [{"a": 1}, {"b": 1}],
        [{}, {"a": 1, "b": 1}],
    ),
    (
        NAMED_A | {"anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
        [{"a": 1}, {"b": 2}],
        [{}, {"a": "x", "b": 1}],
    ),
    (
        {"properties": {"a": {}, "b": {}}, "dependentRequired": {"a": ["b"]}},
        [{}, {"b": 1}, {"a": 1, "b": 1}],
        [{"a": 1}],
    ),
    ({"$schema": DRAFT4, "properties": {"a": {}}, "dependencies": {"a": ["b"]}}, [{}], [{"a": 1}]),
    (
        {"$schema": DRAFT4, "type": "number", "minimum": 1, "exclusiveMinimum": True},
        [1.5],
        [1, 0],
    ),
    (
        {"$schema": DRAFT7, "items": [{"type": "integer"}], "additionalItems": {"type": "null"}},
        [[1], [1, None]],
        [[None], [1, 2]],
    ),
    ({"$schema": DRAFT7, "$ref": "#/a", "required": ["b"], "a": NAMED_A}, [{"a": 1}], [{"b": 1}]),
    ({"$ref": "#/a", "required": ["b"], "a": NAMED_A}, [{"b": 1}], [{"a": 1}]),
    ({"$ref": "#x", "$defs": {"y": {"$anchor": "x", "const": 1}}}, [1], [2]),
    ({"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"const": 1}}}, [1], [2]),
    (
        {"properties": {"next": {"$ref": "#"}}, "additionalProperties": False},
        [{"next": {"next": {}}}],
        [{"next": 1}],
    ),
    (NAMED_A | {"additionalProperties": {"type": "string"}}, [{"a": 1, "b": "x"}], [{"b": 1}]),
    (
        {"propertyNames": {"pattern": "^[a-z]+$"}, "type": "object"},
        [{"a": 1}],
        [{"A": 1}],
    ),
    (
        {"properties": {"a": {}, "b": {}}, "oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
        [{"a": 1}, {"b": 1}],
        [{}, {"a": 1, "b": 1}],
    ),
    (
        {"oneOf": [{"properties": {"op": {"const": op}, "x": {}}} for op in "abc"]},
        [{"op": "a"}, {"op": "c", "x": 1}],
        [{}, {"x": 1}, {"op": "d"}],
    ),
    ({"patternProperties": {"^x-": {"type": "integer"}}}, [{"x-a": 1}], [{"x-a": "1"}]),
    ({"type": "string", "pattern": "^https://"}, ["https://a"], ["http://a"]),
    ({"type": "string", "pattern": r"\.js$"}, ["a.js"], ["a.jsx"]),
    ({"type": "string", "pattern": "^$|^a+$"}, ["", "aa"], ["b"]),
    ({"type": "string", "pattern": "^(ac*)?$"}, ["", "acc"], ["c"]),
    ({"type": "string", "pattern": "^(b{1,2}|b)$"}, ["b", "bb"], ["bbb"]),
    ({"type": "string", "pattern": "^[a-z]+$", "minLength": 2, "maxLength": 3}, ["ab"], ["a"]),
    ({"type": "string", "pattern": "^\u00e9+$"}, ["\u00e9"], ["e"]),
    ({"patternProperties": {'^".$': {"const": 1}}}, [{'"a': 1}], [{"a": 1}, {'"a': 2}]),
    ({"type": "string", "format": "email", "maxLength": 5}, ["a@b.c"], ["aa@b.cd"]),
    ({"type": "string", "format": "json-pointer"}, ["", "/a~0"], ["a"]),
    (
        {  # xgrammar's cache overlooks what `title` says, even where it names a property
            "properties": {
                "a": {"properties": {"title": {"type": "integer"}}},
                "b": {"properties": {"title": {"type": "string"}}},
                "c": {"const": {"title": 1}},
                "d": {"const": {"title": 2}},
            }
        },
        [{"b": {"title": "x"}, "d": {"title": 2}}],
        [{"b": {"title": 1}}, {"d": {"title": 1}}],
    ),
]


@pytest.mark.parametrize(("schema", "good", "bad"), EXACT)
def test_what_the_grammar_enforces_exactly_is_not_refused(schema, good, bad):
    spec = JsonSchema(schema)
    for value in good:
        assert not refusals(spec.parsed, value)
        assert accepts(spec, json.dumps(value, ensure_ascii=False, separators=(",", ":"))), value
    for value in bad:
        assert not accepts(spec, json.dumps(value, ensure_ascii=False, separators=(",", ":"))), (
            value
        )
    check_sentences(spec, seed=0, walks=10)


def test_a_named_key_cannot_be_written_again_in_escapes():
    spec = JsonSchema(NAMED_A | {"additionalProperties": {"type": "string"}})
    assert not accepts(spec, '{"a": 1, "\\u0061": "x"}')
    assert not accepts(spec, '{"a": 1, "a": "x"}')


def test_with_check_the_finished_value_still_has_to_fit():
    spec = JsonSchema({"type": "array", "uniqueItems": True}, unenforced="check")
    assert accepts(spec, "[1, 1]")
    with pytest.raises(InvalidValueError, match="has non-unique elements"):
        spec.value("[1, 1]")


def test_the_key_is_the_grammar_not_the_way_it_was_written():
    exact = {"type": "integer", "minimum": 1}
    assert JsonSchema(exact).key == JsonSchema(exact, unenforced="check").key
    assert JsonSchema(exact).key == JsonSchema(exact | {"title": "x"}).key
    assert JsonSchema(exact).key != JsonSchema({"type": "integer", "minimum": 2}).key


REAL = [
    {
        "$schema": DRAFT4,
        "type": "object",
        "properties": {
            "name": {"type": "string", "minLength": 1},
            "title": {"type": "string"},
            "tags": {"type": "array", "items": {"$ref": "#/definitions/tag"}, "minItems": 1},
        },
        "required": ["name", "id"],
        "definitions": {"tag": {"type": "string", "pattern": "^[a-z]+(-[a-z]+)*$"}},
    },
    {
        "type": "object",
        "properties": {
            "type": {"enum": ["circle", "square"]},
            "size": {"type": "number", "exclusiveMinimum": 0, "maximum": 10.5},
        },
        "required": ["type"],
        "oneOf": [
            {"properties": {"type": {"const": "circle"}, "radius": {"type": "integer"}}},
            {"properties": {"type": {"const": "square"}}, "required": ["side"]},
        ],
    },
    {
        "$schema": DRAFT7,
        "definitions": {
            "node": {
                "type": "object",
                "properties": {
                    "title": {"type": ["string", "null"]},
                    "children": {"type": "array", "items": {"$ref": "#/definitions/node"}},
                },
                "required": ["title"],
                "additionalProperties": False,
            }
        },
        "allOf": [{"$ref": "#/definitions/node"}, {"properties": {"title": {"maxLength": 3}}}],
    },
    {
        "type": "object",
        "properties": {"version": {"enum": ["1", 1, 1.5, True, None]}},
        "patternProperties": {"^x-": {}},
        "additionalProperties": {"type": "boolean"},
    },
    {
        "type": "object",
        "properties": {"a": {}, "b": {"type": "boolean"}, "c": {"type": "null"}},
        "required": ["b"],
        "minProperties": 2,
        "maxProperties": 2,
    },
    {
        "type": "array",
        "prefixItems": [{"type": "integer", "minimum": -5, "maximum": 120}, {"type": "boolean"}],
        "items": {"type": "number", "minimum": -0.25},
        "minItems": 1,
        "maxItems": 4,
    },
]


@pytest.mark.parametrize("schema", REAL)
def test_every_sentence_of_a_grown_schema_is_valid(schema):
    check_sentences(JsonSchema(schema), seed=1, walks=60)


leaves = st.sampled_from(
    [
        {"type": "integer", "minimum": -3, "maximum": 12},
        {"type": "number", "exclusiveMinimum": 0.5},
        {"type": "string", "maxLength": 2},
        {"type": ["null", "boolean"]},
        {"enum": ["a", 1, None, False]},
        {"const": "a"},
        {"minimum": 2},
        {"required": ["a"]},
        {"type": "string", "pattern": "^a|b$"},
        True,
    ]
)


def compounds(inner):
    branches = st.lists(inner, min_size=1, max_size=3)
    named = st.dictionaries(st.sampled_from(["a", "b", "title"]), inner, max_size=3)
    return st.one_of(
        st.fixed_dictionaries(
            {"properties": named},
            optional={
                "type": st.just("object"),
                "required": st.lists(st.sampled_from("abc"), max_size=2, unique=True),
                "additionalProperties": inner,
                "anyOf": branches,
                "minProperties": st.integers(0, 2),
                "maxProperties": st.integers(1, 3),
                "dependentRequired": st.just({"a": ["b"]}),
            },
        ),
        st.fixed_dictionaries(
            {"items": inner},
            optional={"minItems": st.integers(0, 2), "maxItems": st.integers(1, 3)},
        ),
        st.fixed_dictionaries({"oneOf": branches}, optional={"allOf": branches}),
        st.fixed_dictionaries({"anyOf": branches}, optional={"type": st.just("object")}),
        st.fixed_dictionaries({"allOf": branches}),
    )


@settings(max_examples=150)
@given(schema=st.recursive(leaves, compounds, max_leaves=6), seed=st.integers(0, 99))
def test_whatever_is_not_refused_is_enforced(schema, seed):
    with contextlib.suppress(InvalidGrammarError, RuntimeError):  # refused, or nothing fits it
        check_sentences(JsonSchema(schema), seed, walks=6)
