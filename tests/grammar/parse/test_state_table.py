"""Tables of parser states, in C and in Python."""

import gc
import weakref
from contextlib import contextmanager, suppress
from itertools import pairwise
from random import Random
from types import SimpleNamespace
from unittest.mock import patch

import pytest
from exhaustive import examples
from hypothesis import given, reject
from hypothesis import strategies as st
from in_c import both, needs_c
from made_scanners import ENDED, MadeScanner, table_of
from random_grammars import case_of

from dlm.grammar import GrammarError, InvalidGrammarError
from dlm.grammar.errors import Unfinished
from dlm.grammar.limits import Meter
from dlm.grammar.parse import Network, Parser
from dlm.grammar.parse.construction import TerminalEdge
from dlm.grammar.parse.network import scanner_of
from dlm.grammar.parse.predictions import Prediction
from dlm.grammar.parse.scanner import LiteralScanner
from dlm.grammar.parse.states import Item, StackNode, Stacks, Thread

HUGE = 1 << 70  # a situation of a group of many parts
STATES, RULES, TERMINALS = [0, 1, 2, HUGE, HUGE + 1], 3, 3
BYTES = b"ab\x00\xff"


@contextmanager
def states_by(native):
    """Have parsers keep their states in C, or in Python."""
    with patch("dlm.grammar.parse.state_table.NATIVE", native):
        yield


@st.composite
def scanners(draw):
    if draw(st.booleans()):
        return LiteralScanner(bytes(draw(st.lists(st.sampled_from(b"ab"), min_size=1, max_size=4))))
    states = draw(st.integers(1, 4))
    moves = []
    for _ in range(states):
        cuts = sorted(draw(st.sets(st.sampled_from([0, *b"abc", 255]), max_size=5)))
        ends = [draw(st.integers(low, end - 1)) for low, end in pairwise([*cuts, 256])]
        to = [draw(st.integers(0, states - 1)) for _ in cuts]
        moves.append((*zip(cuts, ends, to, strict=True),))
    flags = st.lists(st.booleans(), min_size=states, max_size=states)
    return MadeScanner(moves, draw(flags), draw(flags))


BOUNDS = [(0, None), (0, None), (1, None), (0, 2), (2, 3), (1 << 70, 1 << 80)]
numbers = st.sampled_from(STATES)


def lists(element, most=2):
    return st.lists(element, max_size=most)


@st.composite
def edges(draw):
    return TerminalEdge(
        draw(st.integers(0, TERMINALS - 1)), draw(numbers), *draw(st.sampled_from(BOUNDS))
    )


predictions = st.builds(
    *(Prediction, lists(edges()), lists(numbers, 1)),
    *(lists(st.tuples(st.integers(0, RULES - 1), numbers)), lists(numbers)),
    *(st.booleans(), st.integers(0, 9)),
)


@st.composite
def machines(draw):
    """Return scanners by terminal, and predictions by state and by rule."""
    return (
        [draw(scanners()) for _ in range(TERMINALS)],
        {state: draw(predictions) for state in STATES},
        [draw(predictions) for _ in range(RULES)],
    )


def described(thing, depth=2):
    """Return a thread or an item with its callers up to some depth: stacks that call themselves are
    not shared."""
    if isinstance(thing, Thread):
        return type(thing), thing[:-1], described(thing.onward)
    state, stack = thing
    waiting = [described(item, depth - 1) for item in stack.waiting] if depth else None
    return type(thing), state, stack.ends, stack.order, waiting


def contents(state):
    """Return what a state holds, by value, other than its kernel."""
    return [*map(described, (*state.threads, *state.items))], state.may_end


def walked(machine, texts, again):
    """Return the contents of states after the beginnings of texts, and the number of states."""
    table, stacks = table_of(*machine)
    shared = StackNode([Item(0, ENDED), Item(HUGE, ENDED)])
    own = StackNode()
    own.waiting, own.order, own.cost = (Item(1, own), Item(2, shared)), 1, 1
    reached, states = [], {}
    for number, text in enumerate(texts):
        start = table.of([Item(STATES[number], own if number % 2 else shared)])
        for end in range(len(text) + 1):
            state = table.after(start, text[:end]) if end else start
            reached.append(state and (contents(state), [*map(described, state.kernel)]))
            if state is not None:
                assert states.setdefault(id(state), state) is state
        if again:  # those before are no longer known, but lead on
            table.clear()
            assert len(table) == 0
    reached.append(len(table))
    stacks.cut()
    table.clear()
    return reached


@needs_c
@examples(300)
@given(
    machines(),
    st.lists(st.lists(st.sampled_from(BYTES), max_size=5).map(bytes), min_size=1, max_size=5),
    st.booleans(),
)
def test_made_up_grammars_have_the_same_states_in_c_and_in_python(machine, texts, again):
    in_c = walked(machine, texts, again)
    with states_by(None):
        in_python = walked(machine, texts, again)
    assert in_c[:-1] == in_python[:-1]  # in C, all states along a text are kept
    assert in_c[-1] >= in_python[-1]


def states_along(rules, seed):
    """Return what a parser knows after each byte of a text that its grammar allows."""
    parser, draw, reached = Parser(Network(rules), scanner_of, Meter()), Random(seed), []
    at = parser.start
    for _ in range(15):
        ends = sorted({byte for ends in parser.ranges(at) for byte in ends})
        after = [byte for byte in ends if parser.after_byte(at, byte) is not None]
        reached.append((contents(at), at.cost, after))
        if not after:
            break
        byte = draw.choice(after)
        run = parser.after(at, 0, bytes([byte]) + bytes(draw.choices(range(32, 127), k=3)))
        reached.append(run and contents(run))
        onward = parser.after_byte(at, byte)
        assert onward is not None
        at = onward
    return reached


@needs_c
@examples(200)
@given(st.integers(0, 1 << 32))
def test_parsers_reach_the_same_states_in_c_and_in_python(seed):
    try:
        case = case_of(Random(seed))
        rules = case.spec.rules(case.vocabulary.call)
    except InvalidGrammarError:  # no value fits
        reject()
    in_c = states_along(rules, seed)
    with states_by(None):
        assert states_along(rules, seed) == in_c


NOTHING = Prediction([], [], [], [], False, 0)


@both
@pytest.mark.parametrize("in_rule", [False, True])
def test_a_state_beyond_the_limit_of_work_is_refused(native, in_rule):
    few = NOTHING._replace(calls=[(0, 0)], size=1)
    size = NOTHING._replace(size=20_000)
    made = ([few], [size]) if in_rule else ([size._replace(size=20_001)], [few])
    kernel = [Item(0, ENDED)]
    with states_by(native):
        with pytest.raises(GrammarError, match="over 20000 readings"):
            table_of([], *made)[0].of(kernel)
        less = NOTHING._replace(size=19_999)
        assert table_of([], [few], [less])[0].of(kernel).threads == []


READING = NOTHING._replace(reads=[TerminalEdge(0, 0)])
MOVES = [((97, 98, 0), (99, 99, 1)), ()]


def reading(text=b"", meter=None):
    """Return a table whose states read a terminal again and again, and its first state."""
    scanner = LiteralScanner(text) if text else MadeScanner(MOVES, [False, True], [1, 0])
    table, _ = table_of([scanner], [READING], [], meter)
    return table, table.of([Item(0, ENDED)])


@both
def test_work_beyond_the_limit_of_a_meter_is_unfinished_and_goes_on_later(native):
    meter = Meter()
    with states_by(native):
        text, last = bytes(range(1, 256)) * 4, None
        table, start = reading(text, meter)
        for _ in range(1000):
            with suppress(Unfinished), meter.limited(1):
                last = table.after(start, text)
            if last is not None:
                break
        assert last is not None
        spent = meter.spent
        assert spent > 0
        assert table.after(start, text) is last
        assert meter.spent == spent  # what is known takes no work


@both
def test_the_oldest_states_are_forgotten_and_still_lead_on(native):
    with (
        states_by(native),
        patch("dlm.grammar.parse.state_table._MOST_STATES", 8),
    ):
        table, start = reading(b"abcdefghijklmnop")
        for size in range(16):
            state = table.after(start, b"abcdefghijklmnop"[:size]) if size else start
            assert state is not None
            assert [thread.at for thread in state.threads] == [size]
            assert 0 < len(table) <= 8


@both
def test_few_states_of_many_threads_are_kept(native):
    """Their memory is that of their threads."""
    edges = [TerminalEdge(number, number) for number in range(100)]
    reads = NOTHING._replace(reads=edges, size=100)
    scanner = LiteralScanner(b"abcdefghijklmnop")
    with states_by(native), patch("dlm.grammar.parse.state_table._MOST_STATES", 16):
        table, _ = table_of([scanner] * 100, [reads] * 100, [])
        start = table.of([Item(0, ENDED)])
        sizes: list[int] = []
        for size in range(1, 16):
            state = table.after(start, b"abcdefghijklmnop"[:size])
            assert state is not None
            assert len(state.threads) == 100
            sizes.append(len(table))
    assert max(sizes) <= 4


class Node(StackNode):
    __slots__ = ("__weakref__",)


@both
def test_forgotten_states_are_freed_once_nobody_holds_them(native):
    with states_by(native):
        table, _ = table_of([LiteralScanner(b"abc")], [READING], [])
        node = Node(ends=True)
        held = table.of([Item(0, node)])
        for _ in range(3):
            table.clear()
            assert table.after(held, b"a") is not None  # the next clear() forgets it
        reference = weakref.ref(node)
        del held, node
        table.clear()
        gc.collect()
        assert reference() is None


@both
def test_a_forgotten_state_is_made_anew_for_a_state_that_led_to_it(native):
    with states_by(native):
        table, start = reading(b"abc")
        table.clear()
        before = table.after(start, b"a")
        table.clear()
        after = table.after(start, b"a")
        assert after is not None
        assert table.after(start, b"a") is after
        assert contents(after) == contents(before)


@needs_c
@pytest.mark.parametrize("kind", ["moves", "bounds"])
def test_steps_of_many_threads_count_their_moves_and_bounds_as_work(kind):
    meter = Meter()
    if kind == "moves":
        moves, bounds = [(*((byte, byte, 0) for byte in range(200)),)], (0, None)
    else:
        moves, bounds = [((199, 199, 0),)], (0, 1 << 20)
    table, _ = table_of([MadeScanner(moves, [False], [True])], {}, [], meter)
    state = table.of([Thread(0, 0, 0, *bounds, Item(i, ENDED)) for i in range(320)])
    before = meter.spent
    assert table.after(state, b"\xc7") is not None
    assert meter.spent - before > 320 // 5  # about 0.6 ms or more


@both
def test_a_table_that_ends_frees_its_states(native):
    gc.collect()
    gc.disable()
    try:
        with states_by(native):
            table, _ = table_of([LiteralScanner(b"ab")], [READING], [])
            node = Node(ends=True)
            state = table.of([Item(0, node)])
            assert table.after(table.after(state, b"ab"), b"a") is not None
            freed: list[object] = []
            reference = weakref.ref(node, freed.append)
            table.clear()
            del state, node, table
            assert freed == [reference]
    finally:
        gc.enable()


def test_a_stack_node_that_another_thread_measures_has_no_cost_before_it_is_known():
    during: list[int | None] = []

    def cost_of(state):
        if state == 7 and not during:  # as another thread may do meanwhile
            during.append(None)
            during[0] = stacks.cost(item)
        return 1

    stacks = Stacks(SimpleNamespace(cost_of=cost_of))  # pyright: ignore[reportArgumentType]
    item = Item(1, StackNode([Item(7, ENDED)]))
    assert stacks.cost(item) == 2
    assert during == [2]
