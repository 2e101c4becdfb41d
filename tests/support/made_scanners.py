"""Scanners of any moves, and machines that read bytes with them alone, without rules."""

from types import SimpleNamespace
from typing import Any

import numpy as np

from dlm.grammar.limits import LazyDict, Meter
from dlm.grammar.parse.state_table import state_table
from dlm.grammar.parse.states import Item, StackNode, Stacks, State, Thread
from dlm.grammar.parse.threads import Threads

ENDED = StackNode(ends=True)


class MadeScanner:
    """A scanner of any moves, some of which its table does not hold before they are requested."""

    start = 0

    def __init__(self, moves, final, known):
        self.made, self.final = moves, final
        self.known_moves = [m if k else None for m, k in zip(moves, known, strict=True)]

    def moves(self, state):
        return self.look_up(state)

    def look_up(self, state):
        """Return the moves from a state. Tests put something else in its place."""
        return self.made[state]

    def counts(self, state, to):
        return to % 2 == 0

    def cost(self, state, low=0, high=None):
        return None if high is not None and high < max(low, 0) else 1


def table_of(scanners, of_state, of_rule, meter: Meter | None = None) -> tuple[Any, Stacks]:
    """Return a table of states that reads terminals with these scanners, and its stacks.

    The predictions of states and rules are looked up in `of_state` and `of_rule`.
    """
    stacks = Stacks(SimpleNamespace(cost_of=lambda state: 1))  # pyright: ignore[reportArgumentType]
    state, rule = of_state.__getitem__, of_rule.__getitem__
    predictions: Any = SimpleNamespace(of_state=state, of_rule=rule, read=state, read_rule=rule)
    threads, costs = Threads(LazyDict(scanners.__getitem__)), SimpleNamespace()
    return state_table(threads, predictions, stacks, costs, meter or Meter()), stacks  # pyright: ignore[reportArgumentType]


class NumberedMachine:
    """A machine of numbered states, with lists of moves by state. `moves` is called for them."""

    def __init__(self, moves):
        nowhere = [False] * len(moves)
        self.scanner = MadeScanner(moves, nowhere, nowhere)
        self.states, _ = table_of([self.scanner], {}, [])

    def at(self, number: int) -> State:
        return self.states.of([Thread(0, number, 0, 0, None, Item(0, ENDED))])

    def for_walk(self, number: int) -> Any:
        return self.states.for_walk([Thread(0, number, 0, 0, None, Item(0, ENDED))])

    def likely(self, state):
        return np.array([self.after(state, byte) is not None for byte in range(256)])

    def after(self, state, byte):
        return self.states.after(state, bytes([byte]))
