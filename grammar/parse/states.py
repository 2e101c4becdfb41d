"""Parser states, and the graph-structured stacks that hold the callers of their rules.

A state is a set of threads. A thread reads one terminal, and knows the network state after it.
States and stack nodes are shared: texts that lead to the same situation lead to the same object.
Each state knows the shortest text to the end.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from dlm.grammar.parse.network import Network


class StackNode:
    """The callers of a rule, resumed when it ends. A node may call itself (left recursion)."""

    __slots__ = ("best", "cost", "ends", "order", "waiting")

    def __init__(self, ends: bool = False):
        self.waiting: list[Item] = []  # states to resume in, with their own stack nodes
        self.ends = ends  # the root's node: the text ends with it
        self.cost: int | None = 0 if ends else None  # bytes to the text's end; None: unreachable
        self.best: Item | None = None  # the caller on the shortest path to the end
        self.order = 0  # a hash of the callers, equal in every run

    def wait_for(self, waiting: "Iterable[Item]") -> None:
        """Set the callers, for good."""
        self.waiting = list(waiting)
        self.order = hash(tuple(sorted((to, on.order) for to, on in self.waiting)))


class Item(NamedTuple):
    """A network state with its stack node."""

    state: int
    stack: StackNode


class Thread(NamedTuple):
    """A terminal that is being read."""

    terminal: int
    at: int  # the scanner's state
    read: int  # characters so far; 0 if their number is not bounded
    low: int
    high: int | None
    onward: Item  # after the terminal

    @property
    def needed(self) -> int:
        """Characters that must follow."""
        return self.low - self.read

    @property
    def remaining(self) -> int | None:
        """Characters that may follow; None: any number."""
        return None if self.high is None else self.high - self.read


UNREAD: Any = "unread"  # in place of a next state
UNREAD_BYTES = (UNREAD,) * 256  # the next states of a state that no byte was read from


class StateCosts(Protocol):
    """The lengths of the shortest texts from threads and items to the end."""

    def shortest(
        self, kernel: "Collection[Thread | Item]"
    ) -> "tuple[int | None, Thread | Item | None]":
        """Return the least length, None if the end is unreachable, and where such a text begins."""
        ...

    def is_end(self, member: "Thread | Item") -> bool:
        """Whether nothing has to be read."""
        ...


@dataclass(slots=True, eq=False, repr=False)
class State:
    """A parser state. Only its caches change: `next`, `forced`, `tokens` and the cost."""

    threads: list[Thread]
    items: list[Item]  # at edges that read control tokens
    kernel: "frozenset[Thread | Item] | None"  # what it was built from; None once it is measured
    costs: StateCosts
    next: "Sequence[State | None]" = UNREAD_BYTES  # by byte; `UNREAD` where it is not known yet
    forced: str | None = None  # the text that must follow; None: not computed yet
    tokens: int | None = None  # the fewest tokens of the shortest text; None: not computed yet
    _cost: int | None = None
    _best: "Thread | Item | None" = None

    @property
    def cost(self) -> int | None:
        """The length of the shortest text to the end: bytes, and control tokens as one each.

        It bounds the number of tokens. None if the end is unreachable.
        """
        if self.kernel is not None:
            self._measure(self.kernel)
        return self._cost

    @property
    def may_end(self) -> bool:
        """Whether the text may end here: the cost is 0, which is found without the cost."""
        if self.kernel is None:
            return self._cost == 0
        return any(map(self.costs.is_end, self.kernel))

    @property
    def best(self) -> "Thread | Item | None":
        """The start of the shortest text to the end."""
        if self.kernel is not None:
            self._measure(self.kernel)
        return self._best

    def _measure(self, kernel: "frozenset[Thread | Item]") -> None:
        self._cost, self._best = self.costs.shortest(kernel)
        self.kernel = None


def order(member: Thread | Item) -> tuple[int, ...]:
    """Sort key that depends on the situation alone, not on the text read before."""
    if isinstance(member, Item):
        return member.state, member.stack.order
    return member.onward.state, member.onward.stack.order, member.terminal, member.at, member.read


class Stacks:
    """The stack nodes of a grammar. Nodes with equal callers are one node."""

    def __init__(self, network: Network):
        self._network = network
        self._nodes: dict[frozenset[Item], StackNode] = {}  # by callers
        self._cyclic: list[StackNode] = []  # nodes that call themselves, directly or not

    def clear(self) -> None:
        """Forget the nodes: later ones are not shared with them."""
        self._nodes.clear()
        self._cyclic.clear()

    def cut(self) -> None:
        """Break the reference cycles of nodes that are no longer used, to free them at once."""
        for node in self._cyclic:
            node.waiting, node.best = [], None
        self.clear()

    def cost(self, item: Item) -> int | None:
        """Return the fewest bytes to the end of the text; None if it is unreachable."""
        rule_cost, after = self._network.cost_of(item.state), item.stack.cost
        return None if rule_cost is None or after is None else rule_cost + after

    def shared(self, called: dict[int, StackNode]) -> dict[StackNode, StackNode]:
        """Return the shared node for each node of `called`, a dictionary by rule.

        A node that calls itself (left recursion) is not shared, and is missing in the result.
        """
        own = [node for _, node in sorted(called.items())]
        shared: dict[StackNode, StackNode] = {}
        users: dict[StackNode, list[StackNode]] = {node: [] for node in own}
        missing: dict[StackNode, int] = {}  # number of its callers that are not shared yet
        for node in own:
            below = {on for _, on in node.waiting if on in users}
            missing[node] = len(below)
            for on in below:
                users[on].append(node)
        ready = [node for node in own if not missing[node]]
        for node in ready:  # the loop appends to it
            waiting = frozenset(Item(to, shared.get(on, on)) for to, on in node.waiting)
            if waiting not in self._nodes:
                node.wait_for(waiting)
                self._nodes[waiting] = node
            shared[node] = self._nodes[waiting]
            for user in users[node]:
                missing[user] -= 1
                if not missing[user]:
                    ready.append(user)
        for node in own:
            if node not in shared:
                node.wait_for(Item(to, shared.get(on, on)) for to, on in node.waiting)
                self._cyclic.append(node)
        fresh = (shared.get(node, node) for node in own)
        self._measure([node for node in fresh if node.cost is None])
        return shared

    def _measure(self, nodes: list[StackNode]) -> None:
        """Set the costs of nodes that may call each other, then their best callers."""
        changed = True
        while changed:
            changed = False
            for node in nodes:
                costs = (self.cost(item) for item in node.waiting)
                cost = min((c for c in costs if c is not None), default=None)
                if cost is not None and (node.cost is None or cost < node.cost):
                    node.cost, changed = cost, True
        undecided = [node for node in nodes if node.cost is not None]
        while undecided:
            for node in undecided:
                node.best = self._nearest(node.waiting)
            undecided = [node for node in undecided if node.best is None]

    def _nearest(self, waiting: Iterable[Item]) -> Item | None:
        """Return the cheapest item whose own best caller is known, the same in every run."""
        costs = [(cost, item) for item in waiting if (cost := self.cost(item)) is not None]
        least = min(cost for cost, _ in costs)
        measured = (i for cost, i in costs if cost == least and (i.stack.best or i.stack.ends))
        return min(measured, key=lambda item: (item.state, item.stack.order), default=None)
