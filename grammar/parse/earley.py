"""An Earley parser over a network.

The parser reads bytes. It knows no vocabulary, only the ids of control tokens that rules name.
"""

from collections.abc import Callable, Sequence

from dlm.grammar.limits import LazyDict, Meter
from dlm.grammar.parse.construction import TerminalEdge, TokenEdge
from dlm.grammar.parse.network import Network
from dlm.grammar.parse.predictions import Predictions
from dlm.grammar.parse.scanner import LiteralScanner, Scanner
from dlm.grammar.parse.state_table import state_table
from dlm.grammar.parse.states import Item, StackNode, Stacks, State, Thread, order
from dlm.grammar.parse.threads import Threads
from dlm.grammar.regex.nodes import Terminal

_MEASURED = 4  # threads and items whose cost is computed for a unit of work
_PARTS = 256  # parts of a group that such a cost is the sum of, for a unit of work
_FORCED = 1024  # bytes of a forced text
Scan = Callable[[Terminal | bytes], Scanner | LiteralScanner]


class ByteCosts:
    """The fewest bytes from threads and items of one grammar to the end of the text."""

    def __init__(
        self,
        scanners: "LazyDict[Scanner | LiteralScanner]",
        stacks: Stacks,
        meter: Meter,
        parts: int,
    ):
        """`parts` is the number of parts of the network's largest group."""
        self._scanners, self._stacks, self._meter = scanners, stacks, meter
        self._each = 1 / _MEASURED + parts / _PARTS  # units of work for a thread or an item

    def cost(self, member: Thread | Item) -> int | None:
        """Return the fewest bytes to the end of the text; None if it is unreachable."""
        if isinstance(member, Item):
            return self._stacks.cost(member)
        scanner = self._scanners[member.terminal]
        read = scanner.cost(member.at, member.needed, member.remaining)
        after = self._stacks.cost(member.onward)
        return None if read is None or after is None else read + after

    def shortest(self, kernel: Sequence[Thread | Item]) -> tuple[int | None, Thread | Item | None]:
        """Return the least cost, and a member that has it and whose best caller is known.

        The choice between equals does not depend on the text read before.
        """
        least, cheapest = None, []
        if units := int(len(kernel) * self._each):
            self._meter.add(units)
        for member in kernel:
            cost = self.cost(member)
            if cost is None or (least is not None and cost > least):
                continue
            if cost != least:
                least, cheapest = cost, []
            stack = member.onward.stack if isinstance(member, Thread) else member.stack
            if stack.best is not None or stack.ends:
                cheapest.append(member)
        return least, min(cheapest, key=order, default=None)


class Parser:
    """The states of one grammar, built when a text reaches them."""

    def __init__(self, network: Network, scan: Scan, meter: Meter):
        """`scan` maps a terminal to its scanner.

        Raises `GrammarError` if the first state is too large.
        """
        self.network = network
        scanners = LazyDict(lambda number: scan(network.terminals[number]))
        self.scanners = scanners
        self._threads, self._stacks = Threads(scanners), Stacks(network)
        largest = max((len(group.parts) for group in network.groups), default=0)
        self._costs = ByteCosts(scanners, self._stacks, meter, largest)
        predictions = Predictions(network, scanners)
        self.states = state_table(self._threads, predictions, self._stacks, self._costs, meter)
        self.start = self.states.of([Item(network.start[network.root], StackNode(ends=True))])

    def __del__(self) -> None:
        """Break the reference cycles between states, to free them at once."""
        self._stacks.cut()
        self.states.clear()

    def after(self, state: State, token: int, piece: bytes) -> State | None:
        """Return the state after `token`; None if the grammar refuses it.

        `piece` holds the token's bytes: none for a control token.
        """
        return self.states.after(state, piece) if piece else self._after_token(state, token)

    def after_byte(self, state: State, byte: int) -> State | None:
        """Return the state after a byte of text; None if the grammar refuses it."""
        return self.states.after(state, byte.to_bytes())

    def after_text(self, state: State, text: bytes) -> State | None:
        """Return the state after a text, and keep those within it: others may begin alike."""
        reached: State | None = state
        for byte in text:
            reached = reached and self.after_byte(reached, byte)
        return reached

    def ranges(self, state: State) -> list[tuple[int, int]]:
        """Return the ranges of bytes that may follow, in the order of the grammar's rules."""
        return [
            (low, high)
            for thread in sorted(state.threads, key=lambda t: (t.onward.state, t.terminal))
            for low, high, to in self.scanners[thread.terminal].moves(thread.at)
            if self._threads.moved(thread, to) is not None
        ]

    def named(self, state: State) -> set[int]:
        """Return the control tokens that rules allow after `state`."""
        edges = (edge for item in state.items for edge in self.network.edges_of(item.state))
        return {token for edge in edges if isinstance(edge, TokenEdge) for token in edge.ids}

    def after_terminal(self, thread: Thread) -> State:
        """Return the state after the thread's terminal."""
        return self.states.of((thread.onward,))

    def forced(self, state: State) -> str:
        """Return the text with which every continuation begins, up to a limit of length."""
        if state.forced is None:
            text, at = bytearray(), state
            while len(text) < _FORCED and (byte := self._only(at)) is not None:
                onward = self.after_byte(at, byte)
                if onward is None:
                    break
                text.append(byte)
                at = onward
            state.forced = text.decode(errors="ignore")  # it may end within a character
        return state.forced

    def completion(self, state: State, most: int) -> list[bytes | int]:
        """Return a shortest text to the end: bytes, and control tokens by their ids.

        It may be cut off once it has `most` bytes.
        """
        text: list[bytes | int] = []
        member, remaining = state.best, most
        if isinstance(member, Thread):
            scanner = self.scanners[member.terminal]
            text.append(scanner.completion(member.at, member.needed, member.remaining, remaining))
            member = member.onward
        while member is not None and (remaining := most - _length(text)) > 0:
            text += self.rule_completion(member, remaining)
            member = member.stack.best
        return text

    def rule_completion(self, item: Item, most: int) -> list[bytes | int]:
        """Return a shortest text to the end of the item's rule, as `completion` does."""
        text, remaining = list[bytes | int](), most
        for part in self.network.shortest_path(item.state):
            if remaining <= 0:
                break
            if isinstance(part, TerminalEdge):
                scanner = self.scanners[part.terminal]
                part = scanner.completion(scanner.start, part.low, part.high, remaining)
            text.append(part)
            remaining -= _length([part])
        return text

    def _only(self, state: State) -> int | None:
        """Return the one byte that may follow; None if another byte, a token or the end may."""
        if state.items or not state.cost:
            return None
        only = None
        for thread in state.threads:
            for low, high, to in self.scanners[thread.terminal].moves(thread.at):
                if self._threads.moved(thread, to) is not None:
                    if low != high or only not in (None, low):
                        return None
                    only = low
        return only

    def cost(self, member: Thread | Item) -> int | None:
        """Return the fewest bytes to the end of the text; None if it is unreachable."""
        return self._costs.cost(member)

    def _after_token(self, state: State, token: int) -> State | None:
        items = [
            Item(edge.to, item.stack)
            for item in state.items
            for edge in self.network.edges_of(item.state)
            if isinstance(edge, TokenEdge) and token in edge.ids
        ]
        return self.states.of(items) if items else None


def _length(text: list[bytes | int]) -> int:
    """Return the number of bytes; a control token counts as one."""
    return sum(len(part) if isinstance(part, bytes) else 1 for part in text)
