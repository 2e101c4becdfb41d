"""Structural tags and JSON objects: what they accept, and what is refused."""

import json
from contextlib import suppress

import pytest
import xgrammar as xgr
from hypothesis import given
from hypothesis import strategies as st

from dlm.grammar import Grammar, GrammarError, InvalidGrammarError, InvalidValueError
from dlm.grammar.kinds.json_object import JsonObject
from dlm.grammar.kinds.structural_tag import StructuralTag, token_macro

TURN, TURN_END = 105, 106
NUMBER = {"type": "json_schema", "json_schema": {"type": "integer"}}


def tag(**format_):
    return {"type": "structural_tag", "format": format_}


def older(schema, *triggers):
    structures = [{"begin": "<n>", "schema": schema, "end": "</n>"}]
    return {"type": "structural_tag", "structures": structures, "triggers": list(triggers)}


BETWEEN = tag(type="tag", begin="<n>", content=NUMBER, end="</n>")


def accepts(compiler, spec, text):
    matcher = xgr.GrammarMatcher(compiler.compile(spec).grammar)
    return matcher.accept_string(text) and matcher.is_completed()


@pytest.mark.parametrize("form", [BETWEEN, json.dumps(BETWEEN)])
def test_a_tag_holds_what_its_content_allows(compiler, form):
    assert accepts(compiler, StructuralTag(form), "<n>12</n>")
    assert not accepts(compiler, StructuralTag(form), "<n>twelve</n>")
    assert not accepts(compiler, StructuralTag(form), "12")


@pytest.mark.parametrize("schema", [{"type": "integer"}, '{"type": "integer"}'])
def test_the_older_form_lets_free_text_lead_to_tags(compiler, schema):
    spec = StructuralTag(older(schema, "<n"))
    assert accepts(compiler, spec, "It is <n>12</n>, or <n>13</n>.")
    assert not accepts(compiler, spec, "It is <n>twelve</n>.")


def test_json_in_a_tag_has_no_endless_whitespace(compiler):
    loose = {"type": "json_schema", "json_schema": {"type": "array"}}
    tight = loose | {"max_whitespace_cnt": 1}
    assert accepts(compiler, StructuralTag(tag(**loose)), "[" + " " * 8 + "1]")
    assert not accepts(compiler, StructuralTag(tag(**loose)), "[" + " " * 9 + "1]")
    assert not accepts(compiler, StructuralTag(tag(**tight)), "[  1]")


def test_the_compiler_remembers_equal_tags(compiler):
    one = compiler.compile(StructuralTag(BETWEEN))
    assert one is compiler.compile(StructuralTag(json.dumps(BETWEEN, indent=1)))
    assert one is not compiler.compile(StructuralTag(older({"type": "integer"}, "<n")))


@pytest.mark.parametrize(
    ("form", "problem"),
    [
        ("{", "structural tag at line 1 column 2: not JSON: "),
        ("[1]", r"structural tag: a tag is an object, not \[1\]"),
        ({}, "structural tag at /format: Field required"),
        (tag(type="poem"), "structural tag at /format: .*'poem' found.* expected"),
        (tag(type="regex"), "structural tag at /format/regex/pattern: Field required"),
        (tag(type="any_text", exclude=["a"]), "tag at /format: 'exclude' is unknown"),
        (BETWEEN | {"strict": True}, "structural tag at /: 'strict' is unknown"),
        (tag(type="const_string", value="a\0b"), "NUL characters cannot be asked for"),
        (tag(type="const_string", value="\ud800"), "not JSON data: .*surrogates"),
        (tag(type="repeat", min=float("nan")), "not JSON data: Out of range"),
        ('{"type": "structural_tag", "a": NaN}', "not JSON data: Out of range"),
        (older({}) | {"structures": 3}, "/structures: a list of tags, not 3"),
        (older({}) | {"structures": [{"begin": "a"}]}, "/structures/0: .*begin, schema and end"),
        (older("{", "<n"), "/structures/0/schema: not JSON"),
        (older({}) | {"triggers": None}, "/triggers: Input should be a valid list"),
        (
            tag(type="json_schema", json_schema={"items": {"type": "poem"}}),
            "structural tag at /format/json_schema/items/type: 'poem' is not valid",
        ),
        (older({}) | {"format": {}}, "'format' is unknown beside structures"),
    ],
)
def test_what_is_no_tag_says_where(form, problem):
    with pytest.raises(InvalidGrammarError, match=problem):
        StructuralTag(form)


def test_a_tag_may_escape_what_it_may_not_hold(compiler):
    assert accepts(compiler, StructuralTag(tag(type="regex", pattern=r"\u0041")), "A")
    assert accepts(compiler, StructuralTag(tag(type="const_string", value=r"\u0000")), r"\u0000")


def test_a_tag_too_deep_for_anyone_is_refused():
    form = '{"type": "sequence", "elements": [' * 50_000
    with pytest.raises(InvalidGrammarError, match="not JSON"):
        StructuralTag(form)


@pytest.mark.parametrize(
    "form",
    [
        {"type": "triggered_tags", "triggers": ["<m"], "tags": [BETWEEN["format"]]},
        {"type": "regex", "pattern": "(a"},
        {"type": "grammar", "grammar": "root ::= missing"},
        {"type": "grammar", "grammar": "é"},
        {"type": "sequence", "elements": []},
    ],
)
def test_a_tag_that_does_not_compile_says_so(compiler, form):
    with pytest.raises(InvalidGrammarError, match=r"^structural tag: \w") as raised:
        compiler.compile(StructuralTag(tag(**form)))
    assert ".cc" not in str(raised.value)


@pytest.mark.parametrize(
    "form",
    [
        {"type": "token", "token": TURN_END},
        {"type": "token", "token": "<turn|>"},
        {"type": "exclude_token", "exclude_tokens": [5]},
        {"type": "any_tokens"},
        {"type": "token_triggered_tags", "trigger_tokens": [TURN], "tags": []},
        {"type": "token_dispatch", "rules": [[TURN, {"type": "any_text"}]]},
    ],
)
def test_no_tag_names_tokens_however_deep(form):
    within = tag(
        type="sequence", elements=[{"type": "any_text"}, {"type": "star", "content": form}]
    )
    where = f"at /format/elements/1/content: {form['type']} names token ids"
    with pytest.raises(InvalidGrammarError, match=where):
        StructuralTag(within)


def test_no_tag_begins_or_ends_with_a_token():
    token = {"type": "token", "token": TURN_END}
    for end in ("begin", "end"):
        with pytest.raises(InvalidGrammarError, match=f"at /format/{end}: token names"):
            StructuralTag(tag(**BETWEEN["format"] | {end: token}))


def test_a_schema_in_a_tag_may_speak_of_tokens(compiler):
    """It is data, not a format: no token is named."""
    schema = {"const": {"type": "token", "token": 106}}
    form = tag(type="json_schema", json_schema=schema)
    assert accepts(compiler, StructuralTag(form), '{"type":"token","token":106}')


def test_a_grammar_within_a_tag_names_no_tokens_either(compiler):
    inner = {"type": "grammar", "grammar": f"root ::= Token({TURN_END})"}
    with pytest.raises(InvalidGrammarError, match=r"Token\(\.\.\.\) names token ids"):
        compiler.compile(StructuralTag(tag(**inner)))


@pytest.mark.parametrize(
    ("rules", "macro"),
    [
        ('root ::= "a" Token(700)', "Token"),
        ("root ::= ExcludeToken(7)", "ExcludeToken"),
        (f'root ::= TokenTagDispatch(({TURN}, x))\nx ::= "b"', "TokenTagDispatch"),
        (r'root ::= "\" Token(106)" ["(] [\]"Token(]', None),
        ('root ::= TagDispatch(("a", MyToken))\nMyToken ::= "b"', None),
    ],
)
def test_macros_over_tokens_are_told_from_text(rules, macro):
    assert token_macro(xgr.Grammar.from_ebnf(rules)) == macro


@pytest.mark.parametrize(
    ("rules", "syntax"),
    [
        (f'root ::= "a" Token({TURN_END}) "b"', "ebnf"),
        (f'root ::= "a" Token({TURN}) "b"', "ebnf"),
        (f'root ::= "a" (Token({TURN}, {TURN_END}) | "c") "b"', "ebnf"),
        ('root ::= "a" ExcludeToken(7) "b"', "ebnf"),
        (f'start: "a" <[{TURN}-{TURN_END}]> "b"', "lark"),
    ],
)
def test_a_grammar_that_names_a_control_token_cannot_have_it(compiler, vocabulary, rules, syntax):
    """Whether such a grammar is refused or only robbed of the token, it never is part of a text."""
    try:
        matcher = xgr.GrammarMatcher(compiler.compile(Grammar(rules, syntax)).grammar)
    except InvalidGrammarError:
        return
    bits = xgr.allocate_token_bitmask(1, len(vocabulary))
    assert matcher.accept_string("a")
    matcher.fill_next_token_bitmask(bits)
    words = bits[0].numpy().view("uint32")
    assert not any(words[token // 32] >> token % 32 & 1 for token in vocabulary.control)
    assert not any(matcher.fork().accept_token(token) for token in vocabulary.control)


def test_a_json_object_is_any_object_and_nothing_else(compiler):
    spec = JsonObject()
    for text in ("{}", '{"a": [1, {"b": null}]}'):
        assert accepts(compiler, spec, text)
        assert spec.value(text) == json.loads(text)
    for text in ("[]", "1", '"{}"', "{" + " " * 9 + "}"):
        assert not accepts(compiler, spec, text)
    with pytest.raises(InvalidValueError, match="does not fit"):
        spec.value("[]")
    with pytest.raises(InvalidGrammarError, match="max_whitespace is 0"):
        JsonObject(max_whitespace=0)


_WORDS = st.sampled_from(
    ["a", "<n>", "</n>", "(", "root ::= x", 'root ::= "x"', "", "\\", "é", "[b"]
)
_SCHEMAS = st.sampled_from([True, {}, {"type": "integer"}, {"type": 1}, {"$ref": "#/a"}, "x", None])
_TAG_FORMATS = st.recursive(
    st.builds(lambda v: {"type": "const_string", "value": v}, _WORDS)
    | st.builds(lambda v: {"type": "regex", "pattern": v}, _WORDS)
    | st.builds(lambda v: {"type": "grammar", "grammar": v}, _WORDS)
    | st.builds(lambda v: {"type": "json_schema", "json_schema": v}, _SCHEMAS)
    | st.builds(lambda v: {"type": "any_text", "excludes": v}, st.lists(_WORDS, max_size=2)),
    lambda inner: (
        st.builds(
            lambda kind, v: {"type": kind, "elements": v},
            st.sampled_from(["sequence", "or", "poem"]),
            st.lists(inner, max_size=3),
        )
        | st.builds(
            lambda kind, v: {"type": kind, "content": v},
            st.sampled_from(["optional", "star", "plus"]),
            inner,
        )
        | st.builds(
            lambda low, high, v: {"type": "repeat", "min": low, "max": high, "content": v},
            st.integers(-2, 3),
            st.integers(-2, 3),
            inner,
        )
        | st.builds(
            lambda begin, v, end: {"type": "tag", "begin": begin, "content": v, "end": end},
            _WORDS,
            inner,
            _WORDS | st.lists(_WORDS, max_size=2),
        )
        | st.builds(
            lambda trigger, rule, v: {
                "type": "dispatch",
                "rules": [[trigger, v]],
                "excludes": [rule],
            },
            _WORDS,
            _WORDS,
            inner,
        )
    ),
    max_leaves=5,
)


@given(_TAG_FORMATS)
def test_a_malformed_tag_is_a_grammar_error_and_nothing_else(compiler, form):
    with suppress(GrammarError):
        compiler.compile(StructuralTag(tag(**form)))


def test_a_schema_in_a_tag_is_enforced_to_the_letter_or_refused(compiler):
    """xgrammar forgets what is not unique, and lets line breaks into strings with a length."""
    items = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}
    content = {"type": "json_schema", "json_schema": {"properties": {"a": items}}}
    sequence = {"type": "sequence", "elements": [{"type": "const_string", "value": "x"}, content]}
    with pytest.raises(InvalidGrammarError, match="uniqueItems") as raised:
        StructuralTag({"type": "structural_tag", "format": sequence})
    assert raised.value.where == "/format/elements/1/json_schema/properties/a/uniqueItems"
    content = {"type": "json_schema", "json_schema": {"type": "string", "maxLength": 3}}
    bounded = StructuralTag(tag(**content))
    assert accepts(compiler, bounded, '"ab"')
    assert not accepts(compiler, bounded, '"a\n"')
