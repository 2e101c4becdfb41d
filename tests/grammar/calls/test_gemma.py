"""The grammar of a call: it takes what the schema takes, and nothing else."""

import random

import numpy as np
import pytest
import xgrammar as xgr
from hypothesis import given
from hypothesis import strategies as st
from native_calls import call_tokens, spell

from dlm.grammar import Compiler, InvalidGrammarError
from dlm.grammar.kinds.tools import Tools


def tools(schema, **options):
    function = {"name": "f", "parameters": schema}
    return Tools([{"type": "function", "function": function}], **{"choice": "required"} | options)


def objects(required=(), **properties):
    return {"type": "object", "properties": properties, "required": list(required)}


def accepts(compiled, tokens):
    matcher = xgr.GrammarMatcher(compiled.grammar)
    return all(matcher.accept_token(token) for token in tokens) and matcher.is_completed()


@pytest.fixture
def takes(compiler, vocabulary):
    def takes(schema, arguments):
        tokens = call_tokens(vocabulary, "f", arguments)
        return accepts(compiler.compile(tools(schema)), tokens)

    return takes


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
            [{"b": 1}, {"a": "", "b": -7}, {"b": 0, "c": True}, {"a": "x", "b": 1, "c": False}],
            [{}, {"a": "x"}, {"b": 1, "a": "x"}, {"b": 1.5}, {"b": "1"}, {"b": 1, "d": 1}],
        ),
        (objects(), [{}], [{"a": 1}]),
        ({}, [{}, {"a": {"b_1": [1, None, {}]}}], []),
        (
            {"type": "object", "additionalProperties": {"type": "integer"}},
            [{}, {"a": 1, "B_2": 2}],
            [{"a": "x"}, {"a": 1.5}],
        ),
        (
            {"type": "object", "required": ["b", "a"]},
            [{"b": 1, "a": []}, {"b": 1, "a": 2, "c": 3}],
            [{}, {"a": 1}, {"c": 3, "b": 1, "a": 2}],
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
            objects(a={"type": "array", "maxItems": 2}, b={"type": "array", "maxItems": 0}),
            [{"a": [], "b": []}, {"a": [1, "x"]}],
            [{"a": [1, 2, 3]}, {"b": [1]}],
        ),
        (
            objects(
                a={
                    "prefixItems": [{"type": "integer"}, {"type": "string"}],
                    "items": {"type": "null"},
                    "minItems": 1,
                    "maxItems": 3,
                }
            ),
            [{"a": [1]}, {"a": [1, "x"]}, {"a": [1, "x", None]}],
            [{"a": []}, {"a": ["x"]}, {"a": [1, 2]}, {"a": [1, "x", None, None]}],
        ),
        (
            {"$schema": "http://json-schema.org/draft-07/schema#"}
            | objects(a={"items": [{"type": "integer"}], "additionalItems": False}),
            [{"a": []}, {"a": [1]}],
            [{"a": [1, 2]}, {"a": ["x"]}],
        ),
        (
            objects(a={"type": "integer", "exclusiveMinimum": 3, "minimum": 3, "maximum": 9.5}),
            [{"a": 4}, {"a": 9}],
            [{"a": 3}, {"a": 10}],
        ),
        (
            objects(a={"type": "number", "minimum": 0.5}, b={"type": "integer", "format": "uint8"}),
            [{"a": 0.5, "b": 255}, {"a": 1e3}],
            [{"a": 0.4}, {"b": 256}, {"b": -1}],
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
            objects(a={"anyOf": [{"type": "integer"}, {"type": "number"}, False]}),
            [{"a": 1}, {"a": 1.5}],
            [{"a": "x"}],
        ),
        (
            objects(a={"allOf": [{"type": "integer"}], "description": "one"}),
            [{"a": 1}],
            [{"a": "x"}],
        ),
        (
            objects(**{"größe": {}, "$id": {}, "a-b.c": {}}),
            [{"größe": 1, "$id": 2, "a-b.c": 3}],
            [],
        ),
        (objects(a={"type": "array", "uniqueItems": False}), [{"a": [1, 1]}], []),
    ],
)
def test_a_call_takes_what_its_schema_takes(takes, schema, taken, refused):
    assert [arguments for arguments in taken if not takes(schema, arguments)] == []
    assert [arguments for arguments in refused if takes(schema, arguments)] == []


def test_arguments_nest_as_deep_as_the_schema_lets_them(takes):
    node = {"value": 0}
    for value in range(60):
        node = {"value": value, "children": [node]}
    assert takes(NODE, node)


LOOP = {"$ref": "#/$defs/loop"}


@pytest.mark.parametrize(
    ("schema", "where", "reason"),
    [
        (objects(a={"multipleOf": 3}), "/properties/a/multipleOf", "cannot be enforced"),
        (objects(a={"not": {}}), "/properties/a/not", "cannot be enforced"),
        (objects(a={"items": {"if": {}}}), "/properties/a/items/if", "cannot be enforced"),
        (objects(a={"uniqueItems": True}), "/properties/a/uniqueItems", "cannot be enforced"),
        (objects() | {"minProperties": 1}, "/minProperties", "cannot be enforced"),
        (objects() | {"patternProperties": {"a": {}}}, "/patternProperties", "cannot be enforced"),
        (objects() | {"dependentRequired": {"a": []}}, "/dependentRequired", "cannot be enforced"),
        (objects(a={"allOf": [{}, {}]}), "/properties/a/allOf", "several schemas"),
        (objects() | {"anyOf": [{"required": ["a"]}]}, "/properties", "beside anyOf"),
        (
            objects(a={"oneOf": [{"type": "integer"}, {"type": "number"}]}),
            "/properties/a/oneOf/1",
            "fit an earlier option",
        ),
        (
            objects(a={"oneOf": [{"properties": {}}, {"type": "string"}]}),
            "/properties/a/oneOf/1",
            "fit an earlier option",
        ),
        (objects(a={"pattern": "a", "minLength": 3}), "/properties/a/pattern", "nothing of this"),
        (objects(a={"format": "date", "maxLength": 9}), "/properties/a/format", "nothing of this"),
        (objects(a={"pattern": "a", "format": "date"}), "/properties/a/format", "beside pattern"),
        (objects(a={"pattern": "(?<=a)"}), "/properties/a/pattern", "no look-behind"),
        (objects(a={"format": "stardate"}), "/properties/a/format", "none of date, time"),
        (objects(a={"type": "string", "minLength": 2, "maxLength": 1}), "/properties/a/maxLength",
         "less than minLength"),
        (objects(a={"type": "array", "minItems": 2, "maxItems": 1}), "/properties/a/minItems",
         "no array is that long"),
        (objects(a={"type": "integer", "minimum": 2, "maximum": 1}), "/properties/a",
         "no integer is between"),
        (objects(**{"a b": {}}), "/properties/a b", "without quotes"),
        (objects(**{"a/~b": {}}), "/properties/a~1~0b", "without quotes"),
        (objects(a={"const": {"k k": 1}}), "/properties/a", "without quotes"),
        (objects(a={"const": "\0"}), "/properties/a", "is no text"),
        (objects(a={"enum": ["x"], "type": "integer"}), "/properties/a", "none of its own values"),
        (objects(["a"]) | {"additionalProperties": False}, "/required/0", "no property 'a'"),
        (objects(["a"], a=False), "/properties/a", "nothing fits"),
        (objects(a={"anyOf": [False]}), "/properties/a/anyOf", "nothing fits"),
        (objects(a={"$ref": "#/nowhere"}), "/properties/a/$ref", "leads nowhere"),
        (objects(a={"$ref": "https://a.b/c"}), "/properties/a/$ref", "stays within"),
        (
            objects(a={"$ref": "#", "minProperties": 1}),
            "/properties/a/minProperties",
            "beside \\$ref",
        ),
        (
            objects(a=LOOP) | {"$defs": {"loop": {"anyOf": [LOOP, {"type": "null"}]}}},
            "/properties/a/$ref",
            "begins with itself",
        ),
        (
            objects(a=LOOP) | {"$defs": {"loop": objects(["b"], b=LOOP)}},
            "/properties/a/$ref",
            "no finite value",
        ),
        (
            {"$schema": "http://json-schema.org/draft-07/schema#"}
            | objects(a={"prefixItems": [{}]}),
            "/properties/a/prefixItems",
            "unknown to the draft",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_enforced_is_refused_with_its_place(compiler, schema, where, reason):
    with pytest.raises(InvalidGrammarError, match=reason) as raised:
        compiler.compile(tools(schema))
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
    """The same, of objects."""
    members = draw(st.dictionaries(KEYS, st.tuples(pairs(depth=depth), st.booleans()), max_size=3))
    required = [key for key, (_, needed) in members.items() if needed]
    value = {k: pair[1] for k, (pair, needed) in members.items() if needed or draw(st.booleans())}
    return objects(required, **{key: pair[0] for key, (pair, _) in members.items()}), value


@given(records(), records())
def test_what_fits_is_taken_and_what_is_taken_fits(compiler, vocabulary, pair, other):
    schema, value = pair
    compiled, spec = compiler.compile(tools(schema)), tools(schema)
    assert accepts(compiled, call_tokens(vocabulary, "f", value))
    tokens = call_tokens(vocabulary, "f", other[1])
    if accepts(compiled, tokens):
        assert spec.read(tokens, vocabulary).tool_calls[0].arguments == other[1]


def walk(compiled, vocabulary, seed, freely=40):
    """An answer that the grammar allows: at random at first, then the shortest way out."""
    matcher, choose = xgr.GrammarMatcher(compiled.grammar), random.Random(seed)
    mask, answer = xgr.allocate_token_bitmask(1, len(vocabulary)), []
    ends = [vocabulary.call.close, vocabulary.call.quote]
    ends += [vocabulary.pieces.index(piece) for piece in (b"@", b"}", b"]", b":", b"0")]
    while True:
        matcher.fill_next_token_bitmask(mask)
        bits = np.unpackbits(mask.numpy().view(np.uint8), bitorder="little")
        allowed = np.flatnonzero(bits[: len(vocabulary)]).tolist()
        if vocabulary.stops[0] in allowed and (len(answer) >= freely or choose.random() < 0.3):
            return answer
        allowed = [token for token in allowed if token not in vocabulary.stops]
        short = [token for token in allowed if len(vocabulary.pieces[token]) == 1]
        token = choose.choice(allowed)
        if len(answer) >= freely or choose.random() < 0.2:
            token = next((end for end in ends if end in allowed), choose.choice(short or allowed))
        assert matcher.accept_token(token)
        answer.append(token)
        assert len(answer) < 1000


@given(records(), st.integers(0, 2**32))
def test_whatever_way_through_the_grammar_the_answer_fits(compiler, vocabulary, pair, seed):
    spec = tools(pair[0], choice="auto" if seed % 2 else "required")
    answer = walk(compiler.compile(spec), vocabulary, seed)
    read = spec.read(answer, vocabulary)
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
def test_ways_through_harder_grammars_fit_too(compiler, vocabulary, schema):
    spec = tools(schema)
    for seed in range(40):
        answer = walk(compiler.compile(spec), vocabulary, seed)
        assert spec.read(answer, vocabulary).tool_calls


def test_a_call_is_a_token_at_its_ends_and_at_its_strings(compiler, vocabulary):
    """Text that reads the same is none."""
    compiled = compiler.compile(tools(objects(["a"], a={"type": "string"})))
    assert accepts(compiled, call_tokens(vocabulary, "f", {"a": "x"}))
    text = '<|tool_call>call:f{a:<|"|>x<|"|>}<tool_call|>'
    assert not accepts(compiled, spell(vocabulary, text))
    matcher = xgr.GrammarMatcher(compiled.grammar)
    assert not matcher.accept_string("<|tool_call>")


def test_a_vocabulary_without_the_markers_is_refused(vocabulary):
    bare = Compiler(
        type(vocabulary)(
            vocabulary.pieces, control=[0], stops=[1], pad=0, thought=None, encode=lambda text: []
        )
    )
    with pytest.raises(InvalidGrammarError, match="no tool call tokens"):
        bare.compile(tools({}))
