"""Token sets of any text without a few, compared with a full walk over tokens in every spelling."""

import itertools
import json
import random

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dlm.grammar.errors import Unfinished
from dlm.grammar.json_escapes import SHORT, spellings
from dlm.grammar.limits import Meter, size_of
from dlm.grammar.masks import TokenSet, Trie, WalkTable, tokens_in
from dlm.grammar.parse import Terminals
from dlm.grammar.parse.branches import UNBOUNDED
from dlm.grammar.parse.exceptions import Exceptions
from dlm.grammar.regex import Automaton, Spelling, Terminal, automaton_of
from tests.support.exhaustive import examples

NAMES = st.lists(st.text('ab"\\/\n\x01\x7fé日😀🙁\uffff\ue000'), max_size=6)
_MOST_STATES = 120  # of a scanner, whose sets are compared


def others(names):
    """Return the automaton of all texts but `names`."""
    return Automaton.words(names).complement()


def without(pattern):
    """Return the automaton of all texts that do not match a pattern."""
    return automaton_of(pattern, True).complement()


def spelled(rng, text):
    """Return a JSON string of `text`, each character in one of its spellings."""
    characters = []
    for character in text:
        bytes_ = rng.choice(spellings(ord(character)))
        characters.append(bytes(rng.choice(choices) for choices in bytes_))
    return b'"' + b"".join(characters) + b'"'


def pieces_of(names, seed):
    """Return tokens that are parts of strings like `names`, with what may stand around them."""
    rng, pieces = random.Random(seed), {bytes([byte]) for byte in b'ab"\\u0dD\xff'}
    pieces |= {rb'"\u003', rb"\u003", rb'{"\u'}
    for _ in range(60):
        string = spelled(rng, rng.choice([*names, "a", "ab\n😀"]))
        text = rng.choice((b"{", b", ", b"", b"a")) + string + rng.choice((b": ", b"", b"\\"))
        begin = rng.randrange(len(text))
        pieces |= {text[begin : rng.randint(begin + 1, len(text))], text[begin:]}
    return sorted(pieces)


def members(token_set):
    tokens = token_set.tokens
    numbers = tokens_in(tokens) if tokens.dtype == np.uint32 else tokens
    return sorted(numbers.tolist()), sorted(token_set.ends.tolist())


def reachable(scanner):
    states = [scanner.start]
    for state in states:  # `states` grows in the loop
        if len(states) >= _MOST_STATES:
            break
        states += {to for _, _, to in scanner.moves(state)} - {*states}
    return states


def assert_as_walked(automaton, pieces):
    """Compare the sets of an automaton's states with those of a walk that shares nothing."""
    trie = Trie(pieces)
    shared, alone = Terminals(trie, len(pieces)), Terminals(trie, len(pieces))
    shared.share_any_text()
    scanner = shared.scanner(Terminal(automaton, 0, None, Spelling.QUOTED))
    sharing, walked = shared.tokens(scanner), alone.tokens(scanner)
    for state in reachable(scanner):
        sets = [terminal.sets(state, UNBOUNDED, Meter()) for terminal in (sharing, walked)]
        assert members(sets[0]) == members(sets[1])
    inner = np.flatnonzero(trie.children).astype(np.int32)
    for nodes in (inner[:1], inner, inner[::3]):
        sets = [terminal.below(nodes, Meter()) for terminal in (sharing, walked)]
        assert members(sets[0]) == members(sets[1])


@given(names=NAMES, seed=st.integers(0, 1000))
@example(names=[], seed=0)
@example(names=["", "a", "ab", "aba", 'a"', "a\\"], seed=1)
@example(names=["😀", "😁", "🙁", "\U0010ffff", "\U00010000"], seed=2)
@example(names=["name" * 20, "name" * 20 + "d", "nàme"], seed=3)
@examples(100, deadline=None)
def test_sets_of_all_texts_but_some_names_are_those_of_a_walk(names, seed):
    automaton = others(names)
    assert Exceptions.of(automaton) is not None
    assert_as_walked(automaton, pieces_of(names, seed))


@pytest.mark.parametrize(
    "pattern",
    [
        "x-[\\s\\S]*",
        "(?:x-|y)[\\s\\S]*",
        "[0-9]+",
        "[0-;][\\s\\S]*",
        "[0-?][\\s\\S]*",
        "[A-z]*",
        "é[😀-🙏]?",
    ],
)
def test_sets_of_texts_that_do_not_match_a_pattern_are_those_of_a_walk(pattern):
    names = ["x-a", "y", "0", "7:", "?", "é😀", "A@", "\\", "é", "Z_z"]
    assert_as_walked(without(pattern), pieces_of(names, 4))


@pytest.mark.parametrize("character", 'a"\\/\n\x01\x7fé日😀')
def test_each_spelling_of_a_character_is_known(character):
    in_bytes = [[*itertools.product(*spelling)] for spelling in spellings(ord(character))]
    texts = [bytes(text) for texts in in_bytes for text in texts]
    assert len({*texts}) == len(texts)
    assert {json.loads(b'"%s"' % text) for text in texts} == {character}
    plain = character not in '"\\' and character >= " "
    assert len(in_bytes) == 1 + plain + (ord(character) in SHORT)
    letters = sum(map(str.isalpha, character.encode("utf-16-be").hex()))
    assert len(in_bytes[-1]) == 2**letters


@pytest.mark.parametrize(
    "automaton",
    [
        Automaton.words(["a"]),  # takes no text after another
        without("[a-z]+"),  # half of the trie
        without("[ab]{12}"),  # more beginnings than states
        without("[0-?][\\s\\S]*"),  # all that begins with `\\u003`
    ],
)
def test_texts_with_too_many_exceptions_have_none_to_search_for(automaton):
    assert Exceptions.of(automaton) is None


def test_the_memory_of_exceptions_is_counted_by_range_of_characters():
    few, many = (Exceptions.of(without(pattern)) for pattern in ("[ab]c", "(?:é|[acegikmoqsu])c"))
    assert many.nbytes - few.nbytes > 10 * 100
    assert many.nbytes > size_of(vars(many))


@pytest.fixture
def other_keys():
    """The tokens of a key that is none of 200 names, and its scanner."""
    names = [f"{word}_{i}" for i in range(40) for word in ("name", "né", "日本", "a b", "\n")]
    pieces = pieces_of([*names[:10], "Qé"], 5)
    terminals = Terminals(Trie(pieces), len(pieces))
    terminals.share_any_text()
    scanner = terminals.scanner(Terminal(others(names), 0, None, Spelling.QUOTED))
    return terminals.tokens(scanner), scanner


def test_no_table_is_read_for_texts_with_few_exceptions(other_keys, monkeypatch):
    terminal, scanner = other_keys
    monkeypatch.delattr(WalkTable, "read")
    for state in reachable(scanner):
        if scanner.boundary[state] or state == scanner.start:
            assert members(terminal.sets(state, UNBOUNDED, Meter()))[0]


def test_a_set_without_exceptions_shares_the_memory_of_any_text(other_keys):
    terminal, scanner = other_keys
    state = scanner.start
    for byte in b'"Q':
        state = next(to for low, high, to in scanner.moves(state) if low <= byte <= high)
    token_set = terminal.sets(state, UNBOUNDED, Meter())
    assert len(members(token_set)[0]) > 10
    assert token_set.nbytes == 0


def test_the_search_for_exceptions_is_counted(other_keys):
    terminal, scanner = other_keys
    meter = Meter()
    terminal.sets(scanner.start, UNBOUNDED, meter)
    begun = meter.spent
    terminal.sets(scanner.moves(scanner.start)[0][2], UNBOUNDED, meter)
    assert meter.spent > begun + 10
    terminal.forget()
    with meter.limited(0), pytest.raises(Unfinished):
        terminal.sets(scanner.start, UNBOUNDED, meter)


def test_the_search_for_spellings_that_no_token_has_is_counted():
    trie, ideographs = Trie([b"\\"]), [chr(0x4E00 + 2 * i) for i in range(1000)]
    nodes, base = np.zeros(1, np.int32), TokenSet(*2 * [np.zeros(0, np.int32)])
    meter = Meter()
    Exceptions.of(others(ideographs)).token_set(base, nodes, 0, trie, 1, meter)
    assert meter.spent >= len(ideographs) // 10
