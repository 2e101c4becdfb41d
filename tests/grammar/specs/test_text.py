"""Specs of text: context-free grammars, choices and regexes."""

import re

import pytest
from exhaustive import examples
from hypothesis import given
from hypothesis import strategies as st
from made_up import REGEXES
from readers import misread
from spoken import accepts, recogniser

from dlm.grammar import Choice, Grammar, InvalidGrammarError, InvalidValueError, Regex


@pytest.mark.parametrize(
    "spec",
    [
        Grammar('root ::= "(" root ")" | "x"'),
        Grammar('start: "(" start ")" | "x"', syntax="lark"),
    ],
)
def test_a_grammar_may_be_recursive(spec):
    assert misread(recogniser(spec).accepts, ["((x))"], ["((x)"]) == []
    assert spec.value("((x))") == "((x))"


def test_a_schema_in_a_grammar_is_enforced_exactly():
    schema = '{"type": "object", "properties": {"a": {"maxLength": 2}}, "required": ["a"]}'
    reader = recogniser(Grammar(f'start: "x" %json {schema} /b?/', "lark"))
    refused = ['x{"a": "abc"}', 'x{"a": "a\n"}']
    assert misread(reader.accepts, ['x{"a": "\\u00e9!"}'], refused) == []


def test_a_schema_that_cannot_be_enforced_is_refused_with_its_place():
    schema = '{"type": "array", "items": {"type": "string"}, "uniqueItems": true}'
    with pytest.raises(InvalidGrammarError, match="%json at /uniqueItems") as raised:
        Grammar(f"start: %json {schema}", "lark").rules(None)
    assert raised.value.where == "line 1 column 8"


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: Grammar(" "), "grammar: text must be rules as text, got ' '"),
        (lambda: Grammar("start: nothing", "lark").rules(None), "no rule nothing"),
        (
            lambda: Grammar("start: /a$b/", "lark").rules(None),
            "line 1 column 8: in this regex, nothing",
        ),
        (
            lambda: Grammar('start: %json {"const": "\\ud800"}', "lark").rules(None),
            "line 1 column 8: %json must have JSON after it",
        ),
        (lambda: Grammar('root ::= x\nx ::= "a" x').rules(None), "no finite text fits"),
    ],
)
def test_an_invalid_grammar_is_refused_with_the_reason(make, problem):
    with pytest.raises(InvalidGrammarError, match=problem):
        make()


def test_the_key_of_a_grammar_depends_on_its_notation():
    assert Grammar("root ::= x").key != Grammar("root ::= x", "lark").key


@examples(20)
@given(st.lists(st.text(min_size=1), min_size=1, max_size=6, unique=True))
def test_a_choice_is_its_options_and_nothing_else(options):
    """Options may contain quotes, escapes, line breaks and NUL."""
    spec = Choice(options)
    reader = recogniser(spec)
    for option in options:
        assert reader.accepts(option)
        assert spec.value(option) == option
        assert reader.accepts(option + "x") == (option + "x" in options)
        assert reader.accepts(option[:-1]) == (option[:-1] in options)


def test_thousands_of_words_are_one_terminal():
    words = [f"word {i}" for i in range(9000)]
    rules = Choice(words).rules(None)
    (node,) = rules.nodes.values()
    assert node.automaton.accepts("word 8999")
    assert not node.automaton.accepts("word 9000")


def test_a_text_that_is_no_option_of_a_choice_is_refused():
    with pytest.raises(InvalidValueError, match="'c' is none of the options"):
        Choice(["a", "b"]).value("c")


def test_the_key_of_a_choice_is_its_options():
    assert Choice(["a", "b"]).key == Choice(("a", "b")).key
    assert Choice(["a", "b"]).key != Choice(["b", "a"]).key


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ([], "choice: options must not be empty"),
        ("ab", "choice: options must be a list of texts, an Enum or a Literal, got 'ab'"),
        (5, "choice: options must be a list of texts, an Enum or a Literal, got 5"),
        (["a", ""], "choice at option 1: an option must be text that is not empty, got ''"),
        (["a", "\ud800"], "choice at option 1: an option must be text"),
        (["a", "b", "a"], "choice at option 2: 'a' is there twice"),
        (
            ["a" * 3_000_000, "b" * 3_000_000],
            "choice: options must have at most 4194304 characters together, got 6000000",
        ),
    ],
)
def test_an_invalid_choice_is_refused_with_the_reason(options, problem):
    with pytest.raises(InvalidGrammarError, match=problem):
        Choice(options)


@pytest.mark.parametrize(
    ("pattern", "taken", "refused"),
    [
        ("[a-z]+[0-9]", ["ab1"], ["ab1 ", "ab", ""]),
        ("b", ["b"], ["ab"]),
        ("a{99}(b{99}){99}", ["a" * 99 + "b" * 9801], ["a" * 99 + "b" * 9800]),
        ("[a-z]{1,32767}", ["a", "z" * 32767], ["", "z" * 32768]),
        ("[a-z]{1,5000}|é[0-9]", ["a", "é1"], ["", "é"]),
        ("a\0b", ["a\0b"], ["ab"]),
    ],
)
def test_a_regex_matches_the_whole_text(pattern, taken, refused):
    reader = recogniser(Regex(pattern))
    assert misread(reader.accepts, taken, refused) == []
    assert Regex(pattern).value(taken[0]) == taken[0]


@examples(30)
@given(REGEXES, st.data())
def test_random_regexes_match_the_texts_that_python_matches(pattern, data):
    reader = recogniser(Regex(pattern))
    fitting = data.draw(st.from_regex(re.compile(pattern, re.ASCII), fullmatch=True))
    if "\u2028" not in fitting and "\u2029" not in fitting and "\r" not in fitting:
        assert reader.accepts(fitting)
    text = data.draw(st.text("ab7é日本 .", max_size=6))
    assert reader.accepts(text) == bool(re.fullmatch(pattern, text, re.ASCII))


@pytest.mark.parametrize(
    ("pattern", "problem"),
    [
        ("", "regex: pattern must be text that is not empty, got ''"),
        ("(a", "regex at character"),
        ("^" * 1000, "regex: nested too deeply"),
        ("a{,}", "regex at character 1: `{` repeats nothing"),
        ("[^]a]", "regex at character 2: a first `]` ends a class in ECMAScript, not in Python"),
        ("[]a]", "regex at character 1: a first `]` ends a class in ECMAScript, not in Python"),
    ],
)
def test_an_invalid_pattern_is_refused_at_once_with_the_reason(pattern, problem):
    with pytest.raises(InvalidGrammarError, match=problem):
        Regex(pattern)


@pytest.mark.parametrize("pattern", ["(?!a)a", "a(?=b)", "(?=a)[^a]{5,}", "a$b"])
def test_a_pattern_that_nothing_matches_is_refused(pattern):
    with pytest.raises(InvalidGrammarError, match="regex: nothing matches it"):
        accepts(Regex(pattern), "a")


def test_a_pattern_with_a_lookahead_and_too_large_an_automaton_is_refused():
    with pytest.raises(InvalidGrammarError, match="regex: too large: "):
        accepts(Regex("(?!bb)(a{99}b?){99}"), "a")
