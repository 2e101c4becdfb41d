"""Policies: constraints and sizes that an operator allows to clients."""

import json

import pytest
from doubles import Random
from hypothesis import given
from hypothesis import strategies as st
from values import V

from dlm import Choice, DlmError, Grammar, JsonSchema, Regex, RequestError
from dlm.grammar import JsonObject, Matcher, StructuralTag, Tools
from dlm.openai.constraint import constraint_of
from dlm.policy import Policy

PATTERN = {"type": "string", "pattern": "a+"}


def tools(count=1, schema=None):
    function = {"parameters": {"type": "object", "properties": {"a": schema or {}}}}
    return [
        {"type": "function", "function": function | {"name": f"find_{i}"}} for i in range(count)
    ]


DATA = [JsonSchema({"type": "integer"}), JsonObject(), Choice(["a", "b"]), Tools(tools())]
GRAMMARS = [
    Regex("a+"),
    Grammar('root ::= "a"'),
    StructuralTag({"type": "structural_tag", "format": {"type": "any_text"}}),
]


def refusal(policy, spec):
    """Return the message of the error that a policy raises for a spec, or None."""
    try:
        policy.check(spec)
    except RequestError as error:
        return str(error)
    return None


@pytest.mark.parametrize("spec", DATA + GRAMMARS, ids=lambda spec: spec.kind)
def test_a_library_serves_every_kind_of_spec_and_a_server_no_grammars_of_clients(spec):
    assert refusal(Policy(), spec) is None
    assert refusal(Policy.server(allow_client_grammars=True), spec) is None
    assert (refusal(Policy.server("data"), spec) is None) == (spec in DATA)
    assert "is not served here" in refusal(Policy.server(), spec)
    assert f"a {spec.kind} is not served here" in refusal(Policy(kinds=frozenset()), spec)
    flag = "data" if spec in DATA else "all"
    assert f"`--policy {flag}` serves it" in refusal(Policy(kinds=frozenset()), spec)
    assert "--policy" not in refusal(Policy(kinds=frozenset(), flags=False), spec)


@pytest.mark.parametrize(
    "schema",
    [
        PATTERN,
        {"properties": {"a": {"anyOf": [{"type": "null"}, PATTERN]}}},
        {"patternProperties": {"a+": True}},
        {"properties": {"pattern": PATTERN}},
        {"enum": [{"pattern": "x"}]},
        {"examples": [{"pattern": "TODO"}], "type": "object"},
    ],
)
def test_patterns_are_served_as_parts_of_schemas(schema):
    for policy in (Policy(), Policy.server("data")):
        for spec in (JsonSchema(schema), Tools(tools(schema=schema))):
            assert refusal(policy, spec) is None
        policy.admit(JsonSchema.kind, '{"pattern": "a"}')
    assert "a regex is not served here" in refusal(Policy.server("data"), Regex("a+"))


LONG = "What this parameter means, in a sentence or two of ordinary length. " * 8


def described(count, **more):
    """Return tools like those of an agent with several MCP servers."""
    properties = {f"p{i}": {"type": "string", "description": LONG, "title": LONG} for i in range(4)}
    schema = {
        "type": "object",
        "properties": properties,
        "required": ["p0"],
        "default": {"p0": LONG},
    }
    function = {"description": LONG, "parameters": schema, **more}
    return [
        {"type": "function", "function": {"name": f"server_{i % 6}__do_thing_{i}", **function}}
        for i in range(count)
    ]


def test_the_hundred_tools_of_an_agent_are_served_whatever_some_of_them_require(engine_of):
    """Five have keywords that no rules enforce, one a pattern, one distinct items: these are
    checked or enforced, and the other tools are served."""
    many = described(100)
    for place, more in [
        *((i, {"not": {"required": ["p1", "p2"]}, "if": {"minProperties": 2}}) for i in range(5)),
        (7, {"properties": {"p0": {"type": "string", "pattern": "^[A-Z]{2}-\\d{4}$"}}}),
        (8, {"properties": {"p0": {"type": "array", "uniqueItems": True}}}),
    ]:
        many[place]["function"]["parameters"] |= more
    body = {"messages": [{"role": "user", "content": "Go on."}], "tools": many}
    spec = constraint_of(body, Policy.server("data"))
    grammar = engine_of(Random(V, seed=1)).compile(spec).result()
    assert grammar.checked
    assert Matcher(grammar).shortest_completion() is not None


def test_texts_without_effect_on_the_grammar_do_not_count():
    many = described(128)
    assert len(json.dumps(many)) > 4000 * 128
    Policy.server("data").admit(Tools.kind, many)
    schema = {
        "$comment": LONG * 999,
        "examples": [[LONG] * 999],
        "properties": {"a": {"default": LONG}},
    }
    Policy.server("data").admit(JsonSchema.kind, schema)
    Policy.server("data").admit(JsonSchema.kind, json.dumps(schema))


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"description": {"enum": ["x" * 99]}}},
        {"properties": {"x" * 99: {"title": "a"}}},
        {"$defs": {"examples": {"const": {"title": "x" * 99}}}},
        {"anyOf": [{"pattern": "x" * 99}]},
        {"required": ["x" * 99]},
        {"dependentRequired": {"title": ["x" * 99]}},
        {"if": {"not": {"items": [{"patternProperties": {"x" * 99: True}}]}}},
    ],
)
def test_texts_of_the_grammar_count_at_any_depth(schema):
    policy = Policy(max_source_bytes=99)
    for kind, source in ((JsonSchema.kind, schema), (Tools.kind, tools(schema=schema))):
        Policy().admit(kind, source)
        with pytest.raises(
            RequestError, match=r"too large: [12]\d\d bytes of names, values and patterns"
        ):
            policy.admit(kind, source)


def test_a_refusal_states_the_size_the_limit_and_the_flag():
    schema = {"enum": ["x" * 10_000 for _ in range(20)]}
    with pytest.raises(RequestError) as raised:
        Policy().admit(JsonSchema.kind, schema)
    assert "200048 bytes of names, values and patterns, and up to 65536 are" in str(raised.value)
    assert "(--max-source-bytes)" in str(raised.value)


def nested(depth):
    schema = {"type": "integer"}
    for _ in range(depth):
        schema = {"items": schema}
    return schema


@pytest.mark.parametrize(
    ("limits", "fits", "too_large", "problem"),
    [
        ({"max_source_bytes": 4}, Regex("abcd"), Regex("abcde"), "5 bytes, and up to 4"),
        ({"max_source_bytes": 4}, Regex("aaé"), Regex("aééé"), "7 bytes"),
        ({"max_depth": 2}, Regex("((a))"), Regex("(((a)))"), "3 nested brackets, and up to 2"),
        ({"max_depth": 1}, Regex(r"\(\(\[[((({{{[](a)"), Regex(r"(a(b){2})"), "2 nested"),
        (
            {"max_depth": 1},
            Grammar('root ::= "((((" [(({{] (root)? # ((('),
            Grammar('root ::= (("a"))'),
            "2 nested brackets",
        ),
        (
            {"max_depth": 1},
            Grammar('start: "(((" /((b))/ (start)? // ((', "lark"),
            Grammar('start: (("a"))', "lark"),
            "2 nested brackets",
        ),
        ({"max_options": 2}, Choice(["a", "b"]), Choice(["a", "b", "c"]), "3 options"),
        ({"max_source_bytes": 12}, Choice(["abc"]), Choice(["abcdefghijk"]), "bytes"),
        ({"max_tools": 2}, Tools(tools(2)), Tools(tools(3)), "3 tools, and up to 2"),
        ({"max_depth": 4}, JsonSchema(nested(3)), JsonSchema(nested(4)), "5 levels"),
        ({"max_source_bytes": 40}, JsonSchema(nested(2)), JsonSchema(nested(9)), "bytes"),
    ],
)
def test_each_limit_allows_its_own_size_and_no_more(limits, fits, too_large, problem):
    policy = Policy(**limits)
    assert refusal(policy, fits) is None
    with pytest.raises(RequestError, match=problem):
        policy.check(too_large)
    assert refusal(Policy(), too_large) is None


def test_a_schema_that_is_too_deep_or_too_wide_is_refused_before_it_is_walked():
    """A walk of shared parts would take exponential time, and a cycle has no end."""
    shared: dict = {"type": "integer"}
    for _ in range(60):
        shared = {"anyOf": [shared, shared]}
    endless: dict = {}
    endless["items"] = endless
    for source in (shared, endless, "[" * 60_000, '{"a":' * 10_000 + "1" + "}" * 10_000):
        with pytest.raises(RequestError, match=r"too large|not JSON"):
            Policy(max_depth=200).admit(JsonSchema.kind, source)


@pytest.mark.parametrize("source", ["\ud800", ["a", "\ud800"], {"\ud800": 1}])
def test_a_lone_surrogate_is_refused(source):
    kind = Regex.kind if isinstance(source, str) else Choice.kind
    with pytest.raises(RequestError, match="a lone surrogate"):
        Policy().admit(kind, source)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=9) | st.just("pattern"), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(
    st.sampled_from(sorted(Policy().kinds)),
    _JSON,
    st.sampled_from([Policy(), Policy.server("data")]),
)
def test_any_json_is_admitted_or_refused(kind, source, policy):
    try:
        policy.admit(kind, source)
    except RequestError as error:
        assert str(error)  # noqa: PT017  # most sources are admitted


@pytest.mark.parametrize(
    ("limits", "problem"),
    [
        ({"max_depth": 0}, "max_depth must be at least 1, got 0"),
        ({"max_images": -1}, "max_images must be at least 0, got -1"),
        ({"compile_seconds": 0.0}, r"compile_seconds must be more than 0, got 0\.0"),
        ({"kinds": frozenset({"poem"})}, "kinds must be among JSON object, .*tools, got 'poem'"),
    ],
)
def test_impossible_limits_are_refused(limits, problem):
    with pytest.raises(DlmError, match=problem):
        Policy(**limits)
