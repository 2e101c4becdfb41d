"""States of a parser: those after runs of bytes, refused bytes, and where a text may end."""

from unittest.mock import patch

import pytest
from exhaustive import examples
from hypothesis import given
from hypothesis import strategies as st
from trees import node_of, trees

from dlm.grammar import Unfinished
from dlm.grammar.limits import Meter
from dlm.grammar.parse import Network, Parser, State
from dlm.grammar.parse.network import scanner_of
from dlm.grammar.parse.states import UNREAD
from dlm.grammar.regex import (
    EMPTY,
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
)
from dlm.grammar.rules import Rules

LEAVES = st.sampled_from(
    [
        *map(Literal, ("a", "ab", "aab", "b")),
        Terminal(Automaton.words(["a", "ba"])),
        Terminal(Automaton.ANY, 1, 3, Spelling.QUOTED),
        Repetition(Characters(((97, 98),))),
        Reference("root"),
        Reference("other"),
    ]
)


TREES = trees(LEAVES, max_leaves=6)


def parser_of(root: Node, other: Node = EMPTY, meter: Meter | None = None) -> Parser:
    rules = Rules()
    rules.define(Reference("root"), root)
    rules.define(Reference("other"), other)
    return Parser(Network(rules), scanner_of, meter or Meter())


@examples(150)
@given(root=TREES, other=TREES, text=st.text('ab"', min_size=1, max_size=8))
def test_runs_of_bytes_lead_to_the_states_that_single_bytes_lead_to(root, other, text):
    parser = parser_of(node_of(root), node_of(other))
    after = parser.after(parser.start, 0, text.encode())
    assert parser.after(parser.start, 0, text.encode()) is after
    at: State | None = parser.start
    for place, byte in enumerate(text.encode()):
        at = at and parser.after_byte(at, byte)
        assert parser.after(parser.start, 0, text.encode()[: place + 1]) is at
        assert at is None or at.may_end == (at.cost == 0)
    assert at is after is parser.after_text(parser.start, text.encode())


@patch("dlm.grammar.parse.state_table.NATIVE", None)
def test_the_states_within_a_run_of_bytes_are_not_built_in_python():
    parser = parser_of(Concatenation((Literal("a long key"), Literal(":"), Literal("value"))))
    before = len(parser.states)
    after = parser.after(parser.start, 0, b"a long key:val")
    assert after is not None
    assert after.cost == 2
    assert len(parser.states) - before == 3  # after the key, after the colon, and within the value


@patch("dlm.grammar.parse.state_table.NATIVE", None)
def test_a_state_knows_the_bytes_it_refuses_once_a_byte_is_read_in_python():
    parser = parser_of(Alternation((Literal("ab"), Literal("cd"))))
    assert parser.after_byte(parser.start, ord("z")) is None
    unread = [byte for byte, onward in enumerate(parser.start.next) if onward is UNREAD]
    assert bytes(unread) == b"ac"


def test_a_run_of_bytes_counts_as_work_once_its_state_is_unknown():
    parser = parser_of(Literal("a long literal"), meter=(meter := Meter()))
    with meter.limited(0), pytest.raises(Unfinished):
        parser.after(parser.start, 0, b"a long")
    with meter.limited(4):
        reached = parser.after(parser.start, 0, b"a long")
    with meter.limited(0):
        assert parser.after(parser.start, 0, b"a long") is reached


@pytest.mark.parametrize("step", [1, -1])
def test_rules_that_begin_with_each_other_are_measured_in_linear_work(step):
    reads = []
    for size in (50, 200):
        rules = Rules()
        for i in range(size):
            turn = Concatenation((Reference(f"r{(i + step) % size}"), Literal("a")))
            rules.define(Reference(f"r{i}"), Alternation((turn, Literal("b"))))
        rules.define(Reference("root"), Concatenation((Reference("r0"), Literal("c"))))
        network = Network(rules)
        with pytest.MonkeyPatch.context() as patched:
            count, cost_of = [0], network.cost_of

            def counted(state, count=count, cost_of=cost_of):
                count[0] += 1
                return cost_of(state)

            patched.setattr(network, "cost_of", counted)
            parser = Parser(network, scanner_of, Meter())
            state = parser.after(parser.start, 0, b"b")
            after = parser.after(parser.start, 0, b"ba")
            assert state is not None
            assert after is not None
            assert (parser.start.cost, state.cost, after.cost) == (2, 1, 1)
        reads.append(count[0])
    assert reads[1] < 5 * reads[0]
