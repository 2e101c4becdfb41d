"""Automata of regexes: the same texts, each in one way."""

import re
from functools import reduce

import pytest
import xgrammar as xgr
from hypothesis import given, settings
from hypothesis import strategies as st

from dlm.grammar import InvalidGrammarError
from dlm.grammar.regex.automaton import Automaton, TooLargeError
from dlm.grammar.regex.pattern import parse

BYTES = xgr.GrammarCompiler(
    xgr.TokenizerInfo([bytes([i]) for i in range(256)] + [b""], stop_token_ids=[256]),
    cache_enabled=False,
)
PATTERNS = st.recursive(
    st.sampled_from(["a", "b", "ab", "é", ".", "[ab]", "[^a]", "[a-cé]", "(|a)"]),
    lambda inner: st.one_of(
        st.tuples(
            inner, st.sampled_from(["*", "+", "?", "{2}", "{0}", "{1,2}", "{0,3}", "{2,}"])
        ).map(lambda pair: f"(?:{pair[0]}){pair[1]}"),
        st.lists(inner, min_size=2, max_size=3).map("".join),
        st.lists(inner, min_size=2, max_size=3).map(lambda parts: f"({'|'.join(parts)})"),
    ),
    max_leaves=8,
)
TEXTS = st.text(st.sampled_from("abcé"), max_size=7)


def runs(automaton, text):
    """What the automaton makes of a text, and in how many ways."""
    states = [0]
    for character in text:
        point = ord(character)
        states = [
            to
            for state in states
            for to, ranges in automaton.edges[state].items()
            if any(low <= point <= high for low, high in ranges)
        ]
    return [state in automaton.final for state in states]


def ways_to_the_end(automaton):
    """The states that have one."""
    ends = set(automaton.final)
    for _ in automaton.edges:
        ends |= {state for state, to in enumerate(automaton.edges) if ends & to.keys()}
    return ends


def matcher(rules):
    return xgr.GrammarMatcher(BYTES.compile_grammar(xgr.Grammar.from_ebnf(rules)))


@given(PATTERNS, st.lists(TEXTS, min_size=6, max_size=12))
def test_it_takes_what_python_takes_and_its_rules_take_the_same(pattern, texts):
    automaton = Automaton.of(parse(pattern))
    state = matcher(automaton.ebnf("root"))
    for text in texts:
        taken = re.fullmatch(pattern, text) is not None
        found = runs(automaton, text)
        assert len(found) <= 1
        assert (found == [True]) == taken
        state.reset()
        assert (state.accept_string(text) and state.is_completed()) == taken


@given(PATTERNS)
def test_no_two_of_its_states_are_alike_and_each_has_a_way_to_the_end(pattern):
    """Told apart by a text, and found by walking back from the final ones."""
    automaton = Automaton.of(parse(pattern))
    count = len(automaton.edges)
    assert ways_to_the_end(automaton) == set(range(count))

    def step(state, character):
        found = [
            to
            for to, ranges in automaton.edges[state].items()
            if any(low <= ord(character) <= high for low, high in ranges)
        ]
        return found[0] if found else None

    differ = {
        (a, b)
        for a in range(count)
        for b in range(count)
        if (a in automaton.final) != (b in automaton.final)
    }
    for _ in range(count):
        for a in range(count):
            for b in range(count):
                for character in "abcé~\n":
                    one, other = step(a, character), step(b, character)
                    if (one is None) != (other is None) or (one, other) in differ:
                        differ.add((a, b))
    assert all((a, b) in differ for a in range(count) for b in range(count) if a != b)


@given(st.lists(PATTERNS, min_size=2, max_size=3), st.lists(TEXTS, min_size=6, max_size=12))
def test_what_several_match_is_what_each_does(patterns, texts):
    both = reduce(Automaton.both, [Automaton.of(parse(pattern)) for pattern in patterns])
    for text in texts:
        assert (runs(both, text) == [True]) == all(re.fullmatch(p, text) for p in patterns)
    assert ways_to_the_end(both) >= set(range(len(both.edges))) - {0}


@given(PATTERNS, st.integers(0, 9), st.integers(0, 9) | st.none(), st.lists(TEXTS, min_size=8))
def test_lengths_are_counted(pattern, low, high, texts):
    counted = Automaton.of(parse(pattern)).both(Automaton.of_length(low, high))
    for text in texts:
        fits = low <= len(text) <= (len(text) if high is None else high)
        taken = fits and re.fullmatch(pattern, text) is not None
        assert (runs(counted, text) == [True]) == taken


LOOKS = st.recursive(
    PATTERNS,
    lambda inner: st.one_of(
        st.tuples(st.sampled_from(["(?=", "(?!"]), inner, st.sampled_from([")", "$)"])).map(
            "".join
        ),
        st.lists(st.one_of(PATTERNS, inner), min_size=2, max_size=3).map("".join),
        st.lists(inner, min_size=2, max_size=3).map(lambda parts: f"({'|'.join(parts)})"),
        inner.map(lambda part: f"(b|{part}$)"),
    ),
    max_leaves=6,
)


@settings(max_examples=300)
@given(LOOKS, st.lists(TEXTS, min_size=12, max_size=20))
def test_it_looks_ahead_as_python_does(pattern, texts):
    try:
        automaton = Automaton.of(parse(pattern))
    except InvalidGrammarError as error:
        assert "`$` can only be at the end" in str(error)  # noqa: PT017
        return
    for text in texts:
        assert (runs(automaton, text) == [True]) == (re.fullmatch(pattern, text) is not None)


@given(PATTERNS, st.lists(TEXTS, min_size=6, max_size=12))
def test_the_opposite_takes_what_it_refuses(pattern, texts):
    automaton = Automaton.of(parse(pattern))
    for text in texts:
        assert (runs(automaton, text) == [True]) != (runs(automaton.opposite(), text) == [True])


def test_what_is_unwanted_is_unwanted_in_every_dialect():
    """Digits beyond ASCII are digits in Python; it finds an end in front of a last line break."""
    for pattern, refused in [
        (r"(?!\d)[^a]", "\u0663"),
        (r"(?!.)[^a]", "\u2028"),
        (r"(?!b$)[^a]*", "b\n"),
    ]:
        automaton = Automaton.of(parse(pattern))
        assert runs(automaton, refused) != [True]
        assert runs(automaton, "\n") == [True]


def test_lengths_beyond_counting():
    """They matter only where texts are as long, and there they are refused."""
    word, loop = (Automaton.of(parse(pattern)) for pattern in ("[a-z]{9}", "[a-z]*"))
    assert runs(word.both(Automaton.of_length(0, 10**9)), "a" * 9) == [True]
    assert not word.both(Automaton.of_length(10**9, None)).final
    assert not word.both(Automaton.of_length(9, 8)).final
    with pytest.raises(TooLargeError):
        loop.both(Automaton.of_length(0, 10**9))
    with pytest.raises(TooLargeError):
        loop.both(Automaton.of_length(10**9, None))


@pytest.mark.parametrize("pattern", ["(a*)*b", "(a|aa)+b", "((a?){9}a*)*b", "(a|b|ab)*b"])
def test_what_matches_in_many_ways_is_matched_in_one(pattern):
    """As a parser reads the pattern itself, this takes longer than anybody waits."""
    state = matcher(Automaton.of(parse(pattern)).ebnf("root"))
    assert state.accept_string("a" * 5000 + "b")
    assert state.is_completed()


@pytest.mark.parametrize("pattern", ["[ab]{5000}", "(a|b)*a(a|b){13}", "((a{99}){99}){99}"])
def test_what_would_be_too_large_is_not_made(pattern):
    with pytest.raises(TooLargeError):
        Automaton.of(parse(pattern))


def test_states_with_one_way_on_need_no_rule():
    assert Automaton.of(parse('"ab[0-9]c|x')).ebnf("r") == 'r ::= "\\"ab" [0-9] "c" | "x"'
    assert Automaton.of(parse("")).ebnf("r") == 'r ::= ""'


def test_characters_are_spelled_as_they_are_told_to_be():
    def spell(character):
        return {"a": "%a", "\n": "%0A"}.get(character, character)

    def rules(pattern):
        return Automaton.of(parse(pattern)).ebnf("r", spell)

    assert rules("bac") == 'r ::= "b%ac"'
    assert rules("[ab]") == 'r ::= ([b] | "%a")'
    assert rules("[b\n]") == "r ::= [b]"  # no long spelling without need
    assert rules("[a\n]") == 'r ::= "%a"'
    assert rules("\n") == 'r ::= "%0A"'
