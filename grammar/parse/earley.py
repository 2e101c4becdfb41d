"""An Earley parser over a network, whose states are made once and read on by look-up.

It decides what may follow, and knows how far the end is from everywhere. No tokens here, but for
control tokens that rules name by their ids.

A situation within a grammar: what an Earley parser knows of a text.

A state is a set of threads, each of which reads one terminal and knows where in the network it goes
on behind it; stack nodes say who waits for a rule to end, and form a graph. States and stack nodes
are shared: a text that comes back to the same situation comes back to the same object.

The graph-structured stacks of a grammar: who waits for a rule to end, each situation once.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from dlm.grammar.errors import GrammarError
from dlm.grammar.parse.limits import Made, Meter
from dlm.grammar.parse.network import Network, RuleEdge, TerminalEdge
from dlm.grammar.parse.scanner import LiteralScanner, Scanner
from dlm.grammar.regex.nodes import Terminal


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


_REMEMBERED = 32_768  # states, before sharing begins anew
_MOST_WORK = 20_000  # items that are reached from one state
_FORCED = 1024  # bytes of a text that must follow

Scan = Callable[[Terminal | bytes], Scanner | LiteralScanner]


class Parser:
    """The states of one grammar, made as texts reach them."""

    def __init__(self, network: Network, scan: Scan, meter: Meter):
        """`scan` gives the scanner of a terminal. Raises `GrammarError` if nothing can be read."""
        self.network, self._meter = network, meter
        self.scanners = Made(lambda number: scan(network.terminals[number]))
        self._known: dict[frozenset[Thread | Item], State] = {}
        self._stacks = Stacks(network)
        self._end = StackNode(ends=True)
        self.start = self._state([Item(network.start[network.root], self._end)])

    def __del__(self) -> None:
        """States lead to each other in circles: without them they are freed at once."""
        self._stacks.cut()
        self._forget()

    def __len__(self) -> int:
        """How many states are known."""
        return len(self._known)

    def after(self, state: State, token: int, piece: bytes) -> State | None:
        """The state behind a token of text, or a control token, which has no bytes.

        None where the grammar refuses it.
        """
        if not piece:
            return self._after_token(state, token)
        here: State | None = state
        for byte in piece:
            here = here.next[byte] if byte in here.next else self.behind(here, byte)
            if here is None:
                return None
        return here

    def behind(self, state: State, byte: int) -> State | None:
        """The state behind a byte of text."""
        if byte not in state.next:
            self._meter.spend(1 + len(state.threads) // 4)
            threads: list[Thread | Item] = []
            first, last = 0, 255
            for thread in state.threads:
                for low, high, to in self.scanners[thread.terminal].moves(thread.at):
                    if high < byte:
                        first = max(first, high + 1)
                    elif low > byte:
                        last = min(last, low - 1)
                        break
                    else:
                        first, last = max(first, low), min(last, high)
                        moved = self._moved(thread, to)
                        if moved is not None:
                            more = self.scanners[thread.terminal].moves(to)
                            threads.append(moved if more else moved.behind)
            reached = self._state(threads) if threads else None
            for each in range(first, last + 1):
                state.next[each] = reached
        return state.next[byte]

    def ranges(self, state: State) -> list[tuple[int, int]]:
        """The ranges of bytes that may follow, in the order in which the grammar tells them."""
        return [
            (low, high)
            for thread in sorted(state.threads, key=lambda t: (t.behind.state, t.terminal))
            for low, high, to in self.scanners[thread.terminal].moves(thread.at)
            if self._moved(thread, to) is not None
        ]

    def named(self, state: State) -> set[int]:
        """The control tokens that are asked for by their ids."""
        edges = (e for item in state.items for e in self.network.edges_of(item.state).tokens)
        return {token for edge in edges if edge.listed for token in edge.ids}

    def takes_other_tokens(self, state: State) -> list[frozenset[int]]:
        """Of edges that take any control token, those that each does not."""
        edges = (e for item in state.items for e in self.network.edges_of(item.state).tokens)
        return [edge.ids for edge in edges if not edge.listed]

    def behind_terminal(self, thread: Thread) -> State:
        """Where a text goes on once the terminal has ended."""
        return self._state([thread.behind])

    def only(self, state: State, threads: list[Thread]) -> State:
        """`state` without its other threads."""
        return state if len(threads) == len(state.threads) else self._state(threads)

    def forced(self, state: State) -> str:
        """The text that every sentence goes on with from here; of a long one, its beginning."""
        if state.forced is None:
            said, at = bytearray(), state
            while len(said) < _FORCED and (byte := self._only(at)) is not None:
                behind = self.behind(at, byte)
                if behind is None:
                    break
                said.append(byte)
                at = behind
            state.forced = said.decode(errors="ignore")  # it may end within a character
        return state.forced

    def completion(self, state: State, most: int) -> list[bytes | int]:
        """A shortest text to the end: bytes, and control tokens by their ids.

        Of one that is longer, at least the first `most` bytes.
        """
        said: list[bytes | int] = []
        each, left = state.best, most
        if isinstance(each, Thread):
            scanner = self.scanners[each.terminal]
            said.append(scanner.completion(each.at, each.needed, each.remaining, left))
            each = each.behind
        while each is not None and (left := most - _length(said)) > 0:
            said += self.rest(each, left)
            each = each.stack.best
        return said

    def rest(self, item: Item, most: int) -> list[bytes | int]:
        """The same to the end of the item's rule."""
        said, left = list[bytes | int](), most
        for part in self.network.way(item.state):
            if left <= 0:
                break
            if isinstance(part, TerminalEdge):
                scanner = self.scanners[part.terminal]
                part = scanner.completion(scanner.start, part.low, part.high, left)
            said.append(part)
            left -= _length([part])
        return said

    def _only(self, state: State) -> int | None:
        """The one byte that may follow; None where another may, or a token, or nothing."""
        if state.items or not state.cost:
            return None
        only = None
        for thread in state.threads:
            for low, high, to in self.scanners[thread.terminal].moves(thread.at):
                if self._moved(thread, to) is not None:
                    if low != high or only not in (None, low):
                        return None
                    only = low
        return only

    def _moved(self, thread: Thread, to: int) -> Thread | None:
        """The thread behind a byte; None if its bounds leave no way to its end."""
        terminal, at, count, low, high, behind = thread
        if low == 0 and high is None:
            return Thread(terminal, to, 0, 0, None, behind)
        scanner = self.scanners[terminal]
        count += scanner.counts(at, to)
        if high is None:
            count = min(count, low)
        if scanner.cost(to, low - count, None if high is None else high - count) is None:
            return None
        return Thread(terminal, to, count, low, high, behind)

    def _ended(self, thread: Thread) -> bool:
        """What was read is a whole text of the terminal."""
        return self.scanners[thread.terminal].final[thread.at] and thread.read >= thread.low

    def _after_token(self, state: State, token: int) -> State | None:
        items = [
            Item(edge.to, item.stack)
            for item in state.items
            for edge in self.network.edges_of(item.state).tokens
            if edge.takes(token)
        ]
        return self._state(items) if items else None

    def _state(self, kernel: Collection[Thread | Item]) -> State:
        key = frozenset(kernel)
        state = self._known.get(key)
        if state is None:
            if len(self._known) >= _REMEMBERED:
                self._forget()
            state = self._known[key] = self._closed(key)
        return state

    def _forget(self) -> None:
        """Begin sharing anew."""
        for state in self._known.values():
            state.next.clear()
        self._known.clear()
        self._stacks.clear()

    def _closed(self, kernel: frozenset[Thread | Item]) -> State:
        """Predict and complete until nothing is new."""
        cost, best = self._shortest(kernel)
        threads = [each for each in kernel if isinstance(each, Thread)]
        pending = [each for each in kernel if isinstance(each, Item)]
        pending += [thread.behind for thread in threads if self._ended(thread)]
        if not pending:
            return State(threads, [], cost, best, {})
        network = self.network
        seen: set[Thread | Item] = {*threads, *pending}
        pending = [item for item in seen if isinstance(item, Item)]
        called: dict[int, StackNode] = {}  # from here, by rule
        items: list[Item] = []
        work = 0
        while pending:
            state, stack = item = pending.pop()
            edges = network.edges_of(state)
            reached = [Item(to, stack) for to in edges.epsilons]
            if edges.tokens:
                items.append(item)
            if state in network.final:
                reached += stack.waiting
            for edge in edges.follows:
                reached += self._followed(edge, stack, called)
            for edge in edges.reads:
                at, behind = self.scanners[edge.terminal].start, Item(edge.to, stack)
                thread = Thread(edge.terminal, at, 0, edge.low, edge.high, behind)
                if thread not in seen:
                    seen.add(thread)
                    threads.append(thread)
                    if self._ended(thread):
                        reached.append(behind)
            work += len(reached) + len(edges.reads)
            new = [item for item in reached if item not in seen]
            seen.update(new)
            pending += new
            if work > _MOST_WORK:
                raise GrammarError(
                    f"the grammar is too ambiguous: over {_MOST_WORK} readings of a text at once"
                )
        self._meter.add(work // 2)
        if called:
            shared = self._stacks.shared(called)
            items = [Item(state, shared.get(stack, stack)) for state, stack in items]
            threads = [
                thread._replace(behind=Item(thread.behind[0], shared[thread.behind[1]]))
                if thread.behind[1] in shared
                else thread
                for thread in threads
            ]
        return State(threads, items, cost, best, {})

    def _followed(
        self, edge: RuleEdge, stack: StackNode, called: dict[int, StackNode]
    ) -> list[Item]:
        """Enter a rule: once for all who follow it from here."""
        network, entry = self.network, self.network.start[edge.rule]
        passed = network.nullable(edge.rule) and not edge.round
        reached = [Item(edge.to, stack)] if passed else []
        if network.tail(edge.to):  # its end is the end of who waits for this rule
            return [*reached, Item(entry, stack)]
        own = called.setdefault(edge.rule, StackNode())
        own.waiting.append(Item(edge.to, stack))
        return [*reached, Item(entry, own)]

    def _cost(self, each: Thread | Item) -> int | None:
        """Bytes to the end of the text; None: no way."""
        if isinstance(each, Item):
            return self._stacks.cost(each)
        scanner = self.scanners[each.terminal]
        read = scanner.cost(each.at, each.needed, each.remaining)
        after = self._stacks.cost(each.behind)
        return None if read is None or after is None else read + after

    def _shortest(
        self, kernel: Collection[Thread | Item]
    ) -> tuple[int | None, Thread | Item | None]:
        """The least cost, and what has it and knows its way on.

        Which one of several must not depend on what was read before.
        """
        least, ways = None, []
        for each in kernel:
            cost = self._cost(each)
            if cost is None or (least is not None and cost > least):
                continue
            if cost != least:
                least, ways = cost, []
            stack = each.behind.stack if isinstance(each, Thread) else each.stack
            if stack.best is not None or stack.ends:
                ways.append(each)
        return least, min(ways, key=order, default=None)


def _length(said: list[bytes | int]) -> int:
    """Bytes; a control token counts as one."""
    return sum(len(part) if isinstance(part, bytes) else 1 for part in said)
