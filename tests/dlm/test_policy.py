"""What an operator lets clients ask for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlm import Choice, DlmError, Grammar, JsonSchema, Regex, RequestError
from dlm.grammar.kinds.json_object import JsonObject
from dlm.grammar.kinds.structural_tag import StructuralTag
from dlm.grammar.kinds.tools import Tools
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


def refused(policy, spec):
    try:
        policy.check(spec)
    except RequestError as error:
        return str(error)
    return None


@pytest.mark.parametrize("spec", DATA + GRAMMARS, ids=lambda spec: spec.kind)
def test_a_library_serves_every_kind_and_a_server_no_grammar_of_a_client(spec):
    assert refused(Policy(), spec) is None
    assert refused(Policy.server(allow_client_grammars=True), spec) is None
    assert (refused(Policy.server("data"), spec) is None) == (spec in DATA)
    assert "is not served here" in refused(Policy.server(), spec)
    assert f"a {spec.kind} is not served here" in refused(Policy(kinds=frozenset()), spec)


@pytest.mark.parametrize(
    "schema",
    [
        PATTERN,
        {"properties": {"a": {"anyOf": [{"type": "null"}, PATTERN]}}},
        {"patternProperties": {"a+": True}},
        {"properties": {"pattern": PATTERN}},
    ],
)
def test_no_regex_comes_in_by_way_of_a_schema(schema):
    problem = "regexes are not served here, and this .* has a pattern"
    for spec in (JsonSchema(schema), Tools(tools(schema=schema))):
        assert refused(Policy(), spec) is None
        with pytest.raises(RequestError, match=problem):
            Policy.server("data").check(spec)
    with pytest.raises(RequestError, match=problem):
        Policy.server("data").admit(JsonSchema.kind, '{"pattern": "a"}')


def test_a_property_may_be_named_like_a_regex():
    schema = {"properties": {"pattern": {"type": "string"}}, "required": ["pattern"]}
    assert refused(Policy.server("data"), JsonSchema(schema)) is None


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
def test_each_limit_lets_through_what_it_says(limits, fits, too_large, problem):
    policy = Policy(**limits)
    assert refused(policy, fits) is None
    with pytest.raises(RequestError, match=problem):
        policy.check(too_large)
    assert refused(Policy(), too_large) is None


def test_what_is_too_deep_or_too_wide_is_refused_before_it_is_walked():
    """A schema whose parts are shared would take forever to walk, and one without an end too."""
    shared: dict = {"type": "integer"}
    for _ in range(60):
        shared = {"anyOf": [shared, shared]}
    endless: dict = {}
    endless["items"] = endless
    for source in (shared, endless, "[" * 60_000, '{"a":' * 10_000 + "1" + "}" * 10_000):
        with pytest.raises(RequestError, match=r"too large|not JSON"):
            Policy(max_depth=200).admit(JsonSchema.kind, source)


@pytest.mark.parametrize("source", ["\ud800", ["a", "\ud800"], {"\ud800": 1}])
def test_what_is_no_text_is_refused(source):
    kind = Regex.kind if isinstance(source, str) else Choice.kind
    with pytest.raises(RequestError, match="half a surrogate pair"):
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
def test_whatever_a_client_sends_is_admitted_or_refused(kind, source, policy):
    try:
        policy.admit(kind, source)
    except RequestError as error:
        assert str(error)  # noqa: PT017  # most sources are admitted


@pytest.mark.parametrize(
    ("limits", "problem"),
    [
        ({"max_depth": 0}, "max_depth is 0: it takes at least 1"),
        ({"compile_seconds": 0.0}, r"compile_seconds is 0\.0: it takes more than 0"),
        ({"kinds": frozenset({"poem"})}, "kinds holds 'poem': it takes JSON object, .*tools"),
    ],
)
def test_a_policy_that_cannot_be_kept_says_why(limits, problem):
    with pytest.raises(DlmError, match=problem):
        Policy(**limits)
