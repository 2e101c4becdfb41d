"""Constraints of bodies, and the messages of a 400 for bodies that make no sense."""

import json
from typing import Any

import pytest

from dlm import Choice, Grammar, JsonSchema, Regex, RequestError
from dlm.grammar import JsonObject, Spec, StructuralTag, Tools
from dlm.openai.constraint import constraint_of
from dlm.policy import Policy

LIBRARY = Policy()
SCHEMA = {"type": "object", "properties": {"age": {"type": "integer"}}}
LAX = JsonSchema(SCHEMA, unenforced="check")
LAX_REF = JsonSchema({"$defs": {"a": {"type": "null"}}, "$ref": "#/$defs/a"}, unenforced="check")
TAG = {"type": "structural_tag", "format": {"type": "const_string", "value": "a"}}
OLD_TAG = {
    "type": "structural_tag",
    "structures": [{"begin": "<a>", "schema": SCHEMA, "end": "</a>"}],
    "triggers": ["<a"],
}
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": SCHEMA}}
    for name in ("find", "book")
]
BOOK = {"type": "function", "function": {"name": "book"}}
EBNF, LARK = 'root ::= "a" | "(" root ")"', 'start: "a" | "(" start ")"'
TRICKY = '// root ::=\n?start.2 : x\nx: "root ::= start:"'


def formatted(**schema):
    return {"response_format": {"type": "json_schema", "json_schema": schema}}


def allowed(mode, *names):
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


def outputs(**kinds):
    return {"structured_outputs": kinds}


VALID: list[tuple[dict[str, Any], Spec | None]] = [
    ({}, None),
    ({"response_format": None, "structured_outputs": None, "tools": None}, None),
    ({"response_format": {"type": "text"}}, None),
    ({"response_format": {"type": "json_object"}}, JsonObject()),
    (formatted(name="person", schema=SCHEMA, strict=True), JsonSchema(SCHEMA)),
    (formatted(schema=SCHEMA, strict=None, description="of one"), LAX),
    (formatted(schema=SCHEMA, strict=False), LAX),
    (formatted(schema={}, strict=True), JsonSchema({})),
    ({"response_format": TAG}, StructuralTag(TAG)),
    ({"response_format": OLD_TAG}, StructuralTag(OLD_TAG)),
    ({"response_format": {"type": "json_object", "schema": SCHEMA}}, LAX),
    ({"response_format": {"type": "json_schema", "schema": SCHEMA}}, LAX),
    ({"response_format": {"type": "json_schema", "json_schema": SCHEMA}}, LAX),
    ({"response_format": {"type": "json_schema", "json_schema": LAX_REF.schema}}, LAX_REF),
    (
        {"response_format": {"type": "json_schema", "name": "a", "strict": True, "schema": SCHEMA}},
        JsonSchema(SCHEMA),
    ),
    (formatted(schema={"name": "a", "strict": True, "schema": SCHEMA}), LAX),
    (outputs(json={"name": "a", "schema": SCHEMA}), JsonSchema(SCHEMA)),
    (outputs(json=SCHEMA, disable_any_whitespace=True), JsonSchema(SCHEMA, whitespace="compact")),
    (outputs(json=SCHEMA, disable_any_whitespace=False), JsonSchema(SCHEMA)),
    (outputs(json_object=True, disable_any_whitespace=True), JsonObject(whitespace="compact")),
    (outputs(json=SCHEMA, disable_additional_properties=True), JsonSchema(SCHEMA)),
    (
        outputs(json=json.dumps(SCHEMA), disable_additional_properties=False),
        JsonSchema(SCHEMA, additional_properties="schema"),
    ),
    (outputs(json=SCHEMA, property_order="any"), JsonSchema(SCHEMA, property_order="any")),
    (outputs(structural_tag=TAG, property_order="schema"), StructuralTag(TAG, "schema")),
    (
        formatted(schema=SCHEMA, strict=True) | outputs(property_order="schema"),
        JsonSchema(SCHEMA, property_order="schema"),
    ),
    (
        {"response_format": {"type": "structural_tag", **TAG}} | outputs(property_order="any"),
        StructuralTag(TAG, "any"),
    ),
    ({"tools": TOOLS} | outputs(property_order="any"), Tools(TOOLS, property_order="any")),
    (
        {"tools": TOOLS} | outputs(json=SCHEMA, property_order="any"),
        Tools(TOOLS, content=JsonSchema(SCHEMA, property_order="any"), property_order="any"),
    ),
    (outputs(regex="a", disable_any_whitespace=True, disable_fallback=True), Regex("a")),
    ({"tools": []}, None),
    ({"tools": [], "tool_choice": "auto", "parallel_tool_calls": True}, None),
    ({"tools": [], "tool_choice": "none"} | outputs(regex="a"), Regex("a")),
    (outputs(json=SCHEMA), JsonSchema(SCHEMA)),
    (outputs(json=json.dumps(SCHEMA)), JsonSchema(SCHEMA)),
    (outputs(json_object=True), JsonObject()),
    (outputs(regex="a+", json=None, disable_any_whitespace=False), Regex("a+")),
    (outputs(choice=["a", "b"]), Choice(["a", "b"])),
    (outputs(grammar=EBNF), Grammar(EBNF)),
    (outputs(grammar=LARK), Grammar(LARK, "lark")),
    (outputs(grammar=TRICKY), Grammar(TRICKY, "lark")),
    (outputs(structural_tag=json.dumps(TAG)), StructuralTag(TAG)),
    ({"tools": TOOLS}, Tools(TOOLS)),
    ({"tools": TOOLS, "tool_choice": "auto"}, Tools(TOOLS)),
    ({"tools": TOOLS, "tool_choice": "required"}, Tools(TOOLS, "required")),
    ({"tools": TOOLS, "tool_choice": BOOK}, Tools(TOOLS, "required", "book")),
    ({"tools": TOOLS, "parallel_tool_calls": False}, Tools(TOOLS, parallel=False)),
    ({"tools": TOOLS, "tool_choice": "none"}, None),
    ({"tools": TOOLS, "tool_choice": allowed("auto", "book")}, Tools(TOOLS[1:])),
    ({"tools": TOOLS, "tool_choice": allowed("required", "find")}, Tools(TOOLS[:1], "required")),
    ({"tools": TOOLS} | formatted(schema=SCHEMA), Tools(TOOLS, content=LAX)),
    ({"tools": TOOLS} | outputs(regex="a"), Tools(TOOLS, content=Regex("a"))),
    ({"tools": TOOLS, "tool_choice": "required"} | outputs(regex="a"), Tools(TOOLS, "required")),
    ({"tools": TOOLS, "tool_choice": BOOK} | outputs(regex="a"), Tools(TOOLS, "required", "book")),
    ({"tool_choice": "auto"}, None),
    ({"tools": TOOLS, "tool_choice": "none"} | outputs(regex="a"), Regex("a")),
    ({"response_format": {"type": "text"}} | outputs(regex="a"), Regex("a")),
]


@pytest.mark.parametrize(("body", "spec"), VALID)
def test_a_body_has_one_constraint_or_none(body, spec):
    found = constraint_of(body, LIBRARY)
    assert (found and found.key) == (spec and spec.key)


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ([], "the body is an empty list: it takes an object"),
        ("{}", "the body is '{}': it takes an object"),
        ({"response_format": "json_object"}, "response_format is 'json_object': it takes an obj"),
        ({"response_format": {}}, "response_format.type is missing: it takes text, json_object"),
        ({"response_format": {"type": "regex"}}, "type is 'regex': .*structured_outputs takes reg"),
        ({"response_format": {"type": ["text"]}}, "response_format.type is a list"),
        (
            {"response_format": {"type": "json_object", "schema": "a"}},
            "response_format.schema: not JSON",
        ),
        (
            {"response_format": {"type": "json_schema", "schema": SCHEMA, "json_schema": {}}},
            "response_format.schema is unknown: it takes type, json_schema",
        ),
        (
            {"response_format": SCHEMA},
            "type is 'object': it takes text, .*; a schema goes to json_schema.schema beside the",
        ),
        ({"json_schema": SCHEMA}, "json_schema is not supported: a schema goes to response_format"),
        ({"format": SCHEMA}, "format is not supported: a schema goes to response_format"),
        ({"response_schema": SCHEMA}, "response_schema is not supported: a schema goes to"),
        (
            {"grammar": 'root ::= "a"'},
            "grammar .*: a grammar, .* goes to structured_outputs.grammar",
        ),
        ({"ebnf": 'root ::= "a"'}, "ebnf .*: a grammar, EBNF or Lark, goes to structured_outputs"),
        ({"regex": "a+"}, "regex is not supported: a regex goes to structured_outputs.regex"),
        (
            {"guided_choice": ["a"]},
            "guided_choice is not supported: use structured_outputs.choice$",
        ),
        ({"guided_decoding_backend": "x"}, "guided_decoding_backend .*: use structured_outputs"),
        ({"structural_tag": TAG}, "structural_tag .* goes to structured_outputs.structural_tag"),
        ({"extra_body": outputs(json=SCHEMA)}, "extra_body .* at the top of the body"),
        ({"response_format": {"type": "json_schema"}}, "format.json_schema is missing: it takes"),
        (formatted(name="a"), "json_schema.schema is missing: it takes a JSON schema"),
        (formatted(schema=True), "json_schema.schema is true"),
        (formatted(schema=SCHEMA, name=3), "json_schema.name is 3: it takes text"),
        (formatted(schema=SCHEMA, strict="yes"), "json_schema.strict is 'yes': it takes true or"),
        (formatted(schema=SCHEMA, strickt=True), "json_schema.strickt is unknown: it takes name"),
        (formatted(schema={"type": 3}), "json_schema.schema: JSON schema at /type: 3 is no type"),
        (formatted(schema={"$schema": []}), r"json_schema.schema: \$schema is an empty list"),
        (outputs(json='{"$schema": 3}'), r"structured_outputs.json: \$schema is 3"),
        (outputs(), "structured_outputs takes exactly one of json, .*; got none"),
        (outputs(property_order="any"), "structured_outputs takes exactly one of .*; got none"),
        (
            outputs(json=SCHEMA, property_order="sorted"),
            "property_order is 'sorted': it takes required, schema or any",
        ),
        (outputs(json=None), "got none"),
        (outputs(json=SCHEMA, regex="a"), "exactly one of .*; got json and regex"),
        (outputs(jsn=SCHEMA), "structured_outputs.jsn is unknown: it takes json, regex, choice"),
        (outputs(regex="a", whitespace_pattern=" "), "whitespace_pattern is not supported"),
        (
            outputs(json=SCHEMA, disable_any_whitespace=1),
            "structured_outputs.disable_any_whitespace is 1: it takes true or false",
        ),
        (outputs(json=""), "structured_outputs.json is '': it takes a JSON schema"),
        (outputs(json="{"), "structured_outputs.json: not JSON"),
        (outputs(json="3"), "structured_outputs.json: JSON schema: a schema is an object, not 3"),
        (outputs(json_object=False), "structured_outputs.json_object is false: it takes true"),
        (outputs(regex=""), "structured_outputs.regex is '': it takes a regex as text"),
        (outputs(regex=["a"]), "structured_outputs.regex is a list"),
        (outputs(choice=[]), "structured_outputs.choice is an empty list"),
        (outputs(choice="ab"), "structured_outputs.choice is 'ab': it takes a list"),
        (outputs(choice=["a", 3]), r"structured_outputs.choice\[1\] is 3: it takes text"),
        (outputs(choice=["a", ""]), "structured_outputs.choice: choice at option 1: '' is no text"),
        (outputs(choice=["a", "a"]), "structured_outputs.choice: .* 'a' is there twice"),
        (outputs(grammar=" "), "structured_outputs.grammar is ' ': it takes a grammar as text"),
        (outputs(grammar='x ::= "a"'), "grammar takes EBNF with a rule `root ::= .*found neither"),
        (outputs(grammar=f"{EBNF}\n{LARK}"), "grammar takes EBNF .*found both"),
        (outputs(structural_tag={}), "structural_tag is an empty object"),
        (outputs(structural_tag=TAG | {"format": 3}), "structured_outputs.structural_tag: struct"),
        (
            {"response_format": {"type": "structural_tag", "format": {"type": "token"}}},
            "response_format: structural tag at /format: token names token ids",
        ),
        (formatted(schema=SCHEMA) | outputs(regex="a"), "response_format and structured_outputs e"),
        ({"tools": [], "tool_choice": "required"}, "needs tools, and there are no tools"),
        ({"tools": ""}, "tools is '': it takes a list"),
        ({"tools": {"find": 1}}, "tools is an object of find: it takes a list"),
        ({"tools": [3]}, r"tools\[0\] is 3: it takes an object"),
        ({"tools": [{"type": "function"}]}, r"tools\[0\].function is missing: it takes an object"),
        (
            {"tools": [{"type": "function", "function": {"name": "a b"}}]},
            "tools: tools at /tools/0/function/name",
        ),
        ({"tool_choice": allowed("auto", "book")}, "tool_choice needs tools, and there are no"),
        (
            {"tools": TOOLS, "tool_choice": allowed("none")},
            "allowed_tools.mode is 'none': it takes",
        ),
        ({"tools": TOOLS, "tool_choice": allowed("auto")}, "allowed_tools.tools is an empty list"),
        ({"tools": TOOLS, "tool_choice": allowed("auto", "fly")}, "tool_choice names 'fly'"),
        (
            {"tools": TOOLS, "tool_choice": {"type": "allowed_tools"}},
            "tool_choice.allowed_tools is missing: it takes an object",
        ),
        ({"tool_choice": "required"}, "tool_choice needs tools, and there are no tools"),
        ({"tool_choice": BOOK}, "tool_choice needs tools, and there are no tools"),
        ({"tools": TOOLS[:1], "tool_choice": BOOK}, "choice names 'book': it takes one of 'find'"),
        ({"tools": TOOLS, "tool_choice": "any"}, "tool_choice is 'any': it takes none, auto, req"),
        ({"tools": TOOLS, "tool_choice": {"type": "function"}}, "tool_choice.function is missing"),
        ({"tools": TOOLS, "parallel_tool_calls": 1}, "parallel_tool_calls is 1: it takes true or"),
        ({"guided_json": SCHEMA}, "guided_json is not supported: use structured_outputs.json$"),
        ({"guided_regex": "a"}, "guided_regex is not supported: use structured_outputs.regex$"),
        ({"functions": []}, "functions is not supported: use tools"),
    ],
)
def test_the_error_of_a_wrong_body_says_what_would_be_right(body, problem):
    with pytest.raises(RequestError, match=problem):
        constraint_of(body, LIBRARY)


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (outputs(regex="a"), "structured_outputs.regex: a regex is not served here"),
        (outputs(grammar=EBNF), "structured_outputs.grammar: a grammar is not served here"),
        ({"response_format": TAG}, "response_format: a structural tag is not served here"),
        ({"tools": TOOLS * 100}, "tools: too large: 200 tools"),
        (outputs(choice=["a"] * 100_000), "structured_outputs.choice: too large: 100000 options"),
        (outputs(json='{"a":' * 20_000), "structured_outputs.json: not JSON: "),
    ],
)
def test_a_policy_refuses_a_body_before_its_constraint_is_made(body, problem):
    with pytest.raises(RequestError, match=problem):
        constraint_of(body, Policy.server("data"))


def test_a_schema_that_is_not_strict_may_have_keywords_that_are_only_checked():
    schema = {"type": "array", "not": {"uniqueItems": True}}
    with pytest.raises(RequestError, match=r"json_schema.schema: JSON schema at .*unique"):
        constraint_of(formatted(schema=schema, strict=True), LIBRARY)
    for strict in (False, None):
        spec = constraint_of(formatted(schema=schema, strict=strict), LIBRARY)
        assert isinstance(spec, JsonSchema)
        assert spec.unenforced == "check"


@pytest.mark.parametrize("field", ["response_format", "tools", "tool_choice", "structured_outputs"])
@pytest.mark.parametrize("key", [None, "a", "json", "type", "json_schema"])
def test_a_body_nested_as_deep_as_the_parser_allows_is_refused(field, key):
    value: Any = 1
    for _ in range(5000):
        value = [value] if key is None else {key: value}
    with pytest.raises(RequestError):
        constraint_of({field: value}, LIBRARY)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"type": "bogus"}, r"tools\[1\].type is 'bogus': it takes function"),
        ({"function": {}}, r"tools\[1\].function.name is missing: it takes the name of a tool"),
        ({"function": {"name": "f", "description": 5}}, r"description is 5: it takes text"),
        ({"function": {"name": "f", "parameters": []}}, "parameters is an empty list: it takes an"),
        ({"function": {"name": "f", "strict": "x"}}, "strict is 'x': it takes true or false"),
    ],
)
@pytest.mark.parametrize("choice", ["none", "auto"])
def test_a_tool_of_another_form_is_refused_even_if_none_may_be_called(changes, problem, choice):
    body = {"tools": [TOOLS[0], TOOLS[1] | changes], "tool_choice": choice}
    with pytest.raises(RequestError, match=problem):
        constraint_of(body, LIBRARY)
