"""Structural tags: texts they accept, compared with xgrammar, and tags that are refused."""

import json
import math
import random
from contextlib import suppress

import pytest
import xgrammar as xgr
from ebnf import COMPILER, matches
from exhaustive import examples
from hypothesis import given
from hypothesis import strategies as st
from readers import misread
from spoken import accepts, recogniser

from dlm.grammar import GrammarError, InvalidGrammarError, StructuralTag

TURN, TURN_END = 105, 106
NUMBER = {"type": "json_schema", "json_schema": {"type": "integer"}}
ANY = {"type": "any_text"}
DIGITS = {"type": "regex", "pattern": "[0-9]+"}


def tag(**format_):
    return {"type": "structural_tag", "format": format_}


def older(schema, *triggers):
    structures = [{"begin": "<n>", "schema": schema, "end": "</n>"}]
    return {"type": "structural_tag", "structures": structures, "triggers": list(triggers)}


def between(begin, content, end):
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def const(value):
    return {"type": "const_string", "value": value}


BETWEEN = tag(**between("<n>", NUMBER, "</n>"))
A, B = between("<a>", DIGITS, "</a>"), between("<b>", ANY, ["</b>", "</a>"])


@pytest.mark.parametrize("form", [BETWEEN, json.dumps(BETWEEN)])
def test_a_tag_encloses_its_content(form):
    reader = recogniser(StructuralTag(form))
    assert misread(reader.accepts, ["<n>12</n>"], ["<n>twelve</n>", "12"]) == []


@pytest.mark.parametrize("schema", [{"type": "integer"}, '{"type": "integer"}'])
def test_the_older_form_allows_free_text_around_tags(schema):
    reader = recogniser(StructuralTag(older(schema, "<n")))
    taken, refused = ["It is <n>12</n>, or <n>13</n>."], ["It is <n>twelve</n>."]
    assert misread(reader.accepts, taken, refused) == []


def often(first, once, **more):
    return {"triggers": ["<a", "<b"], "tags": [A, B], "at_least_one": first,
            "stop_after_first": once, "type": "triggered_tags", **more}  # fmt: skip


@pytest.mark.parametrize(
    "form",
    [
        {"type": "sequence", "elements": [const("<a>"), DIGITS, const("</a>")]},
        {"type": "or", "elements": [A, B, const("x")]},
        {"type": "optional", "content": A},
        {"type": "star", "content": A},
        {"type": "plus", "content": A},
        {"type": "repeat", "min": 1, "max": 2, "content": A},
        {"type": "repeat", "min": 2, "max": -1, "content": const("x")},
        between("<a>", ANY, "</a>"),
        between("<a>", {"type": "any_text", "excludes": ["1", "</b>"]}, ["</a>", "</b>"]),
        between("<a>", {"type": "sequence", "elements": [ANY, const("x")]}, "</a>"),
        {"type": "any_text", "excludes": ["</a>"]},
        {"type": "any_text", "max_chars": 3},
        {"type": "any_text", "max_tokens": 0},
        often(False, False),
        often(True, False),
        often(False, True),
        often(True, True),
        often(False, False, excludes=["x"]),
        between("<n>", often(False, False), "</n>"),
        {"type": "tags_with_separator", "tags": [A, B], "separator": ","},
        {"type": "tags_with_separator", "tags": [A], "separator": "", "at_least_one": True},
        {"type": "tags_with_separator", "tags": [A, B], "separator": ",", "stop_after_first": True},
        {"type": "dispatch", "rules": [["<a>", DIGITS], ["<b>", const("x")]]},
        {"type": "dispatch", "rules": [["<a>", DIGITS]], "loop": False, "excludes": ["</b>"]},
        between("<b>", {"type": "dispatch", "rules": [["<a>", DIGITS]]}, "</b>"),
        {"type": "grammar", "grammar": 'root ::= "<a>" root "</a>" | x\nx ::= [0-9]{2}'},
    ],
)
def test_a_tag_accepts_the_texts_that_xgrammar_accepts(form):
    choose = random.Random(0)
    pieces = ["<a>", "</a>", "<b>", "</b>", "<n>", "</n>", "1", "23", "x", ",", "<", "é"]
    texts = ["", "xxx", "1x"]
    texts += ["".join(choose.choices(pieces, k=choose.randint(1, 7))) for _ in range(500)]
    texts += ["<a>1</a>", "<a>1</a>,<b>x</a>", "x<a>1</a>é<b></b>", "<n>x<a>1</a>é</n>"]
    texts += ["<a>12</a>"]
    theirs = matches(xgr.Grammar.from_structural_tag(tag(**form)), texts)
    assert matches(StructuralTag(tag(**form)).rules(None), texts) == theirs
    assert any(theirs)


def test_json_in_a_tag_has_bounded_white_space():
    loose = {"type": "json_schema", "json_schema": {"type": "array"}}
    tight = loose | {"max_whitespace_cnt": 1}
    reader = recogniser(StructuralTag(tag(**loose)))
    assert misread(reader.accepts, ["[" + " " * 8 + "1]"], ["[" + " " * 9 + "1]"]) == []
    assert not accepts(StructuralTag(tag(**tight)), "[  1]")


def test_tags_of_equal_content_have_equal_keys():
    one = StructuralTag(BETWEEN)
    assert one.key == StructuralTag(json.dumps(BETWEEN, indent=1)).key
    assert one.key != StructuralTag(older({"type": "integer"}, "<n")).key


_ARGUMENTS = {
    "type": "object",
    "properties": {
        "q": {"type": "string"},
        "n": {"type": "integer", "minimum": 3},
        "s": {"type": "string", "maxLength": 2},
        "o": {"anyOf": [{"enum": ["by date", 3]}, {"type": "null"}]},
        "x": {"type": "object", "properties": {"y": {"type": "string"}}},
    },
    "required": ["q"],
}


def element(key, value):
    return f"<parameter={key}>\n{value}\n</parameter>"


def test_arguments_in_markup_fit_their_schema():
    form = tag(type="json_schema", json_schema=_ARGUMENTS, style="qwen_xml")
    reader = recogniser(StructuralTag(form))
    q, n, null = element("q", 'a "b" <c>\né'), element("n", "3"), element("o", "null")
    o, x = element("o", "by date"), element("x", '{"y": "\\n"}')
    taken = [q, q + n, n + q, f"\n{q}\n {n}\n", q + o, q + x, q + null, q + n + null]
    refused = [
        "", n, q + q, n + q + n, q + element("n", "2"), q + element("n", "x"),
        q + element("s", "abc"), q + element("o", "by"),
        q + element("z", "1"), q + element("x", '{"y": "\n"}'), q[:-1],
    ]  # fmt: skip
    assert misread(reader.accepts, taken, refused) == []
    xgrammar = xgr.GrammarMatcher(COMPILER.compile_grammar(xgr.Grammar.from_structural_tag(form)))
    assert xgrammar.accept_string(q + n + null)


def glm_element(key, value):
    return f"<arg_key>{key}</arg_key><arg_value>{value}</arg_value>"


def test_arguments_in_glms_markup_fit_their_schema():
    form = tag(type="json_schema", json_schema=_ARGUMENTS, style="glm_xml")
    reader = recogniser(StructuralTag(form))
    q, n = glm_element("q", 'a "b" <c>\né'), glm_element("n", "3")
    x = glm_element("x", '{"y": "\\n"}')
    taken = [q, q + n, n + q, f"\n{q}\n {n}\n", q.replace("y><", "y>\n<"), q + x]
    refused = ["", n, q + q, q + glm_element("n", "2"), q + glm_element("z", "1"), element("q", "")]
    assert misread(reader.accepts, taken, refused) == []
    grammar = COMPILER.compile_grammar(xgr.Grammar.from_structural_tag(form))
    assert xgr.GrammarMatcher(grammar).accept_string(q + n)
    assert not xgr.GrammarMatcher(grammar).accept_string(element("q", ""))


@pytest.mark.parametrize(
    ("form", "problem"),
    [
        ("{", "structural tag at line 1 column 2: not JSON: "),
        ("[1]", r"structural tag: a tag must be an object, got \[1\]"),
        ({}, "structural tag at /type: type must be"),
        ({"type": "structural_tag"}, "structural tag at /: format is missing"),
        (tag(type="poem"), "at /format/type: type must be one of const.*, got 'poem'"),
        (tag(), "structural tag at /format/type: type must be one of .*, got None"),
        (tag(type="regex"), "structural tag at /format: pattern is missing"),
        (tag(type="any_text", exclude=["a"]), "tag at /format: 'exclude' is unknown"),
        (BETWEEN | {"strict": True}, "structural tag at /: 'strict' is unknown"),
        (tag(type="const_string", value="\ud800"), "a lone surrogate is not text"),
        (tag(type="repeat", min=math.nan, max=1, content=ANY), "/format/min: must be a number"),
        (tag(type="sequence", elements=[]), "/format/elements: must be a list that is not empty"),
        (tag(type="const_string", value=3), "/format/value: must be text, got 3"),
        (tag(type="repeat", min=True, max=2, content=ANY), "/format/min: must be a number from 0"),
        (tag(type="dispatch", rules=[["", ANY]]), "/format/rules/0/0: must be text that is not"),
        (tag(type="dispatch", rules=[["a"]]), "/format/rules/0: must be a list of a word and a"),
        (tag(type="tags_with_separator", tags=[ANY], separator=""), "/tags/0/type: must be a tag"),
        (older({}) | {"structures": 3}, "/structures: must be a list of tags .*, got 3"),
        (older({}) | {"structures": [{"begin": "a"}]}, "/structures/0: .*begin, schema and end"),
        (older("{", "<n"), "/structures/0/schema line 1 column 2: not JSON"),
        (older('{"const": "\\ud800"}', "<n"), "/structures/0/schema: a lone surrogate"),
        (older({}) | {"triggers": None}, "/format/triggers: must be a list"),
        (older({}) | {"format": {}}, "'format' is unknown beside structures"),
        (tag(**NUMBER | {"any_order": 1}), "/format/any_order: must be true or false"),
        (tag(**NUMBER | {"excludes": ["a"]}), "/format/excludes: what its strings exclude"),
        (tag(**NUMBER | {"style": "cohere_xml"}), "must be one of json, .*, got 'cohere_xml'"),
        (tag(**NUMBER | {"style": "minimax_xml"}),
         "/format/style: must be one of json, qwen_xml.*, got 'minimax_xml'"),
        (tag(**NUMBER | {"style": "poem"}), "/format/style: must be one of json.*, got 'poem'"),
        (tag(**NUMBER | {"style": []}), r"/format/style: must be one of json.*, got \[\]"),
        (tag(**ANY | {"max_tokens": 5}), "/format/max_tokens: tokens cannot be counted"),
    ],
)  # fmt: skip
def test_an_invalid_tag_is_refused_with_its_place(form, problem):
    with pytest.raises(InvalidGrammarError, match=problem):
        StructuralTag(form)


def test_a_tag_that_is_nested_too_deep_is_refused():
    with pytest.raises(InvalidGrammarError, match="not JSON"):
        StructuralTag('{"type": "sequence", "elements": [' * 50_000)
    form = ANY
    for _ in range(100):
        form = {"type": "sequence", "elements": [form]}
    with pytest.raises(InvalidGrammarError, match="nested more than 64 deep"):
        StructuralTag(tag(**form))


@pytest.mark.parametrize(
    ("form", "where", "reason"),
    [
        ({"type": "triggered_tags", "triggers": ["<m"], "tags": [BETWEEN["format"]]},
         "/format/tags/0", "must begin with one of the triggers, begins with 0 of them"),
        ({"type": "triggered_tags", "triggers": ["<", "<n"], "tags": [BETWEEN["format"]]},
         "/format/tags/0", "must begin with one of the triggers, begins with 2 of them"),
        ({"type": "regex", "pattern": "(a"}, "/format/pattern", "character"),
        ({"type": "regex", "pattern": "a$b"}, "/format/pattern", "nothing matches it"),
        ({"type": "grammar", "grammar": "root ::= missing"}, "/format/grammar",
         "line 1 column 10: there is no rule missing"),
        ({"type": "grammar", "grammar": f"root ::= Token({TURN_END})"}, "/format/grammar",
         "names tokens"),
        ({"type": "repeat", "min": 2, "max": 1, "content": ANY}, "/format", "2 to 1 times"),
        ({"type": "any_text", "excludes": ["a" * 5000]}, "/format", "too large: .*4,096"),
        ({"type": "json_schema", "json_schema": {"items": {"type": "poem"}}},
         "/format/json_schema/items/type", "poem"),
        ({"type": "json_schema", "json_schema": {"type": "array"}, "style": "qwen_xml"},
         "/format/json_schema", "no finite value fits"),
        ({"type": "json_schema", "json_schema": {"properties": {"a b": {}}}, "style": "qwen_xml"},
         "", "'a b' cannot be a name in this markup"),
    ],
)  # fmt: skip
def test_invalid_content_of_a_tag_is_refused_with_its_place(form, where, reason):
    with pytest.raises(InvalidGrammarError, match=reason) as raised:
        StructuralTag(tag(**form)).rules(None)
    assert raised.value.kind == "structural tag"
    assert raised.value.where == where


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
def test_a_tag_that_names_token_ids_at_any_depth_is_refused(form):
    within = tag(type="sequence", elements=[ANY, {"type": "star", "content": form}])
    where = f"at /format/elements/1/content: {form['type']} names token ids"
    with pytest.raises(InvalidGrammarError, match=where):
        StructuralTag(within)


def test_a_tag_that_begins_or_ends_with_a_token_is_refused():
    token = {"type": "token", "token": TURN_END}
    for end in ("begin", "end"):
        with pytest.raises(InvalidGrammarError, match=f"at /format/{end}: token names"):
            StructuralTag(tag(**BETWEEN["format"] | {end: token}))


def test_a_constant_in_a_tag_may_look_like_a_format_of_tokens():
    form = tag(type="json_schema", json_schema={"const": {"type": "token", "token": 106}})
    assert accepts(StructuralTag(form), '{"type":"token","token":106}')


def test_each_grammar_in_a_tag_has_its_own_rules():
    inner = [{"type": "grammar", "grammar": f'root ::= x\nx ::= "{c}"'} for c in "ab"]
    assert accepts(StructuralTag(tag(type="sequence", elements=inner)), "ab")


_WORDS = st.sampled_from(
    ["a", "<n>", "</n>", "(", "root ::= x", 'root ::= "x"', "", "\\", "é", "[b", "\0"]
)
_SCHEMAS = st.sampled_from([True, {}, {"type": "integer"}, {"type": 1}, {"$ref": "#/a"}, "x", None])
_COUNTS = st.integers(-2, 3)


def formats(*kinds, **fields):
    return st.fixed_dictionaries({"type": st.sampled_from(kinds), **fields})


_TAG_FORMATS = st.recursive(
    formats("const_string", value=_WORDS)
    | formats("regex", pattern=_WORDS)
    | formats("grammar", grammar=_WORDS)
    | formats("json_schema", json_schema=_SCHEMAS)
    | formats("any_text", excludes=st.lists(_WORDS, max_size=2)),
    lambda inner: (
        formats("sequence", "or", "poem", elements=st.lists(inner, max_size=3))
        | formats("optional", "star", "plus", content=inner)
        | formats("repeat", min=_COUNTS, max=_COUNTS, content=inner)
        | formats("tag", begin=_WORDS, content=inner, end=_WORDS | st.lists(_WORDS, max_size=2))
        | formats("dispatch", rules=st.tuples(_WORDS, inner).map(lambda rule: [[*rule]]),
                  excludes=st.lists(_WORDS, min_size=1, max_size=1))
    ),
    max_leaves=5,
)  # fmt: skip


@examples(80)
@given(_TAG_FORMATS)
def test_a_malformed_tag_raises_only_grammar_errors(form):
    with suppress(GrammarError):
        StructuralTag(tag(**form)).rules(None)


def test_a_schema_in_a_tag_is_enforced_exactly_or_refused():
    items = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}
    content = {"type": "json_schema", "json_schema": {"properties": {"a": items}}}
    sequence = {"type": "sequence", "elements": [const("x"), content]}
    with pytest.raises(InvalidGrammarError, match="its items may repeat") as raised:
        StructuralTag(tag(**sequence)).rules(None)
    assert raised.value.where == "/format/elements/1/json_schema/properties/a/uniqueItems"
    content = {"type": "json_schema", "json_schema": {"type": "string", "maxLength": 3}}
    reader = recogniser(StructuralTag(tag(**content)))
    assert misread(reader.accepts, ['"ab"'], ['"a\n"']) == []
