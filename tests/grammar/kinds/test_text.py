"""Regexes, choices and grammars: what they accept, and what is refused."""

import pytest
import xgrammar as xgr
from hypothesis import given, settings
from hypothesis import strategies as st

from dlm.grammar import Choice, Grammar, InvalidGrammarError, InvalidValueError, Regex


def accepts(compiler, spec, text):
    matcher = xgr.GrammarMatcher(compiler.compile(spec).grammar)
    return matcher.accept_string(text) and matcher.is_completed()


def test_a_regex_matches_the_whole_text(compiler):
    assert accepts(compiler, Regex("[a-z]+[0-9]"), "ab1")
    assert not accepts(compiler, Regex("[a-z]+[0-9]"), "ab1 ")
    assert not accepts(compiler, Regex("b"), "ab")


@settings(max_examples=40)
@given(st.lists(st.text(min_size=1), min_size=1, max_size=6, unique=True))
def test_a_choice_is_its_options_and_nothing_else(compiler, options):
    """Whatever they are made of: quotes, escapes, line breaks."""
    options = [option for option in options if "\0" not in option] or ["a"]
    spec = Choice(options)
    for option in options:
        assert accepts(compiler, spec, option)
        assert spec.value(option) == option
        longer = option + "x"
        assert accepts(compiler, spec, longer) == (longer in options)


def test_a_choice_refuses_what_it_does_not_hold():
    with pytest.raises(InvalidValueError, match="'c' is none of the options"):
        Choice(["a", "b"]).value("c")


@pytest.mark.parametrize(
    "spec",
    [
        Grammar('root ::= "(" root ")" | "x"'),
        Grammar('start: "(" start ")" | "x"', syntax="lark"),
    ],
)
def test_a_grammar_may_nest(compiler, spec):
    assert accepts(compiler, spec, "((x))")
    assert not accepts(compiler, spec, "((x)")


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: Regex(""), "regex: a pattern is text, not ''"),
        (lambda: Regex("(a"), "regex: missing \\), unterminated subpattern at position 0"),
        (lambda: Regex("(?<=a)b"), "regex at character 1: no look-behind"),
        (lambda: Choice([]), r"choice: a list of options, not \[\]"),
        (lambda: Choice("ab"), "choice: a list of options, not 'ab'"),
        (lambda: Choice(["a", ""]), "choice at option 1: '' is no text"),
        (lambda: Choice(["a", "b", "a"]), "choice at option 2: 'a' is there twice"),
        (lambda: Grammar(" "), "grammar: rules are text, not ' '"),
    ],
)
def test_what_is_no_spec_says_why(make, problem):
    with pytest.raises(InvalidGrammarError, match=problem):
        make()


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        (Regex("(?!a)a"), "regex: nothing matches it"),
        (Regex("(a{99}){99}"), "regex: it takes more than 4096 states: repeat less often"),
        (Grammar('root ::= "a" missing'), 'grammar: .*Rule "missing" is not defined'),
        (Grammar("x ::= y"), "root rule"),
        (Grammar("start: nothing", syntax="lark"), "grammar: "),
    ],
)
def test_what_cannot_be_compiled_says_why(compiler, spec, reason):
    with pytest.raises(InvalidGrammarError, match=reason) as raised:
        compiler.compile(spec)
    assert ".cc" not in str(raised.value)


def test_the_compiler_remembers_what_means_the_same(compiler):
    assert compiler.compile(Choice(["a", "b"])) is compiler.compile(Choice(("a", "b")))
    assert compiler.compile(Regex("a")) is not compiler.compile(Grammar('root ::= "a"'))


@pytest.mark.parametrize("rule", ["x ::= x{2}", "x ::= x{2,}", "x ::= y{0,2}\ny ::= x", "x ::= x"])
def test_a_rule_that_only_repeats_itself_is_refused_and_does_not_kill_the_process(compiler, rule):
    with pytest.raises(InvalidGrammarError, match=r"rule \w: it only repeats itself"):
        compiler.compile(Grammar(f'root ::= "a"\n{rule}'))


def test_a_grammar_cannot_name_tokens(compiler):
    with pytest.raises(InvalidGrammarError, match="names tokens: a grammar is of text"):
        compiler.compile(Grammar('root ::= "a" Token(106)'))
