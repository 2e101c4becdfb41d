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
        ([], "the body must be an object, got an empty list"),
        ("{}", "the body must be an object, got '{}'"),
        ({"response_format": "json_object"}, "response_format must be an obj.*, got 'json_object'"),
        ({"response_format": {}}, "response_format.type is missing; it must be text, json_object"),
        (
            {"response_format": {"type": "regex"}},
            r"type must be .*structured_outputs.regex\), got 'regex'",
        ),
        (
            {"response_format": {"type": ["text"]}},
            "response_format.type must be text.*, got a list",
        ),
        (
            {"response_format": {"type": "json_object", "schema": "a"}},
            "response_format.schema: not JSON",
        ),
        (
            {"response_format": {"type": "json_schema", "schema": SCHEMA, "json_schema": {}}},
            "response_format.schema is unknown here; the fields are type, json_schema",
        ),
        (
            {"response_format": SCHEMA},
            r"type must be text, .* \(a schema goes to json_schema.schema beside .*, got 'object'",
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
        ({"response_format": {"type": "json_schema"}}, "format.json_schema is missing; it must be"),
        (formatted(name="a"), "json_schema.schema is missing; it must be a JSON schema"),
        (formatted(schema=True), "json_schema.schema must be a JSON schema.*, got true"),
        (formatted(schema=SCHEMA, name=3), "json_schema.name must be text, got 3"),
        (formatted(schema=SCHEMA, strict="yes"), "json_schema.strict must be true or.*, got 'yes'"),
        (
            formatted(schema=SCHEMA, strickt=True),
            "json_schema.strickt is unknown here; the fields are",
        ),
        (formatted(schema={"type": 3}), "json_schema.schema: JSON schema at /type: 3 is no type"),
        (
            formatted(schema={"$schema": []}),
            r"json_schema.schema: \$schema must be a URI, got an empty list",
        ),
        (outputs(json='{"$schema": 3}'), r"structured_outputs.json: \$schema must be a URI, got 3"),
        (outputs(), "structured_outputs must have exactly one of json, .*, got none"),
        (outputs(property_order="any"), "structured_outputs must have exactly one of .*, got none"),
        (
            outputs(json=SCHEMA, property_order="sorted"),
            "property_order must be required, schema or any, got 'sorted'",
        ),
        (outputs(json=None), "got none"),
        (outputs(json=SCHEMA, regex="a"), "exactly one of .*, got json and regex"),
        (outputs(jsn=SCHEMA), "structured_outputs.jsn is unknown here; the fields are json"),
        (outputs(regex="a", whitespace_pattern=" "), "whitespace_pattern is not supported"),
        (
            outputs(json=SCHEMA, disable_any_whitespace=1),
            "structured_outputs.disable_any_whitespace must be true or false, got 1",
        ),
        (outputs(json=""), "structured_outputs.json must be a JSON schema.*, got ''"),
        (outputs(json="{"), "structured_outputs.json: not JSON"),
        (
            outputs(json="3"),
            "structured_outputs.json: JSON schema: a schema must be an object, .*, got 3",
        ),
        (outputs(json_object=False), "structured_outputs.json_object must be true, got false"),
        (outputs(regex=""), "structured_outputs.regex must be a regex as text, got ''"),
        (outputs(regex=["a"]), "structured_outputs.regex must be a regex as text, got a list"),
        (
            outputs(choice=[]),
            "structured_outputs.choice must be a list that is not empty, got an empty list",
        ),
        (outputs(choice="ab"), "structured_outputs.choice must be a list, got 'ab'"),
        (outputs(choice=["a", 3]), r"structured_outputs.choice\[1\] must be text, got 3"),
        (
            outputs(choice=["a", ""]),
            "structured_outputs.choice: choice at option 1: an option must be text",
        ),
        (outputs(choice=["a", "a"]), "structured_outputs.choice: .* 'a' is there twice"),
        (outputs(grammar=" "), "structured_outputs.grammar must be a grammar as text, got ' '"),
        (outputs(grammar='x ::= "a"'), "grammar must be EBNF with a rule `root ::= .*got neither"),
        (outputs(grammar=f"{EBNF}\n{LARK}"), "grammar must be EBNF .*got both"),
        (
            outputs(structural_tag={}),
            "structural_tag must be a structural tag, got an empty object",
        ),
        (outputs(structural_tag=TAG | {"format": 3}), "structured_outputs.structural_tag: struct"),
        (
            {"response_format": {"type": "structural_tag", "format": {"type": "token"}}},
            "response_format: structural tag at /format: token names token ids",
        ),
        (formatted(schema=SCHEMA) | outputs(regex="a"), "response_format and structured_outputs e"),
        ({"tools": [], "tool_choice": "required"}, "needs tools, and there are no tools"),
        ({"tools": ""}, "tools must be a list, got ''"),
        ({"tools": {"find": 1}}, "tools must be a list, got an object of find"),
        ({"tools": [3]}, r"tools\[0\] must be an object, got 3"),
        (
            {"tools": [{"type": "function"}]},
            r"tools\[0\].function is missing; it must be an object",
        ),
        (
            {"tools": [{"type": "function", "function": {"name": "a b"}}]},
            "tools: tools at /tools/0/function/name",
        ),
        ({"tool_choice": allowed("auto", "book")}, "tool_choice needs tools, and there are no"),
        (
            {"tools": TOOLS, "tool_choice": allowed("none")},
            "allowed_tools.mode must be auto or required, got 'none'",
        ),
        (
            {"tools": TOOLS, "tool_choice": allowed("auto")},
            "allowed_tools.tools must be a list that is not empty, got an empty list",
        ),
        (
            {"tools": TOOLS, "tool_choice": allowed("auto", "fly")},
            "tool_choice must name one of .*, got 'fly'",
        ),
        (
            {"tools": TOOLS, "tool_choice": {"type": "allowed_tools"}},
            "tool_choice.allowed_tools is missing; it must be an object",
        ),
        ({"tool_choice": "required"}, "tool_choice needs tools, and there are no tools"),
        ({"tool_choice": BOOK}, "tool_choice needs tools, and there are no tools"),
        ({"tools": TOOLS[:1], "tool_choice": BOOK}, "choice must name one of 'find', got 'book'"),
        (
            {"tools": TOOLS, "tool_choice": "any"},
            "tool_choice must be none, auto, req.*, got 'any'",
        ),
        ({"tools": TOOLS, "tool_choice": {"type": "function"}}, "tool_choice.function is missing"),
        (
            {"tools": TOOLS, "parallel_tool_calls": 1},
            "parallel_tool_calls must be true or.*, got 1",
        ),
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
        ({"type": "bogus"}, r"tools\[1\].type must be one of function.*, got 'bogus'"),
        ({"function": {}}, r"tools\[1\].function.name is missing; it must be the name of a tool"),
        ({"function": {"name": "f", "description": 5}}, r"description must be text, got 5"),
        (
            {"function": {"name": "f", "parameters": []}},
            "parameters must be an.*, got an empty list",
        ),
        ({"function": {"name": "f", "strict": "x"}}, "strict must be true or false, got 'x'"),
    ],
)
@pytest.mark.parametrize("choice", ["none", "auto"])
def test_a_tool_of_another_form_is_refused_even_if_none_may_be_called(changes, problem, choice):
    body = {"tools": [TOOLS[0], TOOLS[1] | changes], "tool_choice": choice}
    with pytest.raises(RequestError, match=problem):
        constraint_of(body, LIBRARY)
