"""Random and malformed requests: each is served or refused, and nothing else happens."""

import copy
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlm import Grammar, GrammarError, JsonSchema, Regex, RequestError
from dlm.chat import Chat
from dlm.grammar import Compiler, JsonObject, Vocabulary
from dlm.openai.constraint import constraint_of
from dlm.openai.requests import request_of
from dlm.policy import Policy

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
TAG = {"type": "tag", "begin": "<a>", "content": {"type": "any_text"}, "end": ["</a>"]}
TOOL = {"type": "function", "function": {"name": "find", "parameters": SCHEMA}}
BODIES: list[dict[str, Any]] = [
    {"prompt": "Hi.", "response_format": {"type": "json_object"}, "reasoning_effort": "low"},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}},
    {"response_format": {"type": "structural_tag", "format": TAG}},
    {"structured_outputs": {"json": SCHEMA}, "messages": [{"role": "user", "content": "Hi."}]},
    {"structured_outputs": {"regex": "a+"}, "prompt": [1, 2], "max_tokens": 9, "seed": 3},
    {"structured_outputs": {"choice": ["a", "b"]}},
    {"structured_outputs": {"grammar": 'root ::= "a"'}},
    {"structured_outputs": {"grammar": 'start: "a"'}},
    {
        "structured_outputs": {
            "structural_tag": {
                "type": "structural_tag",
                "structures": [{"begin": "<a>", "schema": SCHEMA, "end": "</a>"}],
                "triggers": ["<a"],
            }
        }
    },
    {"tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False},
    {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "find"}}},
]

_NAMES = st.sampled_from(
    """response_format structured_outputs tools tool_choice parallel_tool_calls json regex choice
    grammar structural_tag json_object json_schema schema type name strict function parameters
    properties items $ref $schema $defs enum const pattern anyOf required format begin end content
    messages role prompt max_tokens seed reasoning_effort guided_json""".split()
)
_WORDS = st.sampled_from(
    """text json_object json_schema structural_tag function none auto required object array string
    integer null any_text regex tag sequence a+ (a [ \\ é 日 root::= start: #/$defs/a # {} true
    user""".split()
)
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats() | _WORDS | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_NAMES, inner, max_size=4),
    max_leaves=12,
)


@st.composite
def mutated(draw):
    """Draw a valid body in which one value, at any depth, was replaced, added or removed."""
    body = copy.deepcopy(draw(st.sampled_from(BODIES)))
    places: list[tuple[Any, Any]] = []
    waiting: list[Any] = [body]
    while waiting:
        value = waiting.pop()
        keys = range(len(value)) if isinstance(value, list) else [*value]
        places += [(value, key) for key in keys]
        waiting += [value[key] for key in keys if isinstance(value[key], dict | list)]
    inside, key = draw(st.sampled_from(places))
    match draw(st.sampled_from(["replace", "add", "remove"])):
        case "replace":
            inside[key] = draw(_VALUES)
        case "add" if isinstance(inside, dict):
            inside[draw(_NAMES)] = draw(_VALUES)
        case _:
            del inside[key]
    return body


@pytest.fixture(scope="module")
def compiler(chat: Chat) -> Compiler:
    return Compiler(Vocabulary.from_tokenizer(chat.tokenizer, 1536, [1, 106, 50], pad=0))


def serve(body, policy, compiler):
    """Check and compile the constraint of a body, as a server does."""
    with suppress(RequestError, GrammarError):
        spec = constraint_of(body, policy)
        policy.check(spec or JsonObject())
        if spec is not None:
            compiler.compile(spec)
    with suppress(RequestError):
        request_of(body, policy)


@given(_VALUES, st.sampled_from([Policy(), Policy.server("data")]))
def test_a_random_body_is_served_or_refused(compiler, body, policy):
    serve(body, policy, compiler)


@given(mutated(), st.sampled_from([Policy(), Policy.server("data")]))
def test_a_valid_body_with_one_mutation_is_served_or_refused(compiler, body, policy):
    serve(body, policy, compiler)


_PIECES = {
    "regex": r"""a b ( ) (?: (?= (?< [ ] [^ a-z - ^ $ | * + ? {2} {2,} {3,1} {99999} \d \b \u00 \x4
    \1 . \ {""",
    "ebnf": r"""root::= root a ::= "a" "\x " ' [a-z] [^ ] [z-a] ( ) | * + ? {2} {2,} {3,1} { } #
    / (= Token(106) TagDispatch(("a",root)) Token( [max_tokens=3] "" \ , . 0""",
    "lark": r"""start: start a : "a" "\x " ' /a/ /( /i ( ) [ ] | * + ? ~2 ~3..1 ~ %ignore %import
    common.INT %json {} { } <[106]> <a> @a -> . // # A B: ..""",
}


@pytest.mark.parametrize("form", _PIECES)
@given(st.data())
def test_a_malformed_grammar_is_refused_and_nothing_else(compiler, form, data):
    """No other exception, no crash, no hang: xgrammar reads it in C++."""
    pieces = st.sampled_from([*_PIECES[form].split(), "\n", " "])
    text = "".join(data.draw(st.lists(pieces, min_size=1, max_size=12)))
    with suppress(GrammarError):
        compiler.compile(Regex(text) if form == "regex" else Grammar(text, form))


_KEYWORDS = st.sampled_from(
    """type properties required items prefixItems additionalProperties enum const anyOf oneOf allOf
    not $ref $defs minItems maxItems minLength maxLength minimum maximum multipleOf pattern format
    patternProperties propertyNames minProperties if then else""".split()
)
_SCHEMAS = st.recursive(
    st.booleans()
    | st.integers(-5, 5)
    | st.floats(-9, 9)
    | st.sampled_from("object array string integer null date ^a+$ ( #/$defs/a # a".split()),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(_KEYWORDS | st.just("a"), inner, max_size=3)
        | st.builds(
            lambda type_, rest: {"type": type_} | rest,
            st.sampled_from(["object", "array", "string", "integer"]),
            st.dictionaries(_KEYWORDS, inner, max_size=3),
        )
    ),
    max_leaves=10,
)


@given(st.dictionaries(_KEYWORDS, _SCHEMAS, min_size=1, max_size=4))
def test_a_malformed_schema_is_refused_and_nothing_else(compiler, schema):
    with suppress(GrammarError):
        compiler.compile(JsonSchema(schema))
