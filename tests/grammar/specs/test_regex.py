"""Regexes: what they accept, and what is refused."""

import re

import pytest
from exhaustive import examples
from hypothesis import given
from hypothesis import strategies as st
from made_up import REGEXES
from spoken import accepts, recogniser

from dlm.grammar import InvalidGrammarError, Regex
from dlm.grammar.regex import Terminal


@pytest.mark.parametrize(
    ("pattern", "taken", "refused"),
    [
        ("[a-z]+[0-9]", ["ab1"], ["ab1 ", "ab", ""]),
        ("b", ["b"], ["ab"]),
        ("(ac*)?", ["", "a", "acc"], ["c"]),
        ("(b{1,2}|b)", ["b", "bb"], ["bbb"]),
        ("(?!if$)[a-z]+", ["i", "ifx"], ["if"]),
        (r"(?i:é)\p{Lu}", ["ÉA", "éÉ"], ["éa"]),
        ("a{99}(b{99}){99}", ["a" * 99 + "b" * 9801], ["a" * 99 + "b" * 9800]),
        ("[a-z]{1,32767}", ["a", "z" * 32767], ["", "z" * 32768]),
        ("[a-z]{1,5000}|é[0-9]", ["a", "é1"], ["", "é"]),
        ("a\0b", ["a\0b"], ["ab"]),
    ],
)
def test_a_regex_matches_the_whole_text(pattern, taken, refused):
    reader = recogniser(Regex(pattern))
    assert [text for text in taken if not reader.accepts(text)] == []
    assert [text for text in refused if reader.accepts(text)] == []
    assert Regex(pattern).value(taken[0]) == taken[0]


@examples(30)
@given(REGEXES, st.data())
def test_made_up_regexes_match_what_python_does(pattern, data):
    reader = recogniser(Regex(pattern))
    fitting = data.draw(st.from_regex(re.compile(pattern, re.ASCII), fullmatch=True))
    if "\u2028" not in fitting and "\u2029" not in fitting and "\r" not in fitting:
        assert reader.accepts(fitting)
    text = data.draw(st.text("ab7é日本 .", max_size=6))
    assert reader.accepts(text) == bool(re.fullmatch(pattern, text, re.ASCII))


def test_a_long_count_is_counted():
    (node,) = Regex("[a-z]{1,32767}").rules(None).nodes.values()
    assert isinstance(node, Terminal)
    assert (len(node.automaton.edges), node.low, node.high) == (1, 1, 32767)


@pytest.mark.parametrize(
    ("pattern", "problem"),
    [
        ("", "regex: a pattern is text, not ''"),
        ("(a", "regex at character"),
        (r"(a)\1", "regex at character"),
        ("a{1,99999999999999999}", "regex at character"),
        ("(?>a)", "regex at character"),
    ],
)
def test_what_is_no_pattern_says_why_at_once(pattern, problem):
    with pytest.raises(InvalidGrammarError, match=problem):
        Regex(pattern)


@pytest.mark.parametrize("pattern", ["(?!a)a", "a(?=b)", "(?=a)[^a]{5,}", "a$b"])
def test_a_pattern_that_nothing_matches_is_refused(pattern):
    with pytest.raises(InvalidGrammarError, match="regex: nothing matches it"):
        accepts(Regex(pattern), "a")


def test_what_looks_around_takes_an_automaton_that_is_not_too_large():
    with pytest.raises(InvalidGrammarError, match="regex: too large: "):
        accepts(Regex("(?!b)(a{99}b?){99}"), "a")
