"""Closures of kernels, in C and in Python."""

from contextlib import contextmanager
from random import Random
from unittest.mock import Mock, patch

import pytest
from exhaustive import examples
from hypothesis import given, reject
from hypothesis import strategies as st
from in_c import both, keeps_no_reference, needs_c
from random_grammars import case_of

from dlm.grammar import GrammarError, InvalidGrammarError
from dlm.grammar.limits import LazyDict, Meter
from dlm.grammar.masks.bits import NATIVE
from dlm.grammar.parse import Network, Parser
from dlm.grammar.parse.closure import Closures
from dlm.grammar.parse.construction import TerminalEdge
from dlm.grammar.parse.network import scanner_of
from dlm.grammar.parse.predictions import Prediction
from dlm.grammar.parse.states import Item, StackNode, Stacks, Thread

ENDED = StackNode(ends=True)
SHARED = StackNode([Item(0, ENDED), Item(1, ENDED)])
SELF = StackNode()
SELF.waiting, SELF.order, SELF.cost = (Item(0, SELF), Item(2, SHARED)), 1, 1
STATES, RULES = 4, 3


@contextmanager
def steps_by(native):
    """Have parsers take their steps in C, or in Python."""
    with (
        patch("dlm.grammar.parse.closure.NATIVE", native),
        patch("dlm.grammar.parse.threads.NATIVE", native),
    ):
        yield


def lists(element, most=2):
    return st.lists(element, max_size=most)


numbers = st.integers(0, STATES - 1)
edges = st.builds(TerminalEdge, numbers, numbers, st.sampled_from([0, 2]), st.just(None))
calls = st.tuples(st.integers(0, RULES - 1), numbers)
predictions = st.builds(
    *(Prediction, lists(edges), lists(numbers, 1), lists(calls), lists(numbers)),
    *(st.booleans(), st.integers(0, 9)),
)
items = st.builds(Item, numbers, st.sampled_from([ENDED, SHARED, SELF]))


def described(thing, depth=6):
    """Return a thread or an item with its callers up to some depth: stacks that call themselves are
    not shared."""
    if isinstance(thing, Thread):
        return type(thing), thing[:-1], described(thing.onward)
    state, stack = thing
    waiting = [described(item, depth - 1) for item in stack.waiting] if depth else None
    return type(thing), state, stack.ends, stack.cost, stack.order, waiting


def closure_of(of_state, of_rule, begin):
    network = Mock(cost_of=lambda state: state)
    predicted = Mock(of_state=of_state.__getitem__, of_rule=of_rule.__getitem__)
    closures = Closures(predicted, Stacks(network), LazyDict(lambda terminal: 10 + terminal))
    threads, at_tokens, may_end, work = closures.of(begin)
    assert type(may_end) is bool
    return [*map(described, threads)], [*map(described, at_tokens)], may_end, work


@needs_c
@examples(300)
@given(
    st.lists(predictions, min_size=STATES, max_size=STATES),
    st.lists(predictions, min_size=RULES, max_size=RULES),
    st.lists(items, min_size=1, max_size=3),
)
def test_closures_are_the_same_in_c_and_in_python(of_state, of_rule, begin):
    in_c = closure_of(of_state, of_rule, begin)
    with steps_by(None):
        assert closure_of(of_state, of_rule, begin) == in_c


def states_along(rules, seed):
    """Return what a parser knows after each byte of a text that its grammar allows."""
    parser, draw, reached = Parser(Network(rules), scanner_of, meter := Meter()), Random(seed), []
    at = parser.start
    for _ in range(15):
        members = [*map(described, (*at.threads, *at.items))]
        ends = sorted({byte for ends in parser.ranges(at) for byte in ends})
        after = [byte for byte in ends if parser.after_byte(at, byte) is not None]
        reached.append((members, at.may_end, at.cost, after, len(parser), meter.spent))
        if not after:
            break
        byte = draw.choice(after)
        run = parser.after(at, 0, bytes([byte]) + bytes(draw.choices(range(32, 127), k=3)))
        reached.append(run and [*map(described, (*run.threads, *run.items))])
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
    with steps_by(None):
        assert states_along(rules, seed) == in_c


@both
@pytest.mark.parametrize("in_rule", [False, True])
def test_a_closure_beyond_the_limit_of_work_is_refused(native, in_rule):
    few = Prediction([], [], [(0, 0)], [], False, 1)
    size = few._replace(calls=[], size=20_000)
    predictions = ([few], [size]) if in_rule else ([size._replace(size=20_001)], [few])
    with steps_by(native):
        with pytest.raises(GrammarError, match="over 20000 readings"):
            closure_of(*predictions, [Item(0, ENDED)])
        less = size._replace(size=19_999)
        assert closure_of([few], [less], [Item(0, ENDED)])[-1] == 20_000


PREDICTION = Prediction([TerminalEdge(0, 0)], [0], [(0, 1)], [1], True, 1)
LAST = Prediction([], [], [], [], False, 0)
ITEM = Item(0, SHARED)
RIGHT = {
    "items": [ITEM],
    "of_state": [PREDICTION, LAST, LAST].__getitem__,
    "of_rule": [LAST].__getitem__,
    "of_rules": lambda callers: dict.fromkeys(callers, ENDED),
    "starts": {0: 0},
    "item": Item,
    "thread": Thread,
    "most": 1000,
}


def fail(*_):
    raise ZeroDivisionError


def returning(value):
    return lambda *_: value


class Doubtful:
    def __bool__(self):
        raise ZeroDivisionError


class Unhashable(StackNode):
    __hash__ = None


def wrong_arguments():
    """Return an argument in place of a right one, and what it raises."""
    wrong = [
        ("items", None, TypeError),
        ("items", [None], TypeError),
        ("items", [(0,)], TypeError),
        ("items", [Item(0, None)], AttributeError),
        ("items", [Item(0, Unhashable())], TypeError),
        ("of_rules", returning(None), TypeError),
        ("of_rules", returning({}), KeyError),
        ("starts", [], TypeError),
        ("starts", {}, KeyError),
        ("starts", LazyDict(fail), ZeroDivisionError),
        ("item", dict, TypeError),
        ("thread", int, TypeError),
        ("thread", Thread(0, 0, 0, 0, None, ITEM), TypeError),
        ("most", "1", TypeError),
    ]
    for waiting in (None, [], (1,)):
        stack = StackNode()
        stack.waiting = waiting
        wrong.append(("items", [Item(0, stack)], TypeError))
    stack = StackNode()
    stack.ends = Doubtful()
    wrong.append(("items", [Item(0, stack)], ZeroDivisionError))
    for name in ("of_state", "of_rule", "of_rules"):
        wrong += [(name, fail, ZeroDivisionError), (name, None, TypeError)]
    for name in ("of_state", "of_rule"):
        wrong += [(name, returning(value), TypeError) for value in (None, [], PREDICTION[:5])]
        for field in ("reads", "tokens", "calls", "onward"):
            changed = PREDICTION._replace(**{field: (1,)})
            wrong.append((name, returning(changed), TypeError))
        for field, value, error in [
            ("calls", [None], TypeError),
            ("calls", [(0,)], TypeError),
            ("calls", [([], 0)], TypeError),
            ("reads", [None], TypeError),
            ("reads", [(0, 0)], TypeError),
            ("size", None, TypeError),
            ("size", -1, ValueError),
            ("size", 1 << 70, OverflowError),
        ]:
            changed = LAST._replace(**{field: value})
            wrong.append((name, returning(changed), error))
    wrong.append(("of_state", returning(LAST._replace(ends=Doubtful())), ZeroDivisionError))
    return wrong


@needs_c
@pytest.mark.parametrize(("name", "value", "error"), [("items", [ITEM], None), *wrong_arguments()])
def test_wrong_arguments_of_a_closure_are_refused_in_c_and_keep_no_reference(name, value, error):
    arguments = RIGHT | {name: value}

    def close():
        if error is None:
            assert len(NATIVE.close_items(*arguments.values())) == 4
        else:
            with pytest.raises(error):
                NATIVE.close_items(*arguments.values())

    things = ITEM, SHARED, ENDED, PREDICTION, PREDICTION.reads, LAST, Thread, Item
    assert keeps_no_reference(close, lambda: (*things, *arguments.values()))


@needs_c
def test_a_closure_keeps_no_reference_to_a_rule_that_is_found_in_place_of_its_stack():
    rule = 1 << 40
    calling = LAST._replace(calls=[(rule, 1)])
    changed = {"of_state": returning(calling), "of_rule": returning(LAST)}
    arguments = (RIGHT | changed | {"of_rules": returning({rule: rule})}).values()
    assert keeps_no_reference(lambda: NATIVE.close_items(*arguments), lambda: [rule])
