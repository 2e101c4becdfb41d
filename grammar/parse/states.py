"""Parser states, and the graph-structured stacks that hold the callers of their rules.

A state is a set of threads. A thread reads one terminal, and knows the network state after it.
States and stack nodes are shared: texts that lead to the same situation lead to the same object.
Each state knows the shortest text to the end.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Any, NamedTuple, Protocol

from dlm.grammar.parse.network import Network


class StackNode:
    """The callers of a rule, resumed when it ends. A node may call itself (left recursion).

    `Stacks` measures it: before that, `order` is None.
    """

    __slots__ = ("best", "cost", "ends", "order", "waiting")

    def __init__(self, waiting: "Iterable[Item]" = (), ends: bool = False):
        self.waiting = tuple(waiting)  # states to resume in, with their own stack nodes
        self.ends = ends  # the root's node: the text ends with it
        self.cost: int | None = 0 if ends else None  # bytes to the text's end; None: unreachable
        self.best: Item | None = None  # the caller on the shortest path to the end
        self.order = 0 if ends else None  # a hash of the callers, equal in every run

    def put_in_order(self) -> None:
        """Set `order`, from that of the callers."""
        self.order = hash(tuple(sorted((to, on.order or 0) for to, on in self.waiting)))


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
        self, kernel: "Sequence[Thread | Item]"
    ) -> "tuple[int | None, Thread | Item | None]":
        """Return the least length, None if the end is unreachable, and where such a text begins."""
        ...


@dataclass(slots=True, eq=False, repr=False)
class State:
    """A parser state. Only its caches change: `next`, `forced`, `tokens` and the cost."""

    threads: Sequence[Thread]
    items: list[Item]  # at edges that read control tokens
    kernel: "Sequence[Thread | Item] | None"  # what it was built from; None once it is measured
    may_end: bool  # the text may end here
    costs: StateCosts
    cell: Any = None  # the state in C, if the extension is built
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
    def best(self) -> "Thread | Item | None":
        """The start of the shortest text to the end."""
        if self.kernel is not None:
            self._measure(self.kernel)
        return self._best

    def _measure(self, kernel: "Sequence[Thread | Item]") -> None:
        self._cost, self._best = self.costs.shortest(kernel)
        self.kernel = None


def order(member: Thread | Item) -> tuple[int, ...]:
    """Sort key that depends on the situation alone, not on the text read before.

    It needs the member's stack node to be measured.
    """
    if isinstance(member, Item):
        return member.state, member.stack.order or 0
    state, stack = member.onward
    return state, stack.order or 0, member.terminal, member.at, member.read


class Stacks:
    """The stack nodes of a grammar. Nodes with equal callers are one node."""

    def __init__(self, network: Network):
        self._network = network
        self._nodes: dict[Item | frozenset[Item], StackNode] = {}  # by callers
        self._cyclic: list[StackNode] = []  # nodes that call themselves, directly or not

    def clear(self) -> None:
        """Forget the nodes: later ones are not shared with them."""
        self._nodes.clear()
        self._cyclic.clear()

    def cut(self) -> None:
        """Break the reference cycles of nodes that are no longer used, to free them at once."""
        for node in self._cyclic:
            node.waiting, node.best = (), None
        self.clear()

    def cost(self, item: Item) -> int | None:
        """Return the fewest bytes to the end of the text; None if it is unreachable."""
        rule_cost, stack = self._network.cost_of(item.state), item.stack
        if rule_cost is None:
            return None
        if stack.order is None:
            self._measure(stack)
        return None if stack.cost is None else rule_cost + stack.cost

    def of_caller(self, item: Item) -> StackNode:
        """Return the stack node of a rule that is called once."""
        node = self._nodes.get(item)
        if node is None:
            node = self._nodes[item] = StackNode((item,))
        return node

    def of_rules(
        self, callers: dict[int, list[tuple[int, StackNode | int]]]
    ) -> dict[int, StackNode]:
        """Return the stack nodes of rules that are called at one place of the text.

        `callers` holds for each rule the states to resume in, with their own stack nodes: those of
        another rule of `callers` by its number. A node that calls itself is not shared.
        """
        nodes: dict[int, StackNode] = {}
        users: dict[int, list[int]] = {}  # rules by one that calls them
        missing: dict[int, int] = {}  # number of a rule's callers without nodes
        ready: list[int] = []
        for rule, waiting in callers.items():
            below = {on for _, on in waiting if isinstance(on, int)}
            if below:
                missing[rule] = len(below)
                for on in below:
                    users.setdefault(on, []).append(rule)
            else:
                ready.append(rule)
        for rule in ready:  # the loop appends to it
            nodes[rule] = self._shared(_resumed(callers[rule], nodes))
            for user in users.get(rule, ()):
                missing[user] -= 1
                if not missing[user]:
                    ready.append(user)
        if len(nodes) < len(callers):
            cyclic = {rule: StackNode() for rule in sorted(callers) if rule not in nodes}
            nodes |= cyclic
            for rule, node in cyclic.items():
                node.waiting = tuple(_resumed(callers[rule], nodes))
            self._measure_cyclic([*cyclic.values()])
        return nodes

    def _shared(self, waiting: list[Item]) -> StackNode:
        """Return the node of these callers."""
        waiting = [*dict.fromkeys(waiting)]
        if len(waiting) == 1:
            return self.of_caller(waiting[0])
        key = frozenset(waiting)
        node = self._nodes.get(key)
        if node is None:
            node = self._nodes[key] = StackNode(waiting)
        return node

    def _measure(self, node: StackNode) -> None:
        """Set the cost, best caller and order of a node, and of those below it."""
        pending = [node]
        while pending:
            node = pending[-1]
            below = [on for _, on in node.waiting if on.order is None]
            if below:
                pending += below
                continue
            pending.pop()
            if node.order is None:
                costs = [cost for item in node.waiting if (cost := self.cost(item)) is not None]
                if costs:
                    node.cost, node.best = min(costs), self._nearest(node.waiting)
                node.put_in_order()  # last: for other threads it is measured now

    def _measure_cyclic(self, nodes: list[StackNode]) -> None:
        """Set the costs of nodes that may call each other, by Dijkstra's algorithm, then their best
        callers."""
        self._cyclic += nodes
        numbers = {node: number for number, node in enumerate(nodes)}
        # By caller: the nodes it resumes after, and the bytes from there to its rule's end.
        called: list[list[tuple[int, int]]] = [[] for _ in nodes]
        heap: list[tuple[int, int]] = []
        for number, node in enumerate(nodes):
            for item in node.waiting:
                rule_cost, on = self._network.cost_of(item.state), item.stack
                if on not in numbers and on.order is None:
                    self._measure(on)
                if on in numbers and rule_cost is not None:
                    called[numbers[on]].append((number, rule_cost))
                elif on.cost is not None and rule_cost is not None:
                    heap.append((rule_cost + on.cost, number))
        for node in nodes:
            node.put_in_order()
        heapify(heap)
        measured: list[StackNode] = []
        while heap:
            cost, number = heappop(heap)
            node = nodes[number]
            if node.cost is None:
                node.cost = cost
                measured.append(node)
                for below, rule_cost in called[number]:
                    heappush(heap, (cost + rule_cost, below))
        for node in measured:  # its best caller comes before it
            node.best = self._nearest(node.waiting)

    def _nearest(self, waiting: Iterable[Item]) -> Item | None:
        """Return the cheapest item whose own best caller is known, the same in every run."""
        costs = [(cost, item) for item in waiting if (cost := self.cost(item)) is not None]
        least = min(cost for cost, _ in costs)
        measured = (i for cost, i in costs if cost == least and (i.stack.best or i.stack.ends))
        return min(measured, key=lambda item: (item.state, item.stack.order), default=None)


def _resumed(
    waiting: "list[tuple[int, StackNode | int]]", nodes: dict[int, StackNode]
) -> list[Item]:
    """Return items of a rule's callers, given the stack nodes of the rules among them."""
    return [Item(to, nodes[on] if isinstance(on, int) else on) for to, on in waiting]
