"""Strings of a schema that patterns and lengths describe."""

import json
import re

import jsonschema
import pytest
import xgrammar as xgr
from hypothesis import given, settings
from hypothesis import strategies as st
from sentences import compiled

from dlm.grammar import InvalidGrammarError, JsonSchema, StructuralTag
from dlm.grammar.schema.strings import Strings, spelled

LETTERS = 'ab"\\\n\té/'
PATTERNS = st.recursive(
    st.sampled_from(["a", "b", r"\\", '"', r"\n", "é", "/", ".", '[a"]', "[^a]", r"[\\b]", r"\S"]),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{1,2}", "{2,}"])).map(
            lambda pair: f"(?:{pair[0]}){pair[1]}"
        ),
        st.lists(inner, min_size=2, max_size=3).map("".join),
        st.lists(inner, min_size=2, max_size=3).map(lambda parts: f"({'|'.join(parts)})"),
    ),
    max_leaves=6,
)
ANCHORS = st.tuples(st.sampled_from(["", "^"]), st.sampled_from(["", "$"]))
TEXTS = st.text(st.sampled_from(LETTERS), max_size=6)


def string(**more):
    return JsonSchema({"type": "string"} | more)


def accepts(grammar, value):
    matcher = xgr.GrammarMatcher(grammar)
    text = json.dumps(value, ensure_ascii=False)
    return matcher.accept_string(text) and matcher.is_completed()


def meant(pattern, anchors, text):
    """What one anchor leaves open, a line break apart, as the dot does; without any, all of it."""
    before, behind = anchors
    opened = f"{'.*' * (behind > before)}(?:{pattern}){'.*' * (bool(before) and not behind)}"
    return re.fullmatch(opened, text) is not None


@settings(max_examples=150)
@given(
    parts=st.lists(st.tuples(PATTERNS, ANCHORS), min_size=1, max_size=2),
    low=st.integers(0, 3),
    high=st.integers(3, 6) | st.none(),
    texts=st.lists(TEXTS, min_size=12, max_size=24),
)
def test_a_string_matches_all_its_patterns_and_keeps_its_lengths(parts, low, high, texts):
    patterns = [f"{a}(?:{pattern}){b}" for pattern, (a, b) in parts]
    schema = {"type": "string", "allOf": [{"pattern": pattern} for pattern in patterns]}
    schema |= {"minLength": low} | ({} if high is None else {"maxLength": high})
    try:
        grammar = compiled(JsonSchema(schema))
    except InvalidGrammarError as error:
        assert "matches nothing of this length" in error.reason  # noqa: PT017
        grammar = None
    for text in texts:
        fits = low <= len(text) <= (len(text) if high is None else high)
        wanted = fits and all(meant(pattern, anchors, text) for pattern, anchors in parts)
        assert (grammar is not None and accepts(grammar, text)) == wanted
        if wanted:
            jsonschema.validate(text, schema)


@pytest.mark.parametrize(
    ("schema", "taken", "refused"),
    [
        ({"pattern": "^[a-z]+(-[a-z]+)*$", "maxLength": 63}, ["a-b", "a" * 63], ["-", "a" * 64]),
        ({"pattern": "^.{1,300}$", "minLength": 200}, ["é" * 200], ["é" * 199, "é" * 301]),
        ({"pattern": "^[a-z]{3,}$", "maxLength": 99}, ["abc", "a" * 99], ["ab", "a" * 100]),
        ({"pattern": "^([a-z]{1,255}|B)$"}, ["B", "a" * 255], ["BB", "a" * 256]),
        ({"pattern": r"^\S+$"}, ["a"], ["a b", "\n"]),
        ({"pattern": r"^[^\w]$"}, ["-", '"', "\\", "\t"], ["a"]),
        ({"pattern": '^"a"$'}, ['"a"'], ["a"]),
        ({"pattern": "^(ab)+$", "minLength": 3, "maxLength": 5}, ["abab"], ["ab"]),
        ({"allOf": [{"pattern": "^a"}, {"pattern": "b$"}]}, ["ab", "acb"], ["a", "ba", "b"]),
        ({"maxLength": 3}, ["", "abc"], ["abcd"]),
        ({"minLength": 2}, ['\n"', "abc"], ["\n"]),
        ({"minLength": 2, "maxLength": 99}, ['\\"', "\n" * 99], ["\n", "é" * 100]),
        ({"pattern": r"^\\d$"}, ["\\d"], ["1"]),
        ({"pattern": "^\x01$"}, ["\x01"], ["1"]),
        (
            {"pattern": r"^(?=.*[A-Z])(?=.*\d)(?!.*(\d)(\d)).{4,}$", "maxLength": 64},
            ["Abc1", "1--A"],
            ["abc1", "Abc", "Abc12", "A1", "A1" + "-" * 63],
        ),
        (
            {"pattern": r"^([0-9x]+\.[0-9x]+$|%VERSION%)"},
            ["1.x", "%VERSION%", "%VERSION%-2"],
            ["1.x-2", "1.x ", "x%VERSION%"],
        ),
        ({"pattern": "^(?!@@)[@a-z]+$"}, ["@a@@"], ["@@a"]),
        ({"pattern": r"^C:\\(\w+\\)*$"}, ["C:\\a\\b\\"], ["C:\\a"]),
    ],
)
def test_patterns_that_people_write(schema, taken, refused):
    grammar = compiled(string(**schema))
    assert [accepts(grammar, text) for text in taken] == [True] * len(taken)
    assert [accepts(grammar, text) for text in refused] == [False] * len(refused)


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"pattern": "^a{3}$", "maxLength": 2}, r"the pattern '\^a\{3\}\$' matches nothing of"),
        ({"pattern": "^(a|bb)*$", "maxLength": 9999}, "takes more than 4096 states"),
        ({"allOf": [{"pattern": "^a"}, {"pattern": "^b"}]}, r"'\^a' and '\^b' matches nothing"),
    ],
)
def test_what_cannot_be_written_is_told_when_it_is_compiled(schema, reason):
    """To find out takes too long for the one who asks."""
    spec = string(**schema)
    with pytest.raises(InvalidGrammarError, match=reason):
        compiled(spec)


def test_a_pattern_that_is_not_read_is_told_at_once_and_left_to_the_check():
    schema = {"properties": {"a": {"type": "string", "pattern": "^(?<!a)b$", "maxLength": 3}}}
    with pytest.raises(InvalidGrammarError, match=r"/properties/a/pattern: no look-behind"):
        JsonSchema(schema)
    grammar = compiled(JsonSchema(schema, unenforced="check"))
    assert accepts(grammar, {"a": "abc"})
    assert not accepts(grammar, {"a": "abcd"})


def test_no_text_is_taken_for_a_word():
    """A word stands for strings only where a pattern was."""
    word = Strings(("^a$",)).word
    for schema in ({"const": word}, {"enum": [word, 1]}, {"properties": {word: {}}}):
        rules = str(xgr.Grammar.from_json_schema(json.dumps(schema)))
        assert spelled(rules, 32) == (rules, 0)
    forged = "strings" + 32 * "0" + "5b5b5d"  # of another process, and malformed
    schema = {"properties": {"a": {"items": {"type": "string", "pattern": forged}}}}
    content = {"type": "json_schema", "style": "qwen_xml", "json_schema": schema}
    compiled(StructuralTag({"type": "structural_tag", "format": content}))
    grammar = compiled(string(pattern=f"^{word}$"))
    assert accepts(grammar, word)
    assert not accepts(grammar, "a")


def test_a_schema_in_a_tag_has_its_patterns_too():
    content = {"type": "json_schema", "json_schema": string(pattern='^"+$', maxLength=2).parsed}
    grammar = compiled(StructuralTag({"type": "structural_tag", "format": content}))
    assert [accepts(grammar, '"' * count) for count in range(4)] == [False, True, True, False]
