"""Token sets within bounds of length: made from those without bounds where counts are enough."""

from itertools import product

import numpy as np
import pytest

from dlm.grammar.limits import Meter
from dlm.grammar.masks import Trie, WalkTable, tokens_in
from dlm.grammar.parse import Terminals
from dlm.grammar.regex import Spelling, Terminal, automaton_of

PATTERNS = (
    "[\\s\\S]*", "[\\s\\S]+", '(?:a|"|é|\\\\)*', "/.*", ".*a.*", "(?:aa|b)*", "a?b?", "a+",
    "[^a]{2}.*",  # a line, perhaps after the end of another one
)  # fmt: skip
# Tokens with escapes, and with halves of characters and of surrogate pairs.
PIECES = (
    b"\\n", b'b\\n"', b"a\\\\", b"\\ud83d", b"\\ud83d\\ude00a", b"\\u00e9b", b"\\u2028c",
    b"a\xc3", b"\xa9b",
)  # fmt: skip


@pytest.fixture(scope="module")
def trie(vocabulary):
    return Trie([*vocabulary.pieces, *PIECES])


@pytest.mark.parametrize("spelling", Spelling)
@pytest.mark.parametrize("pattern", PATTERNS)
def test_bounded_sets_are_those_of_a_walk(vocabulary, trie, pattern, spelling):
    shared, alone = (Terminals(trie, len(vocabulary) + len(PIECES)) for _ in range(2))
    shared.share_any_text()  # the walks of `alone` know no counts of characters
    scanner = shared.scanner(Terminal(automaton_of(pattern, True), 0, None, spelling))
    terminal, walked, meter = shared.tokens(scanner), alone.tokens(scanner), Meter()
    states = [scanner.start]
    for state in states:  # `states` grows in the loop
        states += {to for _, _, to in scanner.moves(state)} - {*states}
        for low, high in product((-1, 0, 1, 2, 3, 6, 40), (0, 1, 2, 5, 200, None)):
            if scanner.cost(state, low, high) is None:
                continue
            bounds = terminal.clamped(state, (low, high), meter)
            far = (low, 999 if high is None else high)  # no bounds that are read without a walk
            token_sets = terminal.sets(state, bounds, meter), walked.sets(state, far, meter)
            ends, tokens = zip(*((s.ends, {*members(s)}) for s in token_sets), strict=True)
            assert np.sort(ends[0]).tolist() == np.sort(ends[1]).tolist(), (state, low, high)
            assert tokens[0] == tokens[1], (state, low, high)


def members(token_set):
    packed = token_set.tokens.dtype == np.uint32
    return (tokens_in(token_set.tokens) if packed else token_set.tokens).tolist()


@pytest.mark.parametrize(
    ("pattern", "bounds"), [("[\\s\\S]*", (7, 9)), (".*@.*", (5, 254)), ("/.*", (2, None))]
)
def test_bounds_take_no_walk_if_texts_of_all_lengths_may_follow(
    vocabulary, pattern, bounds, monkeypatch
):
    terminals = Terminals(vocabulary.trie, len(vocabulary))
    terminals.share_any_text()
    scanner = terminals.scanner(Terminal(automaton_of(pattern, True), 0, None, Spelling.QUOTED))
    terminal, meter = terminals.tokens(scanner), Meter()
    monkeypatch.setattr(WalkTable, "walk", None)
    for state in (scanner.start, scanner.moves(scanner.start)[0][2]):
        clamped = terminal.clamped(state, bounds, meter)
        assert len(terminal.sets(state, clamped, meter).tokens)


def test_many_bounds_share_a_set(vocabulary):
    terminals = Terminals(vocabulary.trie, len(vocabulary))
    terminals.share_any_text()
    scanner = terminals.scanner(Terminal(automaton_of(".*@.*", True), 0, None, Spelling.QUOTED))
    terminal = terminals.tokens(scanner)
    bounds = {terminal.clamped(scanner.start, (low, 5000), Meter()) for low in range(1000)}
    assert len(bounds) <= len(vocabulary.trie.levels)
