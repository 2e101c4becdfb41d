"""Threads that read bytes, in C and in Python."""

from contextlib import suppress
from itertools import pairwise
from unittest.mock import patch

import pytest
from exhaustive import examples
from hypothesis import given
from hypothesis import strategies as st
from in_c import keeps_no_reference, needs_c

from dlm.grammar.limits import LazyDict
from dlm.grammar.masks.bits import NATIVE
from dlm.grammar.parse.scanner import LiteralScanner
from dlm.grammar.parse.states import UNREAD, Item, StackNode, Thread
from dlm.grammar.parse.threads import Threads

ENDED = StackNode(ends=True)


class MadeUpScanner:
    """A scanner of any moves, some of which its table does not hold before they are requested."""

    def __init__(self, moves, final, known):
        self._moves, self.final = moves, final
        self.known_moves = [m if k else None for m, k in zip(moves, known, strict=True)]

    def moves(self, state):
        return self._moves[state]

    def counts(self, state, to):
        return to % 2 == 0

    def cost(self, state, low, high):
        return None if high is not None and high < max(low, 0) else 1


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
    return MadeUpScanner(moves, draw(flags), draw(flags))


BOUNDS = st.sampled_from([(0, None), (0, None), (1, None), (0, 2), (2, 3), (1 << 70, 1 << 80)])


@st.composite
def situations(draw):
    """Return scanners by terminal, and threads that read them."""
    made = draw(st.lists(scanners(), min_size=1, max_size=3))
    threads = []
    for _ in range(draw(st.integers(0, 4))):
        terminal = draw(st.integers(0, len(made) - 1))
        at = draw(st.integers(0, len(made[terminal].final) - 1))
        low, high = draw(BOUNDS)
        count = draw(st.integers(0, 2)) if low or high else 0
        threads.append(Thread(terminal, at, count, low, high, Item(len(threads), ENDED)))
    return made, threads


def with_both(made, call):
    """Return what a call returns in C and in Python."""
    results = []
    for native in (NATIVE, None):
        with patch("dlm.grammar.parse.threads.NATIVE", native):
            results.append(call(Threads(LazyDict(made.__getitem__))))
    return results


@needs_c
@examples(200)
@given(situations(), st.lists(st.sampled_from([0, *b"abc", 255]), max_size=5).map(bytes))
def test_runs_of_bytes_lead_to_the_same_members_in_c_and_in_python(situation, piece):
    made, threads = situation
    in_c, in_python = with_both(made, lambda steps: steps.read(threads, piece))
    assert in_c == in_python
    assert [*map(type, in_c[0])] == [*map(type, in_python[0])]
    members, begin, end, length, _ = in_c
    for byte in (begin, end):
        run = piece[: length - 1] + bytes([byte])
        if length and begin <= byte <= end:
            assert with_both(made, lambda steps, run=run: steps.read(threads, run))[1][0] == members


@needs_c
@examples(100)
@given(situations(), st.integers(0, 255), st.integers(0, 255))
def test_next_states_are_the_same_in_c_and_in_python(situation, begin, end):
    made, threads = situation
    onward = object()
    in_c, in_python = with_both(
        made, lambda steps: steps.next_states(threads, begin, max(begin, end), onward)
    )
    assert in_c == in_python
    assert len(in_c) == 256


def table(*moves, final=(False, True)):
    return [moves, None], [*final], lambda state: ()


ONWARD = Item(7, ENDED)
THREAD = Thread(0, 0, 0, 0, None, ONWARD)
COUNTED = Thread(0, 0, 0, 1, 5, ONWARD)
RIGHT = {0: table((97, 98, 0))}


class Failing(dict):
    def __missing__(self, key):
        raise ZeroDivisionError


def fail(*args):
    raise ZeroDivisionError


def wrong_threads():
    """Yield tables, threads and what they raise."""
    yield RIGHT, [None], TypeError
    yield RIGHT, [(0, 0)], TypeError
    yield RIGHT, None, TypeError
    yield RIGHT, [THREAD._replace(at="a")], TypeError
    yield RIGHT, [THREAD._replace(at=-1)], ValueError
    yield RIGHT, [THREAD._replace(at=1 << 70)], OverflowError
    yield RIGHT, [THREAD._replace(at=2)], IndexError
    yield RIGHT, [THREAD._replace(terminal=[])], TypeError
    yield RIGHT, [THREAD._replace(terminal=1)], KeyError
    yield Failing(), [THREAD], ZeroDivisionError
    yield {0: None}, [THREAD], TypeError
    yield {0: (1, 2, 3)}, [THREAD], TypeError
    yield {0: table()[:2]}, [THREAD], TypeError
    yield {0: ([None], [True], fail)}, [THREAD], ZeroDivisionError
    yield {0: ([None], [True], lambda state: [])}, [THREAD], TypeError
    yield {0: ([None], [True], None)}, [THREAD], TypeError
    yield {0: ([[]], [True], fail)}, [THREAD], TypeError
    yield {0: table((97, 98))}, [THREAD], TypeError
    yield {0: table(None)}, [THREAD], TypeError
    yield {0: table((97, 256, 0))}, [THREAD], ValueError
    yield {0: table((-1, 98, 0))}, [THREAD], ValueError
    yield {0: table((97, 98, -2))}, [THREAD], ValueError
    yield {0: table(("a", 98, 0))}, [THREAD], TypeError


SHARED = Thread, ONWARD, ENDED, THREAD, COUNTED, fail


@needs_c
@pytest.mark.parametrize(("tables", "threads", "error"), [*wrong_threads()])
def test_wrong_threads_and_tables_are_refused_in_c(tables, threads, error):
    def call():
        with pytest.raises(error):
            NATIVE.read_run(tables, Thread, fail, threads, b"aa")
        with pytest.raises(error):
            NATIVE.next_states(tables, threads, UNREAD, 0, 1, None)

    assert keeps_no_reference(call, lambda: (*SHARED, tables, threads))


def wrong_runs():
    """Yield arguments of a run, and what they raise."""
    right = [RIGHT, Thread, fail, [THREAD], b"aa"]
    for place, value, error in [
        (0, [], TypeError),
        (1, dict, TypeError),
        (1, None, TypeError),
        (4, "aa", TypeError),
        (3, [COUNTED], ZeroDivisionError),
        (0, {0: table((97, 98, 5))}, IndexError),  # a state beyond the list of ends
    ]:
        yield [*right[:place], value, *right[place + 1 :]], error
    for moved in (1, (1, 2)):
        yield [RIGHT, Thread, lambda *_, moved=moved: moved, [COUNTED], b"aa"], TypeError
    yield right[:4], TypeError

    class Doubtful:
        def __bool__(self):
            raise ZeroDivisionError

    unsure = {0: table((97, 98, 0), final=[Doubtful()])}
    yield [unsure, Thread, fail, [THREAD], b"aa"], ZeroDivisionError
    yield [RIGHT, Thread, fail, [THREAD._replace(low=Doubtful())], b"aa"], ZeroDivisionError
    incomparable = COUNTED._replace(low=None)
    ends = {0: ([((97, 97, 1),), ((97, 97, 1),)], [True, True], fail)}
    yield [ends, Thread, lambda thread, to: incomparable, [incomparable], b"aa"], TypeError


@needs_c
@pytest.mark.parametrize(("arguments", "error"), [*wrong_runs()])
def test_wrong_arguments_of_a_run_are_refused_in_c(arguments, error):
    def call():
        with pytest.raises(error):
            NATIVE.read_run(*arguments)

    assert keeps_no_reference(call, lambda: (*SHARED, *arguments))


@needs_c
def test_wrong_bytes_of_next_states_are_refused_in_c():
    for begin, end in ((-1, 1), (0, 256), ("a", 0)):
        with pytest.raises((TypeError, OverflowError)):
            NATIVE.next_states(RIGHT, [THREAD], UNREAD, begin, end, None)
    with pytest.raises(TypeError):
        NATIVE.next_states(None, [THREAD], UNREAD, 0, 1, None)


@needs_c
def test_steps_in_c_keep_no_reference():
    tables = {0: table((97, 98, 0)), 1: b"ab"}
    threads = [THREAD, COUNTED, Thread(1, 0, 0, 0, None, ONWARD)]
    onward = object()

    def step(thread, to):
        return thread

    def call():
        NATIVE.read_run(tables, Thread, step, threads, b"ab")
        NATIVE.next_states(tables, threads, UNREAD, 0, 1, onward)

    assert keeps_no_reference(call, lambda: (*SHARED, tables, threads, onward, step, UNREAD))


@needs_c
def test_a_table_that_changes_while_it_is_read_is_read_safely():
    """The function that is called for moves takes away what holds them."""
    tables = {}

    def take_away(state):
        tables.clear()
        moves.clear()
        final.clear()
        return ((97, 98, 0),)

    moves, final = [None], [True]
    tables[0] = moves, final, take_away
    threads = [THREAD]
    with suppress(IndexError):
        NATIVE.read_run(tables, Thread, fail, threads, b"aa")
    assert tables == {}
