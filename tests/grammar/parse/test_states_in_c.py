"""The table of parser states in C: what it refuses, and references that it keeps."""

import gc
import sys
import threading
import weakref
from types import SimpleNamespace

import pytest
from in_c import keeps_no_reference, needs_c
from made_scanners import ENDED

from dlm.grammar.limits import Meter
from dlm.grammar.masks.bits import NATIVE
from dlm.grammar.parse.construction import TerminalEdge
from dlm.grammar.parse.predictions import Prediction
from dlm.grammar.parse.states import Item, StackNode, State, Thread

NOTHING = Prediction([], [], [], [], False, 0)
MOVES = [((97, 98, 0), (99, 99, 1)), ()]


class Failing(dict[int, object]):
    def __missing__(self, key):
        raise ZeroDivisionError


def fail(*_):
    raise ZeroDivisionError


def returning(value):
    return lambda *_: value


class Doubtful:
    def __bool__(self):
        raise ZeroDivisionError


class Large(int):
    """A number whose hash cannot be computed."""

    def __hash__(self):
        raise ZeroDivisionError


class Unhashable(StackNode):
    __hash__ = None


TABLE = ([MOVES[0], None], [False, True], lambda state: MOVES[1])
SHARED = StackNode([Item(0, ENDED), Item(1, ENDED)])
PREDICTION = Prediction([TerminalEdge(0, 0)], [0], [(0, 1)], [1], True, 1)
LAST = NOTHING._replace(reads=[TerminalEdge(0, 1, 1, 5)])


class Calls:
    """Stacks, whose nodes of rules are all the same."""

    def of_rules(self, callers):
        return dict.fromkeys(callers, ENDED)

    def of_caller(self, item):
        return ENDED

    def clear(self):
        pass


RIGHT = {
    "tables": {0: TABLE},
    "starts": {0: 0},
    "move": lambda thread, to: thread._replace(at=to),
    "of_state": [PREDICTION, LAST].__getitem__,
    "of_rule": [LAST].__getitem__,
    "stacks": Calls(),
    "costs": None,
    "meter": Meter(),
    "classes": (State, Thread, Item),
    "refuse": fail,
    "limits": (100, 1000),
    "kernel": [Item(0, SHARED)],
    "text": b"ac",
}


def read(arguments):
    *making, kernel, text = arguments.values()
    table = NATIVE.States(*making)
    return table.after(table.of(kernel), text)


def wrong_arguments():
    """Return an argument in place of a right one, and what it raises."""
    wrong = [
        ("tables", None, TypeError),
        ("tables", {}, KeyError),
        ("tables", Failing(), ZeroDivisionError),
        ("tables", {0: None}, TypeError),
        ("tables", {0: (1, 2, 3)}, TypeError),
        ("tables", {0: TABLE[:2]}, TypeError),
        ("tables", {0: ([None, None], TABLE[1], fail)}, ZeroDivisionError),
        ("tables", {0: ([None, None], TABLE[1], returning([]))}, TypeError),
        ("tables", {0: ([None, None], TABLE[1], None)}, TypeError),
        ("tables", {0: ([], TABLE[1], fail)}, IndexError),
        ("tables", {0: (TABLE[0], [], fail)}, IndexError),
        ("tables", {0: (TABLE[0], [Doubtful(), True], fail)}, ZeroDivisionError),
        ("starts", {}, KeyError),
        ("starts", None, TypeError),
        ("starts", {0: -1}, ValueError),
        ("starts", {0: "a"}, TypeError),
        ("starts", {0: 1 << 70}, OverflowError),
        ("starts", {0: 7}, IndexError),
        ("move", fail, ZeroDivisionError),
        ("move", None, TypeError),
        ("move", returning(1), TypeError),
        ("move", returning((1, ENDED)), ValueError),
        ("move", returning(Thread(1, 0, 0, 1, 5, Item(1, ENDED))), ValueError),
        ("move", returning(Thread(0, 0, 0, 0, None, Item(1, ENDED))), ValueError),
        ("stacks", None, AttributeError),
        ("meter", None, AttributeError),
        ("meter", SimpleNamespace(spent="1", limit=9), TypeError),
        ("classes", (fail, Thread, Item), ZeroDivisionError),
        ("classes", (State, dict, Item), TypeError),
        ("classes", (State, Thread, None), TypeError),
        ("classes", (State, Thread), TypeError),
        ("classes", [State, Thread, Item], TypeError),  # it may change
        ("meter", SimpleNamespace(spent=(1 << 63) - 1, limit=-2), AttributeError),
        ("limits", (1, "1"), TypeError),
        ("limits", (100, 0), ZeroDivisionError),
        ("kernel", None, TypeError),
        ("kernel", [], ValueError),
        ("kernel", [None], TypeError),
        ("kernel", [(0,)], TypeError),
        ("kernel", [Item(None, ENDED)], TypeError),
        ("kernel", [Item(0, None)], AttributeError),
        ("kernel", [Thread(0, -1, 0, 0, None, Item(0, ENDED))], ValueError),
        ("kernel", [Thread(0, 0, 1 << 70, 0, None, Item(0, ENDED))], OverflowError),
        ("kernel", [Thread(0, 9, 0, 0, None, Item(0, ENDED))], IndexError),
        ("kernel", [Thread([], 0, 0, 0, None, Item(0, ENDED))], TypeError),
        ("kernel", [Thread(0, 0, 0, [], None, Item(0, ENDED))], TypeError),
        ("kernel", [Thread(0, 0, 0, "1", None, Item(0, ENDED))], TypeError),
        ("kernel", [Thread(0, 0, 0, 0, "1", Item(0, ENDED))], TypeError),
        ("kernel", [Item(Large(1 << 70), ENDED)], TypeError),
        ("text", "ac", TypeError),
    ]
    for moves in ((97, 99), None, (97, 256, 0), (-1, 98, 0), (97, 98, -2), ("a", 98, 0)):
        error = ValueError if isinstance(moves, tuple) and len(moves) == 3 else TypeError
        error = TypeError if moves == ("a", 98, 0) else error
        wrong.append(("tables", {0: ([(moves,), None], TABLE[1], fail)}, error))
    for waiting in (None, [], (1,)):
        stack = StackNode()
        stack.waiting = waiting
        wrong.append(("kernel", [Item(0, stack)], TypeError))
    stack = StackNode()
    stack.ends = Doubtful()
    wrong.append(("kernel", [Item(0, stack)], ZeroDivisionError))
    for nodes, error in ((None, TypeError), ({}, KeyError)):
        stacks = Calls()
        stacks.of_rules = returning(nodes)
        wrong.append(("stacks", stacks, error))
    for name in ("of_state", "of_rule"):
        wrong += [(name, fail, ZeroDivisionError), (name, None, TypeError)]
        wrong += [(name, returning(value), TypeError) for value in (None, [], PREDICTION[:5])]
        for field in ("reads", "tokens", "calls", "onward"):
            changed = PREDICTION._replace(**{field: (1,)})
            wrong.append((name, returning(changed), TypeError))
        for field, value, error in [
            ("calls", [None], TypeError),
            ("calls", [(0,)], TypeError),
            ("calls", [([], 0)], TypeError),
            ("calls", [(-1, 0)], ValueError),
            ("calls", [(0, "a")], TypeError),
            ("reads", [None], TypeError),
            ("reads", [(0, 0)], TypeError),
            ("reads", [TerminalEdge(-5, 0)], ValueError),
            ("reads", [TerminalEdge(1 << 30, 0)], ValueError),
            ("tokens", [None], TypeError),
            ("onward", ["a"], TypeError),
            ("size", None, TypeError),
            ("size", -1, ValueError),
            ("size", 1 << 70, OverflowError),
            ("ends", Doubtful(), ZeroDivisionError),
        ]:
            wrong.append((name, returning(LAST._replace(**{field: value})), error))
    return wrong


@needs_c
@pytest.mark.parametrize(("name", "value", "error"), [("text", b"ac", None), *wrong_arguments()])
def test_wrong_arguments_are_refused_in_c_and_keep_no_reference(name, value, error):
    arguments = RIGHT | {name: value}

    def call():
        if error is None:
            assert read(arguments) is not None
        else:
            with pytest.raises(error):
                read(arguments)

    things = SHARED, ENDED, PREDICTION, PREDICTION.reads, LAST, Thread, Item, TABLE, *TABLE
    assert keeps_no_reference(call, lambda: (*things, *RIGHT["kernel"], *arguments.values()))


@needs_c
@pytest.mark.parametrize(
    ("of_caller", "error"),
    [(lambda item: ENDED, None), (fail, ZeroDivisionError), (None, TypeError)],
)
def test_a_rule_that_is_called_once_asks_for_the_stack_of_its_caller(of_caller, error):
    once, stacks = [NOTHING._replace(calls=[(0, 7)]), LAST], Calls()
    stacks.of_caller, stacks.of_rules = of_caller, fail  # pyright: ignore[reportAttributeAccessIssue]
    arguments = RIGHT | {"stacks": stacks, "of_state": once.__getitem__}
    items = []

    def call():
        table = NATIVE.States(*[*arguments.values()][:-2])
        if error is None:
            (thread,) = table.of([Item(0, SHARED)]).threads
            assert thread.onward == Item(1, ENDED)
        else:
            with pytest.raises(error):
                table.of([Item(0, SHARED)])

    things = SHARED, ENDED, LAST, Item, *once, *RIGHT["kernel"], *arguments.values()
    assert keeps_no_reference(call, lambda: things)
    if error is None:
        stacks.of_caller = lambda item: items.append(item) or ENDED
        call()
        assert items == [Item(7, SHARED)]
        assert isinstance(items[0], Item)


@needs_c
@pytest.mark.parametrize(
    ("kernel", "error"), [(None, TypeError), ([], ValueError), ([1], TypeError)]
)
def test_a_state_for_a_walk_needs_threads_or_items(kernel, error):
    table = NATIVE.States(*[*RIGHT.values()][:-2])
    assert table.for_walk(RIGHT["kernel"]) is table.for_walk(RIGHT["kernel"])
    assert table.for_walk(RIGHT["kernel"]) is table.of(RIGHT["kernel"]).cell
    with pytest.raises(error):
        table.for_walk(kernel)


@needs_c
def test_a_state_of_another_kind_is_refused_in_c():
    table = NATIVE.States(*[*RIGHT.values()][:-2])
    for state, error in ((None, AttributeError), (SimpleNamespace(cell=1), TypeError)):
        with pytest.raises(error):
            table.after(state, b"a")
    with pytest.raises(TypeError):
        NATIVE.States(*[*RIGHT.values()][:-2], named=1)
    with pytest.raises(TypeError):
        NATIVE.States()


@needs_c
@pytest.mark.parametrize("name", ["of_state", "of_rule", "move", "ask"])
def test_a_table_that_changes_while_it_is_read_is_read_safely(name):
    """The functions that a step calls forget all states, and read others."""
    tables, calls = {}, []

    def disturb():
        if calls and len(calls) < 20:
            calls.append(name)
            table.clear()
            table.of([Item(1, SHARED)])

    def disturbing(called, function):
        def call(*arguments):
            if called == name:
                disturb()
            return function(*arguments)

        return call

    tables[0] = [MOVES[0], None], [False, True], disturbing("ask", lambda state: MOVES[1])
    changed = {key: disturbing(key, RIGHT[key]) for key in ("of_state", "of_rule", "move")}
    table = NATIVE.States(*[*(RIGHT | changed | {"tables": tables}).values()][:-2])
    start = table.of(RIGHT["kernel"])
    calls.append("begin")
    for text in (b"a", b"ac", b"aac", b"bca"):
        assert table.after(start, text) is not None
    table.clear()


class Index:
    """A number that does something when it is read."""

    def __init__(self, value, do):
        self.value, self.do = value, do

    def __index__(self):
        self.do()
        return self.value


class Node(StackNode):
    """A stack node that can be watched."""

    __slots__ = ("__weakref__",)


def made(**changed):
    """Return a table like the right one, but for some arguments."""
    return NATIVE.States(*[*(RIGHT | changed).values()][:-2])


REPEATED = NOTHING._replace(reads=[TerminalEdge(0, 0)])


@needs_c
def test_states_that_a_table_forgot_do_not_keep_later_ones():
    freed = []
    table = made(tables=[b"a" * 9], of_state=returning(REPEATED))
    node = Node(ends=True)
    references = [weakref.ref(node, freed.append)]
    first = table.of([Item(0, node)])
    table.clear()
    after = table.after(first, b"a")
    table.clear()
    assert [thread.at for thread in after.threads] == [1]
    assert [thread.at for thread in table.after(first, b"aa").threads] == [2]
    assert [thread.at for thread in table.after(after, b"a").threads] == [2]
    assert [thread.at for thread in table.after(after, b"").threads] == [1]
    table.clear()
    del first, after, node
    assert freed == references


@needs_c
@pytest.mark.parametrize("forget", [False, True])
def test_a_long_chain_of_states_is_freed(forget):
    """Each one leads to the next, the first is kept, and the stack is small."""

    def chain():
        table = made(tables=[b"a" * 40_000], of_state=returning(REPEATED), limits=(1 << 20, 9))
        first = state = table.of([Item(0, ENDED)])
        for _ in range(40_000):
            if forget:
                table.clear()
            state = table.after(state, b"a")
        del table, state
        freed.append([thread.at for thread in first.threads])

    freed = []
    before = threading.stack_size(1 << 18)
    try:
        thread = threading.Thread(target=chain)
        thread.start()
        thread.join()
    finally:
        threading.stack_size(before)
    assert freed == [[0]]


@needs_c
def test_a_state_that_was_made_twice_may_clear_the_table_when_it_is_freed():
    class Fresh(Calls):
        """Stacks, whose nodes of rules are new."""

        def of_rules(self, callers):
            node = Node(ends=True)
            references.append(weakref.ref(node, lambda _: table.clear()))
            if len(references) == 1:
                table.of(RIGHT["kernel"])
            return dict.fromkeys(callers, node)

    for _ in range(20):
        references = []
        table = made(stacks=Fresh())
        state = table.of(RIGHT["kernel"])
        assert len(references) == 2
        assert len(table) == 0
        assert table.after(state, b"ac") is not None
        table.clear()


@needs_c
def test_an_edge_is_read_safely_while_its_list_changes():
    edges = []

    def change():
        edges.clear()
        edges.append((0, states.pop(), 0, None))  # in the memory of the one before, if that is free

    states = [7]
    edges.append((Index(0, change), states[0] - 2, 0, None))
    table = made(of_state=returning(NOTHING._replace(reads=edges)))
    assert [thread.onward.state for thread in table.of([Item(0, ENDED)]).threads] == [5]


@needs_c
@pytest.mark.parametrize("stack", [SHARED, ENDED])  # ENDED: a rule is called once
def test_allocations_that_fail_raise_a_memory_error_and_lose_nothing(stack):
    testing = pytest.importorskip("_testcapi")
    if not hasattr(testing, "set_nomemory"):
        pytest.skip("this interpreter's allocations cannot be made to fail")
    wide = [TerminalEdge(0, 1, 0, high) for high in range(1, 40)]
    many = [PREDICTION._replace(reads=wide, onward=[1, 1 << 70]), LAST]
    changed = {"of_state": lambda state: many[state & 1], "move": lambda thread, to: thread}
    kernel, text, failed = [Item(0, stack)], RIGHT["text"], 0

    def things():
        return [SHARED, ENDED, *changed.values(), *many, *wide, *kernel, State, Thread, Item]

    def step(table):
        return table.after(table.of(kernel), text)

    counts = None
    gc.collect()
    for size in range(1, 10_000):
        table, right = made(**changed), False
        testing.set_nomemory(size, size + 1)
        try:
            step(table)
            right = True
        except MemoryError:
            failed += 1
        finally:
            testing.remove_mem_hooks()
        assert step(table) is step(table)
        table.clear()
        del table
        before, counts = counts, [*map(sys.getrefcount, things())]
        assert before in (None, counts)
        if right:
            break
    assert failed > 100
