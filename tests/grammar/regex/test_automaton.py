"""Automata, compared with Python's `re` over all short texts."""

import re
from itertools import pairwise, product

import pytest
from exhaustive import examples
from hypothesis import given
from hypothesis import strategies as st

from dlm.grammar.limits import at_most
from dlm.grammar.regex import (
    EMPTY,
    MOST_STATES,
    NOTHING,
    Alternation,
    Automaton,
    Characters,
    Concatenation,
    Literal,
    Node,
    Reference,
    Repetition,
    Spelling,
    Terminal,
    TooLargeError,
    alternation,
    any_of_length,
    bounded,
    concatenation,
    determinized,
)

TEXTS = ["".join(text) for n in range(5) for text in product("abé", repeat=n)]
LETTERS = Characters(((97, 98),))
COUNTS = [(0, None), (1, None), (0, 1), (2, 2), (0, 3), (1, 2), (2, None), (0, 0)]

# Patterns are tuples of which `node` makes nodes: beartype draws random numbers of its own.
PATTERNS = st.recursive(
    st.sampled_from(["", "a", "ba", "é", "[ab]", "[^b]"]),
    lambda inner: st.one_of(
        st.tuples(st.just("row"), inner, inner),
        st.tuples(st.just("either"), inner, inner),
        st.tuples(st.just("times"), inner, st.sampled_from(COUNTS)),
        st.tuples(st.just("terminal"), inner),
    ),
    max_leaves=6,
)


def node(pattern) -> Node:
    match pattern:
        case "[ab]":
            return LETTERS
        case "[^b]":
            return Characters(((0, 97), (99, 0xD7FF), (0xE000, 0x10FFFF)))
        case "row", *parts:
            return Concatenation(tuple(map(node, parts)))
        case "either", *options:
            return Alternation(tuple(map(node, options)))
        case "times", part, (low, high):
            return Repetition(node(part), low, high)
        case "terminal", part:
            return Terminal(automaton_of(part))
    return Literal(pattern)


def source(pattern) -> str:
    """Return the pattern in the notation of `re`."""
    match pattern:
        case "row", *parts:
            return "".join(map(source, parts))
        case "either", *options:
            return f"(?:{'|'.join(map(source, options))})"
        case "times", part, (low, high):
            return f"(?:{source(part)}){{{low},{'' if high is None else high}}}"
        case "terminal", part:
            return f"(?:{source(part)})"
    return pattern


def automaton_of(pattern) -> Automaton:
    return determinized(node(pattern))


def texts_of(automaton: Automaton) -> set[str]:
    return {text for text in TEXTS if automaton.accepts(text)}


def step(automaton: Automaton, state: int, character: str) -> int | None:
    point = ord(character)
    return next((to for low, high, to in automaton.edges[state] if low <= point <= high), None)


@given(PATTERNS)
def test_an_automaton_accepts_what_re_matches(pattern):
    matches = re.compile(source(pattern)).fullmatch
    assert texts_of(automaton_of(pattern)) == {text for text in TEXTS if matches(text)}


@examples(50)
@given(PATTERNS, PATTERNS)
def test_operations_on_automata_are_those_on_sets_of_texts(one, other):
    one, other = automaton_of(one), automaton_of(other)
    assert texts_of(one.union(other)) == texts_of(one) | texts_of(other)
    assert texts_of(one.intersection(other)) == texts_of(one) & texts_of(other)
    assert texts_of(one.difference(other)) == texts_of(one) - texts_of(other)
    assert texts_of(one.complement()) == set(TEXTS) - texts_of(one)


@examples(50)
@given(PATTERNS, PATTERNS)
def test_automata_of_the_same_texts_are_equal(one, other):
    """Checks identities of sets, each side of which is computed in another way."""
    one, other = automaton_of(one), automaton_of(other)
    assert one.complement().complement() == one
    assert one.union(other) == other.union(one)
    assert one.union(other) == determinized(alternation(Terminal(one), Terminal(other)))
    assert one.difference(other) == one.intersection(other.complement())
    assert one.intersection(other).complement() == one.complement().union(other.complement())
    assert hash(one.union(other)) == hash(other.union(one))
    assert one.union(one.complement()) == Automaton.ANY
    assert one.intersection(one.complement()) == Automaton.NONE


@given(PATTERNS)
def test_automata_are_minimal_and_their_edges_are_sorted(pattern):
    automaton = automaton_of(pattern)
    count = len(automaton.edges)
    differ = {
        (a, b)
        for a in range(count)
        for b in range(count)
        if (a in automaton.final) != (b in automaton.final)
    }
    for _ in range(count):
        for a, b, character in product(range(count), range(count), "abcé~\n"):
            one, other = (step(automaton, state, character) for state in (a, b))
            if (one is None) != (other is None) or (one, other) in differ:
                differ.add((a, b))
    assert all((a, b) in differ for a in range(count) for b in range(a))

    ends, seen = set(automaton.final), [0]
    for _ in range(count):
        ends |= {
            s for s, edges in enumerate(automaton.edges) if any(to in ends for *_, to in edges)
        }
    for state in seen:  # it grows meanwhile
        seen += dict.fromkeys(to for *_, to in automaton.edges[state] if to not in seen)
    assert ends == set(range(count))
    assert seen == list(range(count))
    for edges in automaton.edges:
        assert all(low <= high for low, high, _ in edges)
        assert all(a[1] + 1 < b[0] or (a[1] < b[0] and a[2] != b[2]) for a, b in pairwise(edges))


@given(st.lists(st.text(st.sampled_from("abé"), max_size=4)))
def test_an_automaton_of_words_accepts_and_lists_exactly_them(texts):
    automaton = Automaton.words(texts)
    assert texts_of(automaton) == set(texts)
    assert automaton == determinized(Alternation(tuple(map(Literal, texts))))
    assert automaton.is_finite
    assert automaton.words_up_to(len(set(texts))) == sorted(set(texts))
    if texts:
        assert automaton.words_up_to(len(set(texts)) - 1) is None


_WORDS = st.lists(st.text(st.sampled_from("ab`A\x00\ud7ff\ud800\ue000\U0010ffff"), max_size=4))


@examples(100)
@given(_WORDS)
def test_all_texts_but_some_words_are_the_complement_of_the_words(texts):
    others = Automaton.other_words(texts)
    assert others == Automaton.words(texts).complement()
    assert others.complement() == Automaton.words(texts)


def test_an_automaton_may_have_thousands_of_words():
    words = [f"{number * 7919:x}" for number in range(12_000)]
    automaton = Automaton.words(words)
    assert automaton.accepts(words[-1])
    assert not automaton.accepts("x")
    assert automaton.complement().accepts("x")
    assert not automaton.complement().accepts(words[77])
    assert automaton.intersection(Automaton.lengths(1, 1)).words_up_to(99) == ["0"]


def test_half_a_surrogate_pair_is_no_character():
    assert Automaton.words(["\ud800", "a"]) == Automaton.words(["a"])
    assert not Automaton.ANY.accepts("\udfff")
    assert Automaton.ANY.accepts("\0\U0010ffff")


@given(PATTERNS, st.integers(0, 6), st.integers(0, 6) | st.none())
def test_lengths_can_be_restricted(pattern, low, high):
    automaton = automaton_of(pattern)
    fits = {t for t in texts_of(automaton) if low <= len(t) <= (9 if high is None else high)}
    assert texts_of(automaton.intersection(Automaton.lengths(low, high))) == fits
    assert texts_of(determinized(Terminal(automaton, low, high))) == fits


@given(PATTERNS)
def test_the_shortest_text_is_accepted_and_no_shorter_one_is(pattern):
    automaton = automaton_of(pattern)
    shortest = automaton.shortest()
    assert (shortest is None) == automaton.is_empty
    if shortest is not None:
        assert automaton.accepts(shortest)
        assert not any(len(text) < len(shortest) for text in texts_of(automaton))


def test_the_shortest_text_has_letters_and_digits_if_possible():
    assert Automaton.lengths(3, None).shortest() == "aaa"
    assert determinized(Characters(((0, 9), (48, 57)))).shortest() == "0"


@given(PATTERNS)
def test_a_small_set_of_texts_can_be_listed(pattern):
    automaton = automaton_of(pattern)

    def count(state: int) -> int:
        ways = ((high - low + 1) * count(to) for low, high, to in automaton.edges[state])
        return (state in automaton.final) + sum(ways)

    words = automaton.words_up_to(40)
    assert (words is not None) == (automaton.is_finite and count(0) <= 40)
    if words is not None:
        assert Automaton.words(words) == automaton
        assert words == sorted(words)


def test_the_automata_of_no_text_of_any_text_and_of_the_empty_text():
    assert determinized(EMPTY) == Automaton.words([""]) == Automaton.lengths(0, 0)
    assert determinized(NOTHING) == Automaton.words([]) == Automaton.NONE == Automaton.lengths(3, 2)
    assert Automaton.NONE.complement() == Automaton.ANY == Automaton.lengths(0, None)
    assert Automaton.NONE.is_finite
    assert not Automaton.ANY.is_finite
    assert Automaton.NONE.shortest() is None
    assert Automaton.NONE.words_up_to(0) == []
    assert determinized(Concatenation((NOTHING, LETTERS))).is_empty


@pytest.mark.parametrize(
    "node",
    [
        Repetition(LETTERS, 5000, 5000),
        Repetition(Repetition(LETTERS, 1, 5000), 1, 5000),
        concatenation(Repetition(LETTERS), Literal("a"), Repetition(LETTERS, 13, 13)),
        Repetition(Repetition(Literal("a"), 0, 99), 10**15, 10**15),
        Terminal(Automaton.ANY, 0, 10**9),
        Repetition(concatenation(Repetition(Literal("a"), 0, 1), LETTERS), 3000),
    ],
)
def test_a_node_whose_automaton_would_be_too_large_is_refused(node):
    with pytest.raises(TooLargeError, match="over"):
        determinized(node)


def test_a_product_that_would_be_too_large_is_refused():
    primes = [determinized(Repetition(Literal("a" * prime))) for prime in (61, 67, 71)]
    several = primes[0].intersection(primes[1])
    assert len(several.edges) == 61 * 67 <= MOST_STATES
    with pytest.raises(TooLargeError):
        several.intersection(primes[2])
    with pytest.raises(TooLargeError):
        Automaton.lengths(0, 10**9)


def test_a_node_that_is_nested_too_deep_is_refused():
    node: Node = LETTERS
    for _ in range(5000):
        node = Concatenation((node, LETTERS))
    with pytest.raises(TooLargeError, match="nested"):
        determinized(node)


@pytest.mark.parametrize(
    "node", [Reference("rule"), Terminal(Automaton.ANY, 0, 9, Spelling.QUOTED)]
)
def test_references_and_spelled_terminals_are_no_parts_of_an_automaton(node):
    with pytest.raises(TypeError, match="no part of a pattern"):
        determinized(Concatenation((LETTERS, node)))


@pytest.mark.parametrize(
    "pattern",
    ["(ab)*", "(abc)*|(ab)*", "a(bbb)*", "(a{6})*|(a{10})*b?", "(a|bb)*c", "(a{7})*(b{3})?"],
)
def test_the_lengths_of_an_automaton_are_those_found_by_counting(pattern):
    automaton = bounded(pattern, whole=True)[0]
    lengths, states = set(), {0}
    for length in range(200):
        if states.intersection(automaton.final):
            lengths.add(length)
        states = {to for state in states for _, _, to in automaton.edges[state]}
    for low in range(60):
        for high in (None, low, low + 1, low + 4, low + 30):
            fits = (length >= low and (high is None or length <= high) for length in lengths)
            assert any_of_length(automaton, low, high) == any(fits), (low, high)


def test_lengths_of_a_billion_characters_are_known_at_once():
    automaton, even = bounded("(ab)*", whole=True)[0], 10**9
    assert any_of_length(automaton, even, even)
    assert not any_of_length(automaton, even + 1, even + 1)
    assert any_of_length(automaton, even + 1, even + 2)


def test_a_list_of_long_words_takes_a_step_for_each_state_at_most():
    words = ["".join(chr(97 + (i * j * j + j) % 17) for j in range(190)) for i in range(300)]
    with at_most(60_000):
        automaton = Automaton.words(words)
    assert len(automaton.edges) <= sum(map(len, words)) + 1
    assert all(map(automaton.accepts, words))
    assert not automaton.accepts(words[0][:-1])
    assert automaton == Automaton.words(words[:150]).union(Automaton.words(words[150:]))


@given(PATTERNS)
@examples(60)
def test_a_variety_is_a_number_of_texts_that_exist(pattern):
    automaton = determinized(node(pattern))
    count, _ = automaton.variety(0)
    texts = [text for text in TEXTS if "é" not in text and automaton.accepts(text)]
    assert count >= min(len(texts), 1000)  # there are other letters, too
    words = automaton.words_up_to(1000)
    assert words is None or count <= len(words)


def test_a_variety_is_that_of_texts_within_bounds():
    automaton = Automaton.words(["a", "bb", "ccc", "dddd", "dddde"])
    bounds = [(0, None), (0, 3), (2, 3), (4, 6), (6, None)]
    assert [automaton.variety(0, *each)[0] for each in bounds] == [5, 3, 2, 2, 0]
    assert Automaton.ANY.variety(0, 5)[0] > 1000
    assert Automaton.ANY.variety(0, 100)[0] == 0  # not counted


def test_the_variety_of_long_or_many_texts_is_not_counted():
    assert Automaton.words(["a" * 100]).variety(0)[0] == 0
    assert Automaton.words(["a" * 50]).variety(0)[0] == 1
    assert Automaton.ANY.variety(0)[0] > 1000
    assert Automaton.NONE.variety(0)[0] == 0
    wide = determinized(node("[acegikmoqsuwy02468]*[aei]" + "[acegikmoqsuwy02468]" * 6 + "z{50}"))
    assert len(wide.edges) > 100
    assert wide.variety(0)[1] <= 4096 + max(map(len, wide.edges))
