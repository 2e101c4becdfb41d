"""The fewest bytes to the ends of rules: in C and in Python."""

from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st
from in_c import keeps_no_reference, needs_c

from dlm.grammar.masks.bits import NATIVE
from dlm.grammar.parse.construction import (
    EpsilonEdge,
    GroupEdge,
    RuleEdge,
    TerminalEdge,
    TokenEdge,
)
from dlm.grammar.parse.network import Network
from dlm.grammar.regex.automaton import Automaton
from dlm.grammar.regex.nodes import (
    Alternation,
    AnyOrder,
    Component,
    Concatenation,
    Literal,
    Reference,
    Repetition,
    SpecialToken,
    Spelling,
    Terminal,
)
from dlm.grammar.rules.rules import Rules

pytestmark = needs_c
RULES = [f"r{i}" for i in range(4)]
HUGE = 10**30
KINDS = TerminalEdge, TokenEdge, RuleEdge, EpsilonEdge, GroupEdge

texts = st.text("ab", max_size=3)
automata = st.sampled_from(
    [Automaton.ANY, Automaton.words(["", "a"]), Automaton.words(["aa", "b"]), Automaton.NONE]
)
leaves = st.one_of(
    st.builds(Literal, texts),
    st.builds(Reference, st.sampled_from(RULES)),
    st.just(SpecialToken(frozenset({7}))),
    st.builds(
        Terminal, automata, st.sampled_from([0, 1]), st.just(None), st.sampled_from([*Spelling])
    ),
)


def groups(nodes):
    components = st.builds(Component, nodes, required=st.booleans(), ordered=st.booleans())
    repeating = st.builds(Component, nodes, repeats=st.just(True))
    parts = st.lists(st.one_of(components, repeating), min_size=1, max_size=4).map(tuple)
    return st.builds(AnyOrder, parts, nodes, st.integers(0, 2), st.sampled_from([None, 3]))


def compound(nodes):
    parts = st.lists(nodes, max_size=3).map(tuple)
    bounds = st.sampled_from([(0, 1), (0, None), (1, None), (2, 3), (3, None), (HUGE, None)])
    repeated = st.builds(lambda node, pair: Repetition(node, *pair), nodes, bounds)
    return st.one_of(
        st.builds(Concatenation, parts), st.builds(Alternation, parts), repeated, groups(nodes)
    )


def measured(nodes):
    rules = Rules(RULES[0])
    rules.nodes = dict(zip(RULES, nodes, strict=True))
    network = Network(rules)
    states = range(len(network.edges))
    groups = [(group.costs, group.separator_cost, group.cost) for group in network.groups]
    return [*network.cost.items()], [*map(network.first_edge, states)], groups


@given(st.tuples(*[st.recursive(leaves, compound, max_leaves=8)] * 4))
def test_costs_of_a_network_are_the_same_in_c(nodes):
    in_c = measured(nodes)
    with patch("dlm.grammar.parse.network.NATIVE", None):
        assert in_c == measured(nodes)


@pytest.mark.parametrize("low", [2**31, 2**61, 2**62, 2**63, 2**64, HUGE])
@pytest.mark.parametrize("text", ["a", "ab" * 50])
def test_costs_beyond_a_machine_integer_are_exact(low, text):
    part = Component(Repetition(Repetition(Literal(text), low, low), low, None))
    group = AnyOrder((part,), Literal(","))
    cost, _, groups = measured([group, *[Literal("")] * 3])
    assert dict(cost)[0] == low * low * len(text)
    assert groups == [([low * low * len(text)], 1, low * low * len(text))]


def least_costs(
    edges, start=(), final=(1,), read=len, parts=None, learn=print, cost=print, terminals=1
):
    costs, best = {}, {}
    calls = read, parts or (lambda edge: []), learn, cost
    whole = NATIVE.least_costs(
        [*edges, []], [*start], [*final], terminals, KINDS, calls, costs, best
    )
    return whole, costs, best


def test_the_fewest_bytes_are_those_of_the_first_way_that_has_them():
    edges = [TokenEdge(frozenset(), 1), EpsilonEdge(1), TerminalEdge(0, 1), EpsilonEdge(1)]
    whole, costs, best = least_costs([edges])
    assert whole
    assert costs == {1: 0, 0: 0}
    assert best[0] is edges[1]


@pytest.mark.parametrize(
    "edge",
    [
        (0, 1),
        None,
        EpsilonEdge(2),
        EpsilonEdge(-1),
        EpsilonEdge(HUGE),
        EpsilonEdge("a"),
        TokenEdge(frozenset(), 2),
        TerminalEdge(1, 1),
        TerminalEdge(-1, 1),
        RuleEdge(1, 1),
        RuleEdge(0, 1, -1),
        RuleEdge(0, 1, None),
        GroupEdge(0, 2),
    ],
)
def test_a_wrong_edge_is_refused(edge):
    with pytest.raises((TypeError, ValueError)):
        least_costs([[edge]], start=[0])


@pytest.mark.parametrize("parts", [None, (), [0], [(0,)], [(2, 0)], [(-1, 0)], [("a", 0)]])
def test_wrong_parts_of_a_group_are_refused(parts):
    with pytest.raises((TypeError, ValueError)):
        least_costs([[GroupEdge(0, 1)]], parts=lambda edge: parts)


@pytest.mark.parametrize("final", [[2], [-1], [None], [HUGE]])
def test_a_wrong_end_is_refused(final):
    with pytest.raises((TypeError, ValueError)):
        least_costs([[]], final=final)


def fail(*_):
    raise ZeroDivisionError


@pytest.mark.parametrize("name", ["read", "parts", "learn", "cost"])
def test_what_a_function_raises_ends_the_search(name):
    calls = {"parts": lambda edge: [(1, 0)], name: fail}
    with pytest.raises(ZeroDivisionError):
        least_costs([[TerminalEdge(0, 1), GroupEdge(0, 1)]], **calls)


@pytest.mark.parametrize("name", ["read", "cost"])
def test_a_wrong_number_of_a_function_is_refused(name):
    for wrong in ("a", -1, 1.5):
        calls = {"parts": lambda edge: [(1, 0)], name: lambda edge, wrong=wrong: wrong}
        with pytest.raises((TypeError, ValueError)):
            least_costs([[TerminalEdge(0, 1), GroupEdge(0, 1)]], **calls)


def test_a_function_may_take_the_edges_away():
    edges = [[TerminalEdge(0, 2, 0, 1), EpsilonEdge(2)], [EpsilonEdge(2)], []]
    calls = lambda edge: edges.clear(), lambda edge: [], print, print
    with pytest.raises((TypeError, ValueError)):
        NATIVE.least_costs(edges, [], [2], 1, KINDS, calls, {}, {})
    row = [TerminalEdge(0, 1, 0, 1), EpsilonEdge(1)]
    _, costs, _ = least_costs([row], read=lambda edge: row.clear())
    assert costs == {1: 0}


def test_no_reference_is_kept():
    edges = [[TerminalEdge(0, 1), RuleEdge(0, 1), GroupEdge(0, 1), EpsilonEdge(1)], []]
    part = object()
    things = [edges, edges[0], *edges[0], part]
    functions = [len, lambda edge: [(1, part)], lambda *_: None, lambda edge: 5]

    def call():
        NATIVE.least_costs(edges, [0], [1], 1, KINDS, tuple(functions), {}, {})

    assert keeps_no_reference(call, lambda: [*things, *functions])
