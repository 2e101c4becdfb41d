"""The grammar of a call in Gemma's form: it accepts the arguments that fit the schema."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from native_calls import spell
from spoken import (
    MARKERS,
    TOKENS,
    call_text,
    misjudged,
    objects,
    recogniser,
    sample,
    tools,
)

from dlm.grammar import InvalidGrammarError

NODE = {
    "$defs": {
        "node": objects(
            ["value"],
            value={"type": "integer"},
            children={"type": "array", "items": {"$ref": "#/$defs/node"}},
        )
    },
    "$ref": "#/$defs/node",
}
SHAPES = {
    "oneOf": [
        objects(["kind"], kind={"const": "dot"}),
        objects(["kind", "size"], kind={"enum": ["disc", "box"]}, size={"type": "number"}),
    ]
}
ODD = ["", "{", "a,b", "k:v", '"', "\\", "}<tool_call|>", "é😀", "a\nb", "\u2028", '<|"|>']


@pytest.mark.parametrize(
    ("schema", "taken", "refused"),
    [
        (
            objects(["b"], a={"type": "string"}, b={"type": "integer"}, c={"type": "boolean"}),
            [
                {"b": 1},
                {"a": "", "b": -7},
                {"b": 0, "c": True},
                {"a": "x", "b": 1, "c": False},
                {"a": '<|"|>', "b": 1},
                {"c": True, "b": 1, "a": "x"},
            ],
            [{}, {"a": "x"}, {"c": True, "a": "x"}, {"b": 1.5}, {"b": "1"}, {"b": 1, "d": 1}],
        ),
        (objects(), [{}], [{"a": 1}]),
        ({}, [{}], [{"a": 1}]),
        ({"additionalProperties": {}}, [{}, {"a": {"b_1": [1, None, {}]}, "é-1": 2}], []),
        (
            objects(
                **{name: {} for name in ("@timestamp", "first name", "filter[x]", "xml:lang", "😀")}
            ),
            [{"@timestamp": 1, "first name": "", "filter[x]": [], "xml:lang": "de", "😀": None}],
            [{"timestamp": 1}, {"xml": "de"}, {"xml:": 1}],
        ),
        (objects(a={"const": {"k k": 1, "a:b": "c"}}), [{"a": {"k k": 1, "a:b": "c"}}], [{"a": 1}]),
        (
            {"type": "object", "additionalProperties": {"type": "integer"}},
            [{}, {"a": 1, "B_2": 2}],
            [{"a": "x"}, {"a": 1.5}],
        ),
        (
            {"type": "object", "required": ["b", "a"]},
            [{"b": 1, "a": []}],
            [{}, {"a": 1}, {"a": 1, "b": 2}],
        ),
        (objects(["b"], a={}) | {"required": ["b"]}, [{"b": 1}, {"a": 2, "b": 1}], [{"a": 1}]),
        (objects(a=False, b=True), [{}, {"b": {"c": "d"}}], [{"a": 1}]),
        (objects(a={"enum": ODD}), [{"a": text} for text in ODD], [{"a": "x"}, {"a": "a"}]),
        (
            objects(a={"enum": [1, 2.5, None, True, [1, "x"], {"k": {}}], "type": ["array"]}),
            [{"a": [1, "x"]}],
            [{"a": 1}, {"a": None}, {"a": {"k": {}}}],
        ),
        (objects(a={"const": {"k": ["}", 1.5]}}), [{"a": {"k": ["}", 1.5]}}], [{"a": {"k": []}}]),
        (
            objects(a={"type": ["string", "null", "integer"], "minLength": 2, "minimum": 3}),
            [{"a": "xy"}, {"a": None}, {"a": 3}],
            [{"a": "x"}, {"a": 2}, {"a": True}],
        ),
        (
            objects(a={"type": "string", "nullable": True}, nullable={"type": "integer"}),
            [{"a": None}, {"a": "x", "nullable": 1}],
            [{"nullable": None}],
        ),
        (
            objects(a={"type": "string", "minLength": 1, "maxLength": 2}),
            [{"a": "x"}, {"a": "😀é"}, {"a": "{}"}],
            [{"a": ""}, {"a": "xyz"}],
        ),
        (
            objects(a={"pattern": "^[a-z]+$"}, b={"format": "date"}),
            [{"a": "abc", "b": "2024-02-29"}],
            [{"a": "aB"}, {"a": ""}, {"b": "2023-02-29"}, {"a": 1}],
        ),
        (
            objects(a={"type": "array", "items": {"type": "integer"}, "minItems": 1}),
            [{"a": [1]}, {"a": [1, 2, 3]}],
            [{"a": []}, {"a": ["x"]}],
        ),
        (
            NODE,
            [{"value": 1}, {"value": 1, "children": [{"value": 2}, {"value": 3, "children": []}]}],
            [{}, {"value": 1, "children": [{}]}],
        ),
        (
            SHAPES,
            [{"kind": "dot"}, {"kind": "box", "size": 1.5}],
            [{"kind": "box"}, {"kind": "dot", "size": 1}, {}],
        ),
        (
            objects(**{"größe": {}, "$id": {}, "a-b.c": {}}),
            [{"größe": 1, "$id": 2, "a-b.c": 3}],
            [],
        ),
        (objects(a={"type": "array", "uniqueItems": False}), [{"a": [1, 1]}], []),
        (objects(a={"multipleOf": 3}), [{"a": 9}], [{"a": 8}]),
        (objects(a={"not": {"type": "null"}}), [{"a": 1}], [{"a": None}]),
        (objects(a={"pattern": "b", "minLength": 3}), [{"a": "abc"}], [{"a": "ab"}, {"a": "acc"}]),
        (objects(a={"format": "stardate"}), [{"a": "today"}, {"a": 3}], []),
        (objects(a={"oneOf": [{"type": "integer"}, {"minimum": 0}]}), [{"a": 0.5}], [{"a": 1}]),
        (
            objects(**{"x_1": {}}) | {"patternProperties": {"^y": {"type": "integer"}}},
            [{"x_1": None}, {"x_1": "a", "y2": 1}],
            [{"z": 1}, {"y2": "a"}],
        ),
        (
            {"$schema": "http://json-schema.org/draft-04/schema#"}
            | objects(a={"minimum": 3, "exclusiveMinimum": True}),
            [{"a": 4}],
            [{"a": 3}],
        ),
    ],
)
def test_a_call_accepts_the_arguments_that_fit_its_schema(schema, taken, refused):
    assert misjudged(schema, taken, refused) == []


def test_arguments_of_a_recursive_schema_may_be_nested_deeply():
    node = {"value": 0}
    for value in range(30):
        node = {"value": value, "children": [node]}
    assert misjudged(NODE, [node], []) == []


LOOP = {"$ref": "#/$defs/loop"}


@pytest.mark.parametrize(
    ("schema", "where", "reason"),
    [
        (objects(**{"a:{": {"type": "null"}}), "/properties/a:{", "'a:{' is ambiguous"),
        (objects(**{"}/~b": {"type": "null"}}), "/properties/}~1~0b", "'}/~b' is ambiguous"),
        (objects(a={"const": {"a:1,": 1}}), "", "the name 'a:1,' is ambiguous"),
        (objects(["a"]) | {"additionalProperties": False}, "", "no finite value fits"),
        (objects(["a"], a=False), "", "no finite value fits"),
        (objects(a={"$ref": "#/nowhere"}), "/properties/a/$ref", "leads to no schema"),
        (objects(a={"$ref": "https://a.b/c"}), "/properties/a/$ref", "leads to no schema"),
        (objects(["a"], a=LOOP) | {"$defs": {"loop": objects(["b"], b=LOOP)}}, "", "no finite"),
        (objects(a={"type": "text"}), "/properties/a/type", "'text' is no type"),
    ],
)  # fmt: skip
def test_an_impossible_schema_is_refused_with_its_tool_and_place(schema, where, reason):
    with pytest.raises(InvalidGrammarError, match=f"tool 'f'.*{re.escape(reason)}") as raised:
        tools(schema).rules(MARKERS)
    assert raised.value.where == "/tools/0/function/parameters" + where


KEYS = st.sampled_from(["a", "b_2", "c-d", "e.f", "type", "enum"])
TEXTS = st.text(st.sampled_from('ab{}[],:"\\é😀 \n<|>'), max_size=4)
LOOSE = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.sampled_from([0.5, -1.25]) | TEXTS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(KEYS, inner, max_size=2),
    max_leaves=4,
)


@st.composite
def pairs(draw, depth=2):
    """A schema, and a value that fits it."""
    kind = draw(st.sampled_from(["text", "int", "enum", "any", "union", "array", "object"]))
    if kind == "text":
        text = draw(TEXTS)
        low = draw(st.integers(0, len(text)))
        high = {"maxLength": draw(st.integers(len(text), 9))} if draw(st.booleans()) else {}
        return {"type": "string", "minLength": low, **high}, text
    if kind == "int":
        value = draw(st.integers(-99, 99))
        schema = {"type": draw(st.sampled_from(["integer", "number"]))}
        if draw(st.booleans()):
            schema["minimum"] = draw(st.integers(-120, value))
        if draw(st.booleans()):
            schema["exclusiveMaximum"] = draw(st.integers(value + 1, 120))
        return schema, value
    if kind == "enum":
        values = draw(st.lists(LOOSE, min_size=1, max_size=3))
        return {"enum": values}, draw(st.sampled_from(values))
    if kind == "any" or depth == 0:
        return {}, draw(LOOSE.filter(lambda value: "-" not in str(value) and "." not in str(value)))
    if kind == "union":
        options = draw(st.lists(pairs(depth=depth - 1), min_size=1, max_size=3))
        return {"anyOf": [schema for schema, _ in options]}, options[0][1]
    if kind == "array":
        first = draw(st.lists(pairs(depth=depth - 1), max_size=2))
        value = [item for _, item in first]
        schema = {"type": "array"}
        if first:
            schema["prefixItems"] = [schema for schema, _ in first]
        if draw(st.booleans()):
            item, one = draw(pairs(depth=depth - 1))
            schema["items"] = item
            value += [one] * draw(st.integers(0, 2))
        schema["minItems"] = draw(st.integers(0, len(value)))
        return schema, value
    return draw(records(depth=depth - 1))


@st.composite
def records(draw, depth=2):
    """A schema of an object, and an object that fits it."""
    members = draw(st.dictionaries(KEYS, st.tuples(pairs(depth=depth), st.booleans()), max_size=3))
    required = [key for key, (_, needed) in members.items() if needed]
    value = {k: pair[1] for k, (pair, needed) in members.items() if needed or draw(st.booleans())}
    return objects(required, **{key: pair[0] for key, (pair, _) in members.items()}), value


def tokens_of(vocabulary, text):
    """Return the tokens of `text`, in which markers are characters."""
    call = vocabulary.call
    markers = dict(zip(TOKENS.values(), (call.open, call.close, call.quote), strict=True))
    tokens = []
    for part in re.split("([\ue001-\ue003])", text):
        tokens += [markers[part]] if part in markers else spell(vocabulary, part)
    return tokens


@settings(max_examples=12)
@given(records(), records())
def test_arguments_that_fit_are_accepted_and_accepted_ones_are_parsed(vocabulary, pair, other):
    spec = tools(pair[0])
    reader = recogniser(spec)
    assert reader.accepts(call_text("f", pair[1]))
    text = call_text("f", other[1])
    if reader.accepts(text):
        (call,) = spec.read(tokens_of(vocabulary, text), vocabulary).tool_calls
        assert call.arguments == other[1]


@settings(max_examples=12)
@given(records(), st.integers(0, 2**32))
def test_random_texts_of_the_rules_fit_the_schema(vocabulary, pair, seed):
    spec = tools(pair[0], choice="auto" if seed % 2 else "required")
    text = sample(spec.rules(MARKERS), seed)
    read = spec.read(tokens_of(vocabulary, text), vocabulary)
    assert read.content or read.tool_calls


@pytest.mark.parametrize(
    "schema",
    [
        NODE,
        SHAPES,
        {},
        objects(["a"], a={"pattern": r"^(\S+ ?|[^\w]){1,4}$"}, b={"format": "email"}),
        objects(["a"], a={"type": "number", "exclusiveMinimum": 0}, b={"format": "uri"}),
        objects(["a"], a={"format": "date-time"}, b={"format": "ipv6"}),
        objects(["a"], a={"pattern": '^(["é]-)*$', "minLength": 3, "maxLength": 5}),
        objects(["a"], a={"format": "email", "maxLength": 9}, b={"pattern": "^b", "minLength": 3}),
    ],
)
def test_random_texts_of_harder_rules_fit_the_schema(vocabulary, schema):
    spec = tools(schema)
    rules = spec.rules(MARKERS)
    for seed in range(5):
        assert spec.read(tokens_of(vocabulary, sample(rules, seed)), vocabulary).tool_calls


def test_a_vocabulary_without_the_markers_is_refused():
    with pytest.raises(InvalidGrammarError, match="lacks the control tokens of the form gemma4"):
        tools({}).rules(None)
