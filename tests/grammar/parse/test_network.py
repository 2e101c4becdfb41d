"""How far a grammar's states are from their end, against the texts that it accepts."""

import json
import re

import pytest
import xgrammar as xgr
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import judge

from dlm.grammar import Choice, Grammar, JsonSchema, Regex
from dlm.grammar.parse.network import Bytes, Call, Network, Skip, Tokens
from dlm.grammar.parse.network_reader import read_network
from dlm.grammar.parse.state import Places

LETTERS = ["a", "b", "c", "é", "!"]


def places_of(spec, vocabulary):
    return Places(read_network(spec.grammar(vocabulary)))


def place_behind(places, text):
    return places.after(places.start, 0, text) if text else places.start


def assert_costs_are_those_of(language, places):
    """Every beginning of every text is as far from its end as the nearest text makes it."""
    texts = {text.encode() for text in language}
    for beginning in {text[:i] for text in texts for i in range(len(text) + 1)}:
        nearest = min(len(text) - len(beginning) for text in texts if text.startswith(beginning))
        place = place_behind(places, beginning)
        assert place is not None
        assert place.cost == nearest
        said = b"".join(places.completion(place))
        assert len(said) == nearest
        assert beginning + said in texts


def small_regexes():
    """Patterns, each with all texts that it matches."""
    leaf = st.sampled_from(
        [("a", {"a"}), ("bc", {"bc"}), ("[ab]", {"a", "b"}), ("é", {"é"}), ("[éж]", {"é", "ж"})]
    )

    def several(pattern, texts, least, most):
        found, round_ = set(), {""}
        for count in range(most + 1):
            found |= round_ if count >= least else set()
            round_ = {one + other for one in round_ for other in texts}
        return f"({pattern}){{{least},{most}}}", found

    def grow(smaller):
        return st.one_of(
            st.tuples(smaller, smaller).map(
                lambda p: (f"({p[0][0]}|{p[1][0]})", p[0][1] | p[1][1])
            ),
            st.tuples(smaller, smaller).map(
                lambda p: (p[0][0] + p[1][0], {a + b for a in p[0][1] for b in p[1][1]})
            ),
            smaller.map(lambda p: (f"({p[0]})?", p[1] | {""})),
            st.tuples(smaller, st.integers(0, 1), st.integers(1, 2)).map(
                lambda p: several(p[0][0], p[0][1], p[1], p[2])
            ),
        )

    return st.recursive(leaf, grow, max_leaves=5).filter(lambda p: len(p[1]) <= 200)


@settings(max_examples=40)
@given(small_regexes())
def test_a_regex_is_as_far_from_its_end_as_its_texts_say(vocabulary, found):
    pattern, language = found
    assert_costs_are_those_of(language, places_of(Regex(pattern), vocabulary))


@settings(max_examples=40)
@given(st.sets(st.text('ab\u00e9\U0001f600"\\', min_size=1, max_size=6), min_size=1, max_size=6))
def test_a_choice_is_as_far_from_its_end_as_its_options_say(vocabulary, options):
    assert_costs_are_those_of(options, places_of(Choice(sorted(options)), vocabulary))


def steps_to_the_end(matcher, limit):
    """The fewest letters that complete a text, tried out; None: more than `limit` bytes."""
    if matcher.is_completed():
        return 0
    front, known = [(0, matcher)], limit + 1
    while front:
        size, at = front.pop(0)
        for letter in LETTERS:
            longer = size + len(letter.encode())
            then = at.fork()
            if longer < known and then.accept_string(letter):
                known = longer if then.is_completed() else known
                front.append((longer, then))
    return known if known <= limit else None


def check_against_trying(compiled, places, text):
    """At each letter of `text`, as far as the grammar takes it."""
    matcher, place = xgr.GrammarMatcher(compiled.grammar), places.start
    for letter in [*text, ""]:
        assert place is not None
        if place.cost is None or place.cost > 6:
            assert steps_to_the_end(matcher, 5) is None
        else:
            assert steps_to_the_end(matcher, place.cost) == place.cost
        taken = letter != "" and matcher.accept_string(letter)
        then = places.after(place, 0, letter.encode())
        assert (then is not None) == taken
        if not taken:
            break
        place = then


@pytest.mark.parametrize(
    ("rules", "text"),
    [
        ('root ::= root "c" "b" | "aa" | "b" root', "baacbcb"),
        ('root ::= x y x "b"?\nx ::= "" | "a" x\ny ::= x | y "c" | ""', "aaccaab"),
        ('root ::= root root | "a" | "b" root "c"', "abacbaca"),
        ('root ::= "a" root | "bb"', "aaabb"),
        ('root ::= "ab"{3,500} "!"', "ab" * 6 + "!"),
        ('root ::= x{2,} y{0,3}\nx ::= "ab" | "c"{2,4}\ny ::= "" | "b" x', "abcccbabbcc"),
        ('root ::= x "b"\nx ::= y "a" | "c"\ny ::= x "c" | root "!"', "cacab!ab"),
        ('root ::= ("a" | "é"{2,3})* "!"', "aéééa!"),
        ('root ::= "a" | "b" x | "c" root\nx ::= "a" x | x "b"', "cba"),
    ],
)
def test_the_shortest_way_is_what_trying_everything_finds(compiler, vocabulary, rules, text):
    """The last one has a rule that never ends: there is no way."""
    spec = Grammar(rules)
    check_against_trying(compiler.compile(spec), places_of(spec, vocabulary), text)


@st.composite
def small_grammars(draw):
    """Up to four rules that call each other in any way, nullable and left-recursive ones too.

    Each is a choice: xgrammar crashes on a rule that is nothing but a repetition of itself.
    """
    names = ["root", "x", "y", "z"][: draw(st.integers(1, 4))]
    often = st.sampled_from(["", "?", "*", "+", "{2}", "{2,}", "{0,3}", "{1,4}", "{3,5}"])
    words = st.sampled_from(['"a"', '"b"', '"ab"', '"é"', '"c"', '""', "[ab]", "[^ab]", "[a-cé-ж]"])
    calls = st.builds(str.__add__, st.sampled_from(names), often)

    def alternatives(parts):
        row = st.lists(parts, min_size=1, max_size=3).map(" ".join)
        return st.lists(row, min_size=1, max_size=3).map(" | ".join)

    groups = st.builds("({}){}".format, alternatives(words | calls), often)
    body = alternatives(words | calls | groups)
    ends = st.sampled_from([' | "a"', ' | "b" ""', ' | "c" root'])
    return "\n".join(f"{name} ::= {draw(body)}{draw(ends)}" for name in names)


@settings(max_examples=40)
@given(rules=small_grammars(), text=st.text("abcé", max_size=6))
def test_any_small_grammar_is_as_far_from_its_end_as_trying_says(compiler, vocabulary, rules, text):
    spec = Grammar(rules)
    check_against_trying(compiler.compile(spec), places_of(spec, vocabulary), text)


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        (JsonSchema({"type": "string", "minLength": 3}), b'"   "'),
        (JsonSchema({"type": "array", "items": {"type": "integer"}, "minItems": 2}), b"[0,0]"),
        (Regex("[^a]{2}x"), b"  x"),
        (Regex("[0-9]+[q-z]"), b"0q"),
    ],
)
def test_a_shortest_text_is_spelled_with_what_reads_well(vocabulary, spec, text):
    places = places_of(spec, vocabulary)
    said = places.completion(places.start)
    assert b"".join(part for part in said if isinstance(part, bytes)) == text


def test_a_named_token_counts_as_one_and_an_unnamed_one_is_no_way():
    """States 0 to 3: a token of 7 or 9, then any token but 7, beside a byte and a longer way."""
    edges = [
        [Tokens(frozenset({9, 7}), True, 1)],
        [Tokens(frozenset({7}), False, 3), Bytes(65, 70, 2)],
        [Skip(3)],
        [],
    ]
    network = Network(edges, start=[0], final={3}, root=0)
    assert network.cost == {0: 2, 1: 1, 2: 0, 3: 0}
    assert network.way(0) == [7, b"A"]


def test_a_counted_repetition_ends_as_early_as_it_may_and_not_earlier():
    """`"a"{3,5}`: it takes five rounds, and at least three."""
    network = Network([[Call(1, 1, 3, 5)], [], [Bytes(97, 97, 3)], []], [0, 2], {1, 3}, 0)
    places = Places(network)
    place, costs = places.start, []
    while place is not None:
        costs.append(place.cost)
        place = places.after(place, 0, b"a")
    assert costs == [3, 2, 1, 0, 0, 0]


@pytest.mark.parametrize("pattern", ["^[a-z]{1,255}x?$", "^(https?://)[a-z-]{1,300}$"])
def test_rules_that_xgrammar_makes_for_a_pattern_are_read(compiler, vocabulary, pattern):
    """Of long repetitions it does."""
    spec = JsonSchema({"type": "string", "pattern": pattern})
    for word in ("event", "a", "a" * 255, "a" * 256, "B", "BBB", "https://a-b", "https://", "x-"):
        text = json.dumps(word).encode()
        matcher, places = judge(spec, vocabulary), compiler.compile(spec).places
        at = places.after(places.start, 0, text)
        taken = matcher.accept_string(text) and matcher.is_completed()
        assert (at is not None and at.cost == 0) == taken == bool(re.search(pattern, word))
