"""A situation within a grammar: what an Earley parser knows of a text.

A state is a set of threads, each of which reads one terminal and knows where in the network it goes
on behind it; stack nodes say who waits for a rule to end, and form a graph. States and stack nodes
are shared: a text that comes back to the same situation comes back to the same object.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple


class StackNode:
    """Where a rule goes on when it ends: a node may wait for itself (left recursion)."""

    __slots__ = ("best", "cost", "ends", "order", "waiting")

    def __init__(self, ends: bool = False):
        self.waiting: list[Item] = []  # states to go on in, with their own stack nodes
        self.ends = ends  # nobody waits: it is the text that ends
        self.cost: int | None = 0 if ends else None  # bytes to the text's end; None: no way
        self.best: Item | None = None  # where the shortest way goes on
        self.order = 0  # tells nodes apart by who waits, the same in every run

    def wait_for(self, waiting: "Iterable[Item]") -> None:
        """Settle who waits."""
        self.waiting = list(waiting)
        self.order = hash(tuple(sorted((to, on.order) for to, on in self.waiting)))


class Item(NamedTuple):
    """A state of the network, and its stack node."""

    state: int
    stack: StackNode


class Thread(NamedTuple):
    """A terminal that is being read."""

    terminal: int
    at: int  # the scanner's state
    read: int  # characters so far; 0 where nothing bounds them
    low: int
    high: int | None
    behind: Item

    @property
    def needed(self) -> int:
        """Characters that must follow."""
        return self.low - self.read

    @property
    def remaining(self) -> int | None:
        """Characters that may follow; None: any number."""
        return None if self.high is None else self.high - self.read


@dataclass(slots=True, eq=False, repr=False)
class State:
    """Moved from by `Parser.after`, never changed but for what is remembered.

    `cost` bounds the tokens to the end of the text: it counts bytes, and named tokens as one. It is
    None where the grammar has no end in sight.
    """

    threads: list[Thread]
    items: list[Item]  # at edges that read tokens by their ids
    cost: int | None
    best: "Thread | Item | None"  # where the shortest way to the end begins
    next: "dict[int, State | None]"  # by the next byte, as far as known
    forced: str | None = None  # the text that must follow, once somebody has asked
    tokens: int | None = None  # the fewest of the shortest text to the end, likewise


def order(each: Thread | Item) -> tuple[int, ...]:
    """To sort by: the same for the same situation, whatever was read before."""
    if isinstance(each, Item):
        return each.state, each.stack.order
    return each.behind.state, each.behind.stack.order, each.terminal, each.at, each.read
