"""The graph-structured stacks of a grammar: who waits for a rule to end, each situation once."""

from collections.abc import Iterable

from dlm.grammar.parse.network import Network
from dlm.grammar.parse.state import Item, StackNode


class Stacks:
    """Nodes that wait for the same are one node, which knows how far the text's end is."""

    def __init__(self, network: Network):
        self._network = network
        self._known: dict[frozenset[Item], StackNode] = {}  # by who waits
        self._cyclic: list[StackNode] = []  # those that wait for themselves, and who wait for these

    def clear(self) -> None:
        """Begin sharing anew."""
        self._known.clear()
        self._cyclic.clear()

    def cut(self) -> None:
        """Nobody uses the nodes any more: without their circles they are freed at once."""
        for node in self._cyclic:
            node.waiting, node.best = [], None
        self.clear()

    def cost(self, item: Item) -> int | None:
        """Bytes to the end of the text; None: no way."""
        rest, after = self._network.cost.get(item.state), item.stack.cost
        return None if rest is None or after is None else rest + after

    def shared(self, called: dict[int, StackNode]) -> dict[StackNode, StackNode]:
        """The nodes that stand for those of `called`, by rule: one for all who wait alike.

        Nodes that wait for themselves (left recursion) stand for themselves alone.
        """
        own = [node for _, node in sorted(called.items())]
        shared: dict[StackNode, StackNode] = {}
        users: dict[StackNode, list[StackNode]] = {node: [] for node in own}
        missing: dict[StackNode, int] = {}  # how many nodes that it waits on are not settled
        for node in own:
            below = {on for _, on in node.waiting if on in users}
            missing[node] = len(below)
            for on in below:
                users[on].append(node)
        ready = [node for node in own if not missing[node]]
        for node in ready:  # it grows meanwhile
            waiting = frozenset(Item(to, shared.get(on, on)) for to, on in node.waiting)
            if waiting not in self._known:
                node.wait_for(waiting)
                self._known[waiting] = node
            shared[node] = self._known[waiting]
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
        """The ways on from nodes that may wait for each other: first their costs, then the ways."""
        changed = True
        while changed:
            changed = False
            for node in nodes:
                costs = (self.cost(item) for item in node.waiting)
                cost = min((each for each in costs if each is not None), default=None)
                if cost is not None and (node.cost is None or cost < node.cost):
                    node.cost, changed = cost, True
        undecided = [node for node in nodes if node.cost is not None]
        while undecided:
            for node in undecided:
                node.best = self._nearest(node.waiting)
            undecided = [node for node in undecided if node.best is None]

    def _nearest(self, waiting: Iterable[Item]) -> Item | None:
        """Of those with the least cost, one that knows its way on, the same in every run."""
        costs = [(cost, item) for item in waiting if (cost := self.cost(item)) is not None]
        least = min(cost for cost, _ in costs)
        ways = (i for cost, i in costs if cost == least and (i.stack.best or i.stack.ends))
        return min(ways, key=lambda item: (item.state, item.stack.order), default=None)
