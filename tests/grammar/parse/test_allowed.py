"""Masks, compared with the parser token by token."""

import random

import numpy as np
import pytest
from answers import matcher_answer
from exhaustive import examples
from hypothesis import given
from hypothesis import strategies as st
from trees import node_of, trees

from dlm.grammar import BudgetError, Compiled, GrammarError, Matcher, Unfinished
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
        SpecialToken(frozenset({104, 105})),
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
    """Return the tokens that the parser accepts one by one, and the stops at the end of a text."""
    vocabulary = grammar.vocabulary
    found = {t for t in range(len(vocabulary)) if grammar.steps.after(state, t) is not None}
    return found - {*vocabulary.stops} | ({*vocabulary.stops} if state.cost == 0 else set())


@examples(25)
@given(root=TREES, other=TREES, seed=st.integers(0, 99))
def test_a_mask_allows_what_the_parser_accepts(vocabulary, terminals, root, other, seed):
    """Along random paths, for text, stops and control tokens."""
    grammar = compiled(vocabulary, terminals, node_of(root), node_of(other))
    rng, state = random.Random(seed), grammar.parser.start
    for _ in range(4):
        if not state.threads and not state.items:
            break
        words = grammar.masks.words(grammar.state_masks.mask(state))
        allowed = {t for t in tokens_in(words).tolist() if t < len(vocabulary)}
        assert allowed == by_tokens(grammar, state)
        ways = sorted(t for t in allowed if grammar.steps.after(state, t) is not None)
        if not ways:
            break
        state = grammar.steps.after(state, rng.choice(ways))


@examples(25)
@given(root=TREES, other=TREES, seed=st.integers(0, 99), spare=st.integers(0, 12))
def test_any_allowed_tokens_end_within_the_budget(vocabulary, terminals, root, other, seed, spare):
    matcher = Matcher(compiled(vocabulary, terminals, node_of(root), node_of(other)))
    shortest = matcher.shortest_completion()
    if shortest is not None:
        matcher_answer(matcher, len(shortest) + 1 + spare, random.Random(seed).choice)


@pytest.mark.parametrize("levels", [3, 20, 40, 80])
def test_a_branch_that_can_never_fit_is_not_allowed(vocabulary, terminals, levels):
    """Each level doubles the one below: 2^80 bytes are more than an integer of numpy holds."""
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
    """The states within a string of up to 32,767 characters have one mask, which is made once."""
    long = Terminal(Automaton.ANY, 0, 32_767, Spelling.QUOTED)
    grammar = compiled(vocabulary, terminals, Concatenation((long, Literal("."))))
    state, rows, work = grammar.parser.start, set(), []
    for byte in b'"' + b"a" * 300:
        state = grammar.parser.after_byte(state, byte)
        before = grammar.meter.spent
        rows.add(grammar.state_masks.mask(state))
        work.append(grammar.meter.spent - before)
    assert len(rows) == 1
    assert work[1:] == [1] * 300
    near = [grammar.parser.start]
    for byte in b'"' + b"a" * 32_767:
        near.append(grammar.parser.after_byte(near[-1], byte))
    last = tokens_in(grammar.masks.words(grammar.state_masks.mask(near[-1]))).tolist()
    assert by_tokens(grammar, near[-1]) == {t for t in last if t < len(vocabulary)}


def test_a_text_of_too_many_parses_is_refused_with_their_number(vocabulary, terminals):
    root = Reference("root")
    node = Alternation(
        (Literal("a"), Concatenation((root, root)), Concatenation((root, root, root)))
    )
    grammar = compiled(vocabulary, terminals, node)
    state = grammar.parser.start
    with pytest.raises(GrammarError, match="over 20000 readings"):
        grammar.parser.after(state, 0, b"a" * 3000)


def test_a_parse_that_the_meter_stops_is_resumed_where_it_stopped(vocabulary, terminals):
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
    assert np.count_nonzero(grammar.masks.words(grammar.state_masks.mask(at)))
