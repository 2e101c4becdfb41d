"""Arguments of tools: exact rules for strict tools, a check for what no rules can express."""

import pickle

import pytest
from native_calls import call_tokens, spell
from spoken import MARKERS, misjudged, objects, tools

from dlm.grammar import InvalidGrammarError, InvalidValueError

STRINGS = {"type": "array", "items": {"type": "string"}, "uniqueItems": True}
WIDE = [
    (objects(a={"uniqueItems": True}), "/properties/a/uniqueItems", "the keyword uniqueItems"),
    (objects(a=STRINGS, b={}), "/properties/a/uniqueItems", "the keyword uniqueItems"),
    (objects(a={"type": "array", "minItems": 5000, "contains": {"const": 1}, "minContains": 99}),
     "/properties/a", "the schema there"),
    ({"allOf": [{"not": objects([f"p{i}"], **{f"p{i}": {}, "q": {"enum": [i]}})}
                for i in range(14)]}, "", "the schema there"),
    (objects(a={"type": "string", "pattern": r"^(a|b)\1$"}), "/properties/a/pattern",
     "the keyword p"),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "where", "named"), WIDE)
def test_arguments_that_rules_cannot_express_are_refused_only_for_a_strict_tool(
    schema, where, named
):
    with pytest.raises(InvalidGrammarError, match="leave strict out") as raised:
        tools(schema, strict=True).rules(MARKERS)
    place = raised.value.where.removeprefix("/tools/0/function/parameters")
    assert place.startswith(where)
    assert f"tool 'f' is strict, and {named}" in str(raised.value)
    spec = tools(schema)
    assert spec.rules(MARKERS).nodes
    assert spec.checked
    assert not tools(objects(a={})).checked
    assert not tools(objects(a={}), strict=True).checked


def test_the_check_of_finished_arguments_names_the_tokens_of_the_wrong_value(vocabulary):
    spec = tools(objects(a={"type": "array", "uniqueItems": True}, n={"type": "string"}))
    good = {"a": [{"k": "é"}, "x"], "n": "y"}
    assert spec.read(call_tokens(vocabulary, "f", good), vocabulary).tool_calls
    before = spell(vocabulary, "Well: ")
    tokens = [*before, *call_tokens(vocabulary, "f", {"a": [{"k": "é"}, {"k": "é"}], "n": "y"})]
    with pytest.raises(InvalidValueError, match=r"call of f: .* has an item twice") as raised:
        spec.read(tokens, vocabulary)
    first, last = raised.value.span
    part = b"".join(vocabulary.pieces[t] or b'"' for t in tokens[first : last + 1]).decode()
    assert part.lstrip(":,{") in ('[{k:"é"},{k:"é"}]', '[{k:"é"},{k:"é"}],')
    assert pickle.loads(pickle.dumps(raised.value)).span == (first, last)


@pytest.mark.parametrize("broken", [{"a": {"n": 1}}, {"b": [0, [1, "x"]]}])
def test_the_check_names_one_token_of_a_wrong_scalar(vocabulary, broken):
    spec = tools(
        objects(
            a=objects(n={"type": "string"}),
            b={"type": "array", "items": {"type": ["integer", "array"], "items": {"type": "null"}}},
        )
    )
    tokens = call_tokens(vocabulary, "f", broken)
    with pytest.raises(InvalidValueError) as raised:
        spec.read(tokens, vocabulary)
    first, last = raised.value.span
    assert first == last
    assert b"1" in vocabulary.pieces[tokens[first]]


@pytest.mark.parametrize(
    "parameters",
    [
        None,
        {},
        {"type": "object"},
        {"type": "object", "properties": {}},
        {"type": "object", "properties": {}, "required": []},
        {"type": "object", "additionalProperties": False},
        {"$schema": "https://json-schema.org/draft/2020-12/schema", "type": "object"},
        {"type": ["object", "null"], "title": "Nothing", "description": "Takes nothing."},
        {"type": "object", "properties": {}, "$defs": {"a": {"type": "integer"}}},
        {"type": "object", "maxProperties": 3},
    ],
)
def test_a_tool_whose_schema_names_no_parameter_takes_none(parameters):
    assert misjudged(parameters, [{}], [{"a": 1}, {"": ""}, {"name": {}}]) == []


@pytest.mark.parametrize(
    "parameters",
    [
        {"additionalProperties": True},
        {"type": "object", "properties": {}, "additionalProperties": {}},
        {"type": "object", "patternProperties": {"a": {}}},
        {"type": "object", "properties": {"o": {"type": "object"}}},
    ],
)
def test_a_tool_whose_schema_allows_any_parameter_takes_any(parameters):
    value = {"o": {"a": 1}} if parameters.get("properties") else {"a": 1}
    assert misjudged(parameters, [{}, value], []) == []
