"""Masks against the parser itself, token by token: what one allows, the other reads."""

import random

import numpy as np
import pytest
from exhaustive import examples
from hypothesis import given
from hypothesis import strategies as st
from trees import node_of, trees

from dlm.grammar import BudgetError, Compiled, Matcher
from dlm.grammar.masks import tokens_in
from dlm.grammar.parse import Network, Terminals
from dlm.grammar.regex import (
    Alternation,
    Automaton,
    Characters,
    Concatenation,
    Literal,
    Node,
    Reference,
    Repetition,
    SpecialToken,
    Spelling,
    Terminal,
    determinized,
)
from dlm.grammar.rules import Rules

SPACE = Terminal(determinized(Repetition(Characters(((9, 10), (32, 32))))), 0, 3)
LEAVES = st.sampled_from(
    [
        Literal('{"name":'),
        Literal(", "),
        Literal("the "),
        SPACE,
        Terminal(Automaton.ANY, 0, None, Spelling.QUOTED),
        Terminal(Automaton.ANY, 2, 5, Spelling.QUOTED),
        Terminal(determinized(Repetition(Characters(((97, 122),)))), 1, 4),
        Terminal(determinized(Repetition(Literal("ab"))), 3, 7, Spelling.ESCAPED),
        Terminal(Automaton.words(["mage", "mage of", "é", "日本"])),
        Characters(((48, 57),)),
        Characters(((0x80, 0x10FFFF),)),
        SpecialToken(frozenset({105})),
        SpecialToken(frozenset({105}), listed=False),
        Reference("root"),
        Reference("other"),
    ]
)
TREES = trees(LEAVES, max_leaves=6)


@pytest.fixture(scope="module")
def terminals(vocabulary):
    return Terminals(vocabulary.trie, len(vocabulary))


def compiled(vocabulary, terminals, root, other=None) -> Compiled:
    rules = Rules()
    rules.define(Reference("root"), root)
    rules.define(Reference("other"), other or Literal("x"))
    return Compiled(Network(rules), vocabulary, terminals)


def by_tokens(grammar: Compiled, state) -> set[int]:
    vocabulary = grammar.vocabulary
    found = {t for t in range(len(vocabulary)) if grammar.after(state, t) is not None}
    return found - {*vocabulary.stops} | ({*vocabulary.stops} if state.cost == 0 else set())


@examples(25)
@given(root=TREES, other=TREES, seed=st.integers(0, 99))
def test_a_mask_allows_what_the_parser_reads(vocabulary, terminals, root, other, seed):
    """Down random paths, stop tokens and control tokens among what is compared."""
    grammar = compiled(vocabulary, terminals, node_of(root), node_of(other))
    rng, state = random.Random(seed), grammar.parser.start
    for _ in range(4):
        if not state.threads and not state.items:
            break
        words = grammar.masks.words(grammar.mask(state))
        allowed = {t for t in tokens_in(words).tolist() if t < len(vocabulary)}
        assert allowed == by_tokens(grammar, state)
        ways = sorted(t for t in allowed if grammar.after(state, t) is not None)
        if not ways:
            break
        state = grammar.after(state, rng.choice(ways))


@examples(25)
@given(root=TREES, other=TREES, seed=st.integers(0, 99), spare=st.integers(0, 12))
def test_a_text_within_its_budget_ends_in_time(vocabulary, terminals, root, other, seed, spare):
    """Whatever of the allowed tokens is taken: this is all that a left-to-right decoder needs."""
    grammar = compiled(vocabulary, terminals, node_of(root), node_of(other))
    matcher, rng = Matcher(grammar), random.Random(seed)
    shortest = matcher.shortest_completion()
    if shortest is None:
        return
    budget = len(shortest) + 1 + spare
    for left in range(budget, 0, -1):
        words = matcher.allowed(left)
        tokens = [t for t in tokens_in(words).tolist() if t < len(vocabulary)]
        assert tokens
        token = rng.choice(tokens)
        assert matcher.accept(token)
        if matcher.ended:
            break
    assert matcher.ended


@pytest.mark.parametrize("levels", [3, 20, 40, 80])
def test_what_can_never_fit_is_not_allowed_and_costs_nothing(vocabulary, terminals, levels):
    """Each level is the one below twice: 2^80 bytes are more than an integer of numpy holds."""
    rules, budget = Rules(), 4
    deep: Node = Literal("[aaaa]")
    for i in range(levels):
        name = Reference(f"level {i}")
        rules.define(name, Concatenation((deep, deep)))
        deep = name
    rules.define(Reference("root"), Alternation((Literal("12"), deep)))
    grammar = Compiled(Network(rules), vocabulary, terminals)
    found = tokens_in(Matcher(grammar).allowed(budget)).tolist()
    assert {vocabulary.text([token])[:1] for token in found} == {"1"}
    matcher = Matcher(grammar)
    assert matcher.accept(vocabulary.encode("[")[0])
    with pytest.raises(BudgetError, match="the shortest answer takes"):
        matcher.allowed(budget)


def test_states_that_allow_the_same_share_a_row(vocabulary, terminals):
    """A string of 32,767 characters must not have a mask for each of them."""
    long = Terminal(Automaton.ANY, 0, 32_767, Spelling.QUOTED)
    grammar = compiled(vocabulary, terminals, Concatenation((long, Literal("."))))
    state, rows = grammar.parser.start, set()
    for byte in b'"' + b"a" * 300:
        state = grammar.parser.after_byte(state, byte)
        rows.add(grammar.mask(state))
    assert len(rows) == 1
    near = [grammar.parser.start]
    for byte in b'"' + b"a" * 32_767:
        near.append(grammar.parser.after_byte(near[-1], byte))
    last = tokens_in(grammar.masks.words(grammar.mask(near[-1]))).tolist()
    assert by_tokens(grammar, near[-1]) == {t for t in last if t < len(vocabulary)}


def test_a_text_that_can_be_read_in_very_many_ways_is_given_up_by_number(vocabulary, terminals):
    from dlm.grammar import GrammarError

    root = Reference("root")
    node = Alternation(
        (Literal("a"), Concatenation((root, root)), Concatenation((root, root, root)))
    )
    grammar = compiled(vocabulary, terminals, node)
    state = grammar.parser.start
    with pytest.raises(GrammarError, match="over 20000 readings"):
        grammar.parser.after(state, 0, b"a" * 3000)


def test_the_meter_stops_a_look_and_what_was_learnt_stays(vocabulary, terminals):
    from dlm.grammar import Unfinished

    grammar = compiled(vocabulary, terminals, Repetition(Characters(((97, 122),)), 40, 60))
    state, stopped = grammar.parser.start, 0
    while True:
        try:
            at = state
            with grammar.meter.limited(3):
                for byte in b"abcdefghijklmnopqrstuvwxyz":
                    at = grammar.parser.after_byte(at, byte)
            break
        except Unfinished:
            stopped += 1
    assert stopped
    assert np.count_nonzero(grammar.masks.words(grammar.mask(at)))
