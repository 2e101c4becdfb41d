"""Assertions about one neighbouring character, and counts over characters that also follow them."""

import re
from itertools import product

import pytest
from exhaustive import examples
from hypothesis import given
from hypothesis import strategies as st

from dlm.grammar import InvalidGrammarError
from dlm.grammar.limits import TooMuchEffortError, at_most
from dlm.grammar.regex import automaton_of, determinized, has_assertions, read_regex, without_edges

ASSERTIONS = [r"\b", r"\B", "^", "$", "(?=a)", "(?!a)", "(?<=a)", "(?<!é)", "(?=[^a])"]
PATTERNS = st.recursive(
    st.sampled_from(["", "a", "é", "-", "[a-]", ".", r"\w", r"\W", *ASSERTIONS]),
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda pair: f"(?:{'|'.join(pair)})"),
        st.tuples(inner, st.sampled_from(["*", "?", "{2}", "{0,2}", "{1,3}", "{2,}"])).map(
            lambda pair: f"(?:{pair[0]}){pair[1]}"
        ),
    ),
    max_leaves=9,
)


@examples(300)
@given(PATTERNS)
def test_a_pattern_without_assertions_matches_the_same_texts(pattern):
    node = read_regex(pattern)
    assert determinized(without_edges(node)) == determinized(node)


@pytest.mark.parametrize(
    "pattern",
    [
        r"\bfoo\b",
        r".*\bfoo\b.*",
        r"(a|b\b)-?(\bc|d)",
        r"a{2,300}\b[a-]{1,300}",
        r"\b\w+\b( \b\w+\b)",
        r"(?=a)[ab]{1,9}(?<=b)",
        r"(^a|-)b($|-)",
        r"\B-\B",
        r"a(?!b)c?",
    ],
)
def test_assertions_outside_of_repetitions_become_other_nodes(pattern):
    assert has_assertions(read_regex(pattern))
    assert not has_assertions(without_edges(read_regex(pattern)))


def test_many_assertions_take_bounded_work():
    node = read_regex(r"(\b|\Ba)" * 40)
    assert without_edges(node) == node


ATOMS = ["a", "é", "-", ".", r"\w", r"\W", r"[\w\W]", r"[^\W]", r"[\W-]", r"[^\w-]", r"\b", r"\B"]


@examples(300)
@given(st.lists(st.sampled_from(ATOMS), min_size=1, max_size=6))
def test_letters_beyond_ascii_are_read_as_all_engines_agree(atoms):
    no_edge = r"(?:(?<=\w)(?=\w)|(?<!\w)(?!\w)(?:(?<=[\s\S])|(?=[\s\S])))"
    pattern = "".join(atoms)
    engines = [re.compile(pattern.replace(r"\B", no_edge), flag) for flag in (re.ASCII, re.UNICODE)]
    automaton = automaton_of(pattern, True)
    for text in map(
        "".join, product("aé-", repeat=sum(len(a) != 2 or a[1] in "wW" for a in atoms))
    ):
        assert automaton.accepts(text) == all(engine.fullmatch(text) for engine in engines)


@pytest.mark.parametrize(
    ("pattern", "letters", "longest"),
    [
        (r"[a.]{1,4}\.a{1,2}(\.|$)[a.]*", "a.", 9),
        (r"[a.]{1,4}\.[a.]{1,3}", "a.", 9),
        (r"[ab]{0,5}a[ab]{0,3}", "ab", 10),
        (r"(ab?){1,4}a[ab]{2,3}b*", "ab", 10),
        (r"(a|ab){2,4}(ba?){0,3}", "ab", 10),
        (r"(a.)?[a.]{1,4}\.[a]{1,2}\b[a.]*", "a.-", 7),
    ],
)
def test_a_count_over_what_follows_matches_what_re_matches(pattern, letters, longest):
    automaton = automaton_of(pattern, True)
    for size in range(longest + 1):
        for text in map("".join, product(letters, repeat=size)):
            assert automaton.accepts(text) == bool(re.fullmatch(pattern, text, re.ASCII)), text


@pytest.mark.parametrize(
    ("pattern", "states"),
    [
        (r"[a-z.]{1,256}\.[a-z]{1,6}[a-z.]*", 600),
        (r"(?:www\.)?[a-z.]{1,256}\.[a-z()]{1,6}\b[a-z.()]*", 2100),
        (r"[ab]{0,100}a[ab]{0,20}", 2100),
    ],
)
def test_a_count_over_what_follows_takes_few_states_and_little_effort(pattern, states):
    with at_most(60_000):
        assert len(automaton_of(pattern, True).edges) < states


def test_an_automaton_of_many_ranges_is_refused_before_it_fills_the_memory():
    with pytest.raises(InvalidGrammarError, match="over 600,000 edges"):
        automaton_of(r"[a-z.]{1,256}\.[a-z]{1,6}\b.*", True)
    with pytest.raises(TooMuchEffortError), at_most(100):
        automaton_of(r"[a-z]{1,250}\.[a-z]{1,61}", True)


COUNTED = st.recursive(
    st.sampled_from(["a", "b", "[ab]", "[ab.]", r"\."]),
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda pair: f"(?:{'|'.join(pair)})"),
        st.tuples(inner, st.sampled_from(["*", "{1,4}", "{0,3}", "{2,5}", "{3}"])).map(
            lambda pair: f"(?:{pair[0]}){pair[1]}"
        ),
    ),
    max_leaves=7,
)
SHORT = ["".join(text) for size in range(7) for text in product("ab.", repeat=size)]


@examples(150)
@given(COUNTED)
def test_random_counts_match_what_re_matches(pattern):
    accepts = automaton_of(pattern, True).accepts
    assert [t for t in SHORT if accepts(t)] == [t for t in SHORT if re.fullmatch(pattern, t)]
