"""Tokens of literals: a search along the trie finds what a walk by a table of moves does."""

import random

import numpy as np
import pytest

from dlm.grammar.limits import Meter
from dlm.grammar.masks import tokens_in
from dlm.grammar.masks.trie import _FEW
from dlm.grammar.parse import Terminals
from dlm.grammar.parse.branches import UNBOUNDED
from dlm.grammar.regex import Automaton, Spelling, Terminal

TEXTS = ('"', '":', "name", '"name"', ", ", "}", "é", "日本", "\n", "zqxj", " ", '"}')


def tokens_of(token_set):
    tokens = token_set.tokens
    return sorted((tokens_in(tokens) if tokens.dtype == np.uint32 else tokens).tolist())


@pytest.fixture(scope="module")
def pair_of(vocabulary):
    """Return a function: the tokens of a literal, and those of an automaton of the same text."""
    terminals, kept = Terminals(vocabulary.trie, len(vocabulary)), []

    def pair(text):
        automaton = Terminal(Automaton.words([text]), 0, None, Spelling.RAW)
        scanners = [terminals.scanner(each) for each in (text.encode(), automaton)]
        kept.append(scanners)  # `Terminals` forgets what is not in use
        return [terminals.tokens(scanner) for scanner in scanners]

    return pair


@pytest.mark.parametrize("text", TEXTS)
def test_tokens_from_the_start_of_a_literal(pair_of, text):
    literal, walked = (each.sets(each.start, UNBOUNDED, Meter()) for each in pair_of(text))
    assert tokens_of(literal) == tokens_of(walked)
    assert literal.ends.tolist() == walked.ends.tolist()


@pytest.mark.parametrize("count", [1, _FEW, 20 * _FEW])
@pytest.mark.parametrize("text", TEXTS)
def test_tokens_of_a_literal_below_other_tokens(pair_of, vocabulary, text, count):
    trie = vocabulary.trie
    inner = np.flatnonzero(trie.children).tolist()
    some = random.Random(count).sample(inner, min(count, len(inner)))
    nodes = np.array(sorted({0, *some}), np.int32)
    literal, walked = (each.below(nodes, Meter()) for each in pair_of(text))
    assert tokens_of(literal) == tokens_of(walked)
    assert sorted(literal.ends.tolist()) == sorted(walked.ends.tolist())
    if text in '": ':
        assert len(tokens_of(literal)) > 0


def test_the_search_below_many_nodes_is_counted(pair_of, vocabulary):
    nodes = np.flatnonzero(vocabulary.trie.children).astype(np.int32)
    meter = Meter()
    pair_of("}")[0].below(nodes, meter)
    assert meter.spent > 5
