"""Terminals byte by byte, compared with Python's `json` and with all short strings."""

import itertools
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trees import node_of, trees

from dlm.grammar import InvalidGrammarError
from dlm.grammar.parse import Lengths, LiteralScanner, Network, Scanner, lengths_of
from dlm.grammar.regex import (
    Automaton,
    Characters,
    Literal,
    Spelling,
    Terminal,
    automaton_of,
    determinized,
)
from dlm.grammar.rules import Rules

SURROGATES = (0xD800, 0xDFFF)
POINTS = st.integers(0, 0x10FFFF).filter(lambda p: not SURROGATES[0] <= p <= SURROGATES[1])
RANGES = st.lists(st.tuples(POINTS, POINTS).map(sorted).map(tuple), min_size=1, max_size=4)


def characters(ranges) -> Characters:
    points = sorted(ranges)
    merged = [list(points[0])]
    for low, high in points[1:]:
        if low <= merged[-1][1] + 1:
            merged[-1][1] = max(high, merged[-1][1])
        else:
            merged.append([low, high])
    return Characters(tuple(map(tuple, merged)))


def read(scanner, raw: bytes) -> int | None:
    """Return the state after `raw`."""
    state = scanner.start
    for byte in raw:
        state = next((to for a, b, to in scanner.moves(state) if a <= byte <= b), None)
        if state is None:
            return None
    return state


def accepts(scanner, raw: bytes) -> bool:
    state = read(scanner, raw)
    return state is not None and scanner.final[state]


def spellings(character: str) -> list[bytes]:
    """Return a character in UTF-8, and in each of JSON's escapes of it."""
    units = character.encode("utf-16-be").hex()
    parts = [units[i : i + 4] for i in range(0, len(units), 4)]
    escapes = ["".join(f"\\u{part}" for part in parts)]
    escapes += [escapes[0].upper().replace("U", "u")]
    short = {"\n": "n", "\t": "t", "\r": "r", "\b": "b", "\f": "f", '"': '"', "\\": "\\", "/": "/"}
    if character in short:
        escapes.append("\\" + short[character])
    raw = [character] if character >= " " and character not in '"\\' else []
    return [s.encode() for s in raw + escapes]


@given(RANGES, st.lists(POINTS, max_size=6))
def test_a_character_is_read_in_all_its_spellings_and_no_other_is_read(ranges, others):
    node = characters(ranges)
    quoted = Scanner(determinized(node), Spelling.QUOTED)
    raw = Scanner(determinized(node), Spelling.RAW)
    edges = [p for low, high in node.ranges for p in (low, high, low - 1, high + 1)]
    for point in {*edges, *others, 0x41, 0x22, 0x5C, 0x0A, 0x7F, 0x80, 0xFFFF, 0x10000}:
        if not 0 <= point <= 0x10FFFF or SURROGATES[0] <= point <= SURROGATES[1]:
            continue
        inside = any(low <= point <= high for low, high in node.ranges)
        assert accepts(raw, chr(point).encode()) == inside
        for spelling in spellings(chr(point)):
            assert json.loads(b'"%s"' % spelling) == chr(point)
            assert accepts(quoted, b'"%s"' % spelling) == inside


@given(st.binary(max_size=8))
def test_the_strings_that_are_read_are_those_that_json_reads(raw):
    scanner = Scanner(Automaton.ANY, Spelling.QUOTED)
    text = b'"' + raw + b'"'
    try:
        value = json.loads(text.decode())
        value.encode()
        fits = isinstance(value, str)
    except (ValueError, UnicodeError):
        fits = False
    assert accepts(scanner, text) == fits


@pytest.mark.parametrize(
    "text", [r'"\ud800"', r'"\udc00"', r'"\ud83da"', r'"\ud83d\n"', '"\\ud83d\\u0041"', '"a\tb"']
)
def test_half_a_surrogate_pair_and_raw_control_characters_are_refused(text):
    assert not accepts(Scanner(Automaton.ANY, Spelling.QUOTED), text.encode())
    assert accepts(Scanner(Automaton.ANY, Spelling.QUOTED), rb'"\ud83d\ude00"')


LEAVES = [Literal("a"), Literal('b"'), Characters(((97, 99),)), Characters(((0, 31),))]
TREES = trees(st.sampled_from(LEAVES), max_leaves=5)
BOUNDS = st.tuples(st.integers(0, 4), st.none() | st.integers(0, 6))


@given(TREES, BOUNDS)
def test_the_cost_is_that_of_the_shortest_text_between_the_bounds(node, bounds):
    """Compares with all texts of up to six characters."""
    automaton, (low, high) = determinized(node_of(node)), bounds
    scanner = Scanner(automaton, Spelling.QUOTED)
    texts = ("".join(t) for n in range(7) for t in itertools.product('abc"\n', repeat=n))
    fit = [
        len(json.dumps(text).encode())
        for text in texts
        if automaton.accepts(text) and low <= len(text) and (high is None or len(text) <= high)
    ]
    cost = scanner.cost(scanner.start, low, high)
    if high is not None:
        assert cost == min(fit, default=None)
    elif fit:
        assert cost is not None
        assert cost <= min(fit)
    if cost is not None:
        completion = scanner.completion(scanner.start, low, high)
        text = json.loads(completion)
        assert len(completion) == cost
        assert accepts(scanner, completion)
        assert low <= len(text)
        assert high is None or len(text) <= high


BEGUN = [b'"\xe2', b'"\xe2\x82', b'"\\', b'"\\u', b'"\\u00', b'"\\ud83', b'"\\ud83d\\', b'"ab']


@pytest.mark.parametrize("low", [0, 1, 5])
@pytest.mark.parametrize("begun", BEGUN)
def test_a_completion_may_begin_within_a_character(begun, low):
    scanner = Scanner(Automaton.ANY, Spelling.QUOTED)
    state = read(scanner, begun)
    completion = scanner.completion(state, low)
    assert len(completion) == scanner.cost(state, low)
    json.loads(begun + completion).encode()


def test_the_cost_of_a_billion_characters_is_known_at_once():
    scanner = Scanner(Automaton.ANY, Spelling.QUOTED)
    assert scanner.cost(scanner.start, 10**9, None) == 10**9 + 2
    assert scanner.cost(scanner.start, 10**9, 10**9) == 10**9 + 2


@given(data=st.data())
def test_shortest_texts_between_bounds_are_those_of_all_lengths(data):
    """Compares with Bellman's recursion, length by length."""
    letter = st.sampled_from("abé€")
    several = st.recursive(
        letter,
        lambda part: (
            st.tuples(part, part).map("(?:{0[0]}|{0[1]})".format)
            | st.tuples(part, part).map("".join)
            | st.tuples(part, st.sampled_from(["*", "+", "?", "{2}"])).map(
                "(?:{0[0]}){0[1]}".format
            )
        ),
        max_leaves=6,
    )
    automaton = automaton_of(data.draw(several), whole=True)

    def weigh(point):
        return len(chr(point).encode())

    exactly = [[0 if q in automaton.final else math.inf for q in range(len(automaton.edges))]]
    for _ in range(60):
        ways = [[weigh(low) + exactly[-1][to] for low, _, to in e] for e in automaton.edges]
        exactly.append([min(way, default=math.inf) for way in ways])
    lengths = Lengths(automaton, weigh)
    for _ in range(20):  # the tables grow meanwhile
        q = data.draw(st.integers(0, len(automaton.edges) - 1))
        low = data.draw(st.integers(-2, 30))
        high = data.draw(st.none() | st.integers(low - 2, low + 12))
        most = 60 if high is None else high
        wanted = min((exactly[n][q] for n in range(max(low, 0), most + 1)), default=math.inf)
        assert lengths.within(q, low, high) == (None if wanted == math.inf else wanted)
        if wanted < math.inf:
            text = [
                point for point, times in lengths.shortest_path(q, low, high) for _ in range(times)
            ]
            assert sum(map(weigh, text)) == wanted
            assert max(low, 0) <= len(text) <= most


@pytest.mark.parametrize(
    ("pattern", "low", "fewest", "only"),
    [
        (r"-|(\d\d)+", 10**9 + 1, 10**9 + 2, b"-"),
        (r"\*|(\w\w,)*\w\w", 10**9, 10**9 + 1, b"*"),
        ("x|(é)*", 9, 18, b"x"),
    ],
)
def test_costs_of_periodic_lengths_are_known_at_any_length(pattern, low, fewest, only):
    automaton = automaton_of(pattern, whole=True)
    scanner = Scanner(automaton, Spelling.RAW)
    assert scanner.cost(scanner.start, low) == fewest
    lengths_of(automaton, Spelling.RAW).check(low, None)
    assert scanner.cost(read(scanner, only), 1) is None  # nothing follows


def test_bounds_that_are_too_intricate_are_refused_at_once():
    rules = Rules("root")
    rules.nodes["root"] = Terminal(automaton_of("(é){2,}|(a){2,}", whole=True), 10**9)
    with pytest.raises(InvalidGrammarError, match="too intricate for a length"):
        Network(rules)


def test_a_literal_is_read_byte_by_byte():
    scanner = LiteralScanner("né".encode())
    assert accepts(scanner, "né".encode())
    assert not accepts(scanner, b"n")
    assert not accepts(scanner, "nén".encode())
    assert scanner.completion(1) == "é".encode()
