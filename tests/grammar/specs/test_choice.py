"""Choices are their options, word for word."""

import pytest
from exhaustive import examples
from hypothesis import given
from hypothesis import strategies as st
from spoken import recogniser

from dlm.grammar import Choice, InvalidGrammarError, InvalidValueError


@examples(20)
@given(st.lists(st.text(min_size=1), min_size=1, max_size=6, unique=True))
def test_a_choice_is_its_options_and_nothing_else(options):
    """Whatever they are made of: quotes, escapes, line breaks, NUL."""
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


def test_a_choice_refuses_what_it_does_not_hold():
    with pytest.raises(InvalidValueError, match="'c' is none of the options"):
        Choice(["a", "b"]).value("c")


def test_the_key_is_the_options():
    assert Choice(["a", "b"]).key == Choice(("a", "b")).key
    assert Choice(["a", "b"]).key != Choice(["b", "a"]).key


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ([], r"choice: a list of options, not \[\]"),
        ("ab", "choice: a list of options, not 'ab'"),
        (5, "choice: a list of options, not 5"),
        (["a", ""], "choice at option 1: '' is no text"),
        (["a", "\ud800"], "choice at option 1: .* is no text"),
        (["a", "b", "a"], "choice at option 2: 'a' is there twice"),
        (["a" * 3_000_000, "b" * 3_000_000], "choice: 6000000 characters are too many"),
    ],
)
def test_what_is_no_choice_says_why(options, problem):
    with pytest.raises(InvalidGrammarError, match=problem):
        Choice(options)
