"""An Earley parser over a network. Each of its states is built once, then found by look-up.

The parser reads bytes. It knows no vocabulary, only the ids of control tokens that rules name.
"""

from collections.abc import Callable, Collection, Iterable
from typing import TypeVar

from dlm.grammar.errors import GrammarError
from dlm.grammar.limits import LazyDict, Meter
from dlm.grammar.parse.network import Network, RuleEdge, TerminalEdge
from dlm.grammar.parse.scanner import LiteralScanner, Scanner
from dlm.grammar.parse.states import (
    UNREAD,
    UNREAD_BYTES,
    Item,
    StackNode,
    Stacks,
    State,
    Thread,
    order,
)
from dlm.grammar.regex.nodes import Terminal

_REMEMBERED = 32_768  # states, before all are forgotten
_MOST_WORK = 20_000  # items reached from one state
_FORCED = 1024  # bytes of a forced text
_made = tuple.__new__  # of a named tuple, in two thirds of the time
AnyMember = TypeVar("AnyMember", Thread, Thread | Item)
Scan = Callable[[Terminal | bytes], Scanner | LiteralScanner]


class ByteCosts:
    """The fewest bytes from threads and items of one grammar to the end of the text."""

    def __init__(self, scanners: "LazyDict[Scanner | LiteralScanner]", stacks: Stacks):
        self._scanners, self._stacks = scanners, stacks

    def cost(self, member: Thread | Item) -> int | None:
        """Return the fewest bytes to the end of the text; None if it is unreachable."""
        if isinstance(member, Item):
            return self._stacks.cost(member)
        scanner = self._scanners[member.terminal]
        read = scanner.cost(member.at, member.needed, member.remaining)
        after = self._stacks.cost(member.onward)
        return None if read is None or after is None else read + after

    def is_end(self, member: Thread | Item) -> bool:
        """Whether nothing has to be read to the end of the text."""
        if isinstance(member, Thread):
            scanner = self._scanners[member.terminal]
            if scanner.cost(member.at, member.needed, member.remaining) != 0:
                return False
            member = member.onward
        return self._stacks.cost(member) == 0

    def shortest(
        self, kernel: Collection[Thread | Item]
    ) -> tuple[int | None, Thread | Item | None]:
        """Return the least cost, and a member that has it and whose best caller is known.

        The choice between equals does not depend on the text read before.
        """
        least, cheapest = None, []
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
        self.network, self._meter = network, meter
        self.scanners = LazyDict(lambda number: scan(network.terminals[number]))
        self._states: dict[frozenset[Thread | Item], State] = {}
        self._stacks = Stacks(network)
        self._costs = ByteCosts(self.scanners, self._stacks)
        self._end = StackNode(ends=True)
        self.start = self._state([Item(network.start[network.root], self._end)])

    def __del__(self) -> None:
        """Break the reference cycles between states, to free them at once."""
        self._stacks.cut()
        self._forget()

    def __len__(self) -> int:
        """Return the number of known states."""
        return len(self._states)

    def after(self, state: State, token: int, piece: bytes) -> State | None:
        """Return the state after `token`; None if the grammar refuses it.

        `piece` holds the token's bytes: none for a control token.
        """
        if not piece:
            return self._after_token(state, token)
        reached = state
        for byte in piece:
            onward = reached.next[byte]
            if onward is UNREAD:
                onward = self.after_byte(reached, byte)
            if onward is None:
                return None
            reached = onward
        return reached

    def after_byte(self, state: State, byte: int) -> State | None:
        """Return the state after a byte of text; None if the grammar refuses it."""
        if state.next[byte] is UNREAD:
            self._meter.spend(1 + len(state.threads) // 4)
            threads: list[Thread | Item] = []
            begin, end = 0, 255
            for thread in state.threads:
                for low, high, to in self.scanners[thread.terminal].moves(thread.at):
                    if high < byte:
                        begin = max(begin, high + 1)
                    elif low > byte:
                        end = min(end, low - 1)
                        break
                    else:
                        begin, end = max(begin, low), min(end, high)
                        moved = self._moved(thread, to)
                        if moved is not None:
                            goes_on = self.scanners[thread.terminal].moves(to)
                            threads.append(moved if goes_on else moved.onward)
            reached = self._state(threads) if threads else None
            if not isinstance(state.next, list):
                state.next = [*state.next]
            state.next[begin : end + 1] = [reached] * (end + 1 - begin)
        return state.next[byte]

    def ranges(self, state: State) -> list[tuple[int, int]]:
        """Return the ranges of bytes that may follow, in the order of the grammar's rules."""
        return [
            (low, high)
            for thread in sorted(state.threads, key=lambda t: (t.onward.state, t.terminal))
            for low, high, to in self.scanners[thread.terminal].moves(thread.at)
            if self._moved(thread, to) is not None
        ]

    def named(self, state: State) -> set[int]:
        """Return the control tokens that rules allow after `state`."""
        edges = (e for item in state.items for e in self.network.edges_of(item.state).tokens)
        return {token for edge in edges for token in edge.ids}

    def after_terminal(self, thread: Thread) -> State:
        """Return the state after the thread's terminal."""
        return self._state([thread.onward])

    def only(self, state: State, threads: list[Thread]) -> State:
        """Return `state` with only these of its threads, and no items."""
        return state if len(threads) == len(state.threads) else self._state(threads)

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
                if self._moved(thread, to) is not None:
                    if low != high or only not in (None, low):
                        return None
                    only = low
        return only

    def cost(self, member: Thread | Item) -> int | None:
        """Return the fewest bytes to the end of the text; None if it is unreachable."""
        return self._costs.cost(member)

    def _moved(self, thread: Thread, to: int) -> Thread | None:
        """Return the thread moved to scanner state `to`; None if its bounds can not be kept."""
        terminal, at, count, low, high, onward = thread
        if low == 0 and high is None:
            return _made(Thread, (terminal, to, 0, 0, None, onward))
        scanner = self.scanners[terminal]
        count += scanner.counts(at, to)
        if high is None:
            count = min(count, low)
        if scanner.cost(to, low - count, None if high is None else high - count) is None:
            return None
        return Thread(terminal, to, count, low, high, onward)

    def _ended(self, thread: Thread) -> bool:
        """Whether the text read so far is a complete text of the terminal."""
        return self.scanners[thread.terminal].final[thread.at] and thread.read >= thread.low

    def _after_token(self, state: State, token: int) -> State | None:
        items = [
            Item(edge.to, item.stack)
            for item in state.items
            for edge in self.network.edges_of(item.state).tokens
            if token in edge.ids
        ]
        return self._state(items) if items else None

    def _state(self, kernel: Collection[Thread | Item]) -> State:
        key = frozenset(_undominated(kernel) if len(kernel) > 1 else kernel)
        state = self._states.get(key)
        if state is None:
            if len(self._states) >= _REMEMBERED:
                self._forget()
            state = self._states[key] = self._closed(key)
        return state

    def _forget(self) -> None:
        """Forget all states: later ones are not shared with them."""
        for state in self._states.values():
            state.next = UNREAD_BYTES
        self._states.clear()
        self._stacks.clear()

    def _closed(self, kernel: frozenset[Thread | Item]) -> State:
        """Build the state of `kernel`: predict and complete until nothing is new."""
        threads = [member for member in kernel if isinstance(member, Thread)]
        pending = [member for member in kernel if isinstance(member, Item)]
        pending += [thread.onward for thread in threads if self._ended(thread)]
        if not pending:
            return State(threads, [], kernel, self._costs)
        network = self.network
        seen: set[Thread | Item] = {*threads, *pending}
        pending = [item for item in seen if isinstance(item, Item)]
        called: dict[int, StackNode] = {}  # by rule
        items: list[Item] = []
        work = 0
        while pending:
            state, stack = item = pending.pop()
            edges = network.edges_of(state)
            reached = [_made(Item, (to, stack)) for to in edges.epsilons]
            if edges.tokens:
                items.append(item)
            if state in network.final:
                reached += stack.waiting
            for edge in edges.follows:
                reached += self._followed(edge, stack, called)
            for edge in edges.reads:
                terminal, to, low, high = edge
                onward = _made(Item, (to, stack))
                start = self.scanners[terminal].start
                thread = _made(Thread, (terminal, start, 0, low, high, onward))
                if thread not in seen:
                    seen.add(thread)
                    threads.append(thread)
                    if self._ended(thread):
                        reached.append(onward)
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
            items = [_made(Item, (state, shared.get(stack, stack))) for state, stack in items]
            threads = [
                _made(Thread, (*thread[:5], _made(Item, (thread[5][0], shared[thread[5][1]]))))
                if thread[5][1] in shared
                else thread
                for thread in threads
            ]
        return State(_undominated(threads), items, kernel, self._costs)

    def _followed(
        self, edge: RuleEdge, stack: StackNode, called: dict[int, StackNode]
    ) -> list[Item]:
        """Return the items reached by entering a rule. `called` shares one node per rule."""
        network, entry = self.network, self.network.start[edge.rule]
        passed = network.nullable(edge.rule) and not edge.round
        reached = [Item(edge.to, stack)] if passed else []
        if network.tail(edge.to):  # a tail call: the rule ends together with its caller
            return [*reached, Item(entry, stack)]
        own = called.setdefault(edge.rule, StackNode())
        own.waiting.append(Item(edge.to, stack))
        return [*reached, Item(entry, own)]


def _undominated(kernel: Iterable[AnyMember]) -> list[AnyMember]:
    """Return `kernel` without threads after which another one of it allows all the same texts.

    Threads of one terminal in the same situation differ in the characters read. Once all have
    enough, that with the fewest may still read the most. So a count over characters that also
    follow it, or come before it, takes no more threads than its lower limit.
    """
    best: dict[tuple[object, ...], Thread] = {}
    bounded = False
    for member in kernel:
        if isinstance(member, Thread) and member.high is not None and member.read >= member.low:
            bounded = True
            key = member.terminal, member.at, member.low, member.high, member.onward
            if key not in best or member.read < best[key].read:
                best[key] = member
    if not bounded:
        return list(kernel)
    return [
        member
        for member in kernel
        if not isinstance(member, Thread)
        or member.high is None
        or member.read < member.low
        or best[member.terminal, member.at, member.low, member.high, member.onward] is member
    ]


def _length(text: list[bytes | int]) -> int:
    """Return the number of bytes; a control token counts as one."""
    return sum(len(part) if isinstance(part, bytes) else 1 for part in text)
