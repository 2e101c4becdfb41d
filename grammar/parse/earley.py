"""An Earley parser over a network. Each of its states is built once, then found by look-up.

The parser reads bytes. It knows no vocabulary, only the ids of control tokens that rules name.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

from dlm.grammar.limits import LazyDict, LimitedCache, Meter
from dlm.grammar.parse.closure import Closures
from dlm.grammar.parse.construction import TerminalEdge, TokenEdge
from dlm.grammar.parse.network import Network
from dlm.grammar.parse.predictions import Predictions
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
from dlm.grammar.parse.threads import Threads
from dlm.grammar.regex.nodes import Terminal

_REMEMBERED = 32_768  # states, before all are forgotten
_RUNS = 1 << 14  # cached states after several bytes
_THREADS = 8  # threads moved by a byte for a unit of work
_FORCED = 1024  # bytes of a forced text
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

    def shortest(self, kernel: Sequence[Thread | Item]) -> tuple[int | None, Thread | Item | None]:
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
        scanners = LazyDict(lambda number: scan(network.terminals[number]))
        starts = LazyDict(lambda number: scanners[number].start)
        self.scanners = scanners
        self._states: dict[Thread | Item | frozenset[Thread | Item], State] = {}  # by kernel
        self._runs = LimitedCache[tuple[State, bytes], tuple[State | None, int]](_RUNS)
        self._threads, self._stacks = Threads(scanners), Stacks(network)
        self._costs = ByteCosts(scanners, self._stacks)
        self._closures = Closures(Predictions(network, scanners), self._stacks, starts)
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
        reached, place = state, 0
        while place < len(piece):
            onward = reached.next[piece[place]]
            place += 1
            if onward is UNREAD:
                onward, length = self._after_run(reached, piece[place - 1 :])
                place += length - 1
            if onward is None:
                return None
            reached = onward
        return reached

    def after_byte(self, state: State, byte: int) -> State | None:
        """Return the state after a byte of text; None if the grammar refuses it."""
        if state.next[byte] is UNREAD:
            self._meter.spend(1 + len(state.threads) // 4)
            members, begin, end, *_ = self._threads.read(state.threads, byte.to_bytes())
            self._link(state, begin, end, self._state(members) if members else None)
        return state.next[byte]

    def after_text(self, state: State, text: bytes) -> State | None:
        """Return the state after a text, and keep those within it: others may begin alike."""
        reached: State | None = state
        for byte in text:
            reached = reached and self.after_byte(reached, byte)
        return reached

    def _link(self, state: State, begin: int, end: int, onward: State | None) -> None:
        """Set the state after the bytes from `begin` to `end`."""
        if isinstance(state.next, list):
            state.next[begin : end + 1] = [onward] * (end + 1 - begin)
        else:
            state.next = self._threads.next_states(state.threads, begin, end, onward)

    def _after_run(self, state: State, piece: bytes) -> tuple[State | None, int]:
        """Return the state after a run of bytes that `piece` begins with, and their number.

        A run ends where a terminal may end, or after a byte in place of which another one leads to
        the same state. The states before the last byte are not built.
        """
        key = state, piece
        run = self._runs.get(key)
        if run is None:
            self._meter.spend(1 + len(state.threads) // 4)
            members, begin, end, length, read = self._threads.read(state.threads, piece)
            self._meter.add(read // _THREADS)
            onward = self._state(members) if members else None
            run = onward, length
            if length == 1:
                self._link(state, begin, end, onward)
            else:
                self._runs[key] = run
        return run

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
        return self._state([thread.onward])

    def only(self, state: State, threads: Sequence[Thread]) -> State:
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
                if self._threads.moved(thread, to) is not None:
                    if low != high or only not in (None, low):
                        return None
                    only = low
        return only

    def cost(self, member: Thread | Item) -> int | None:
        """Return the fewest bytes to the end of the text; None if it is unreachable."""
        return self._costs.cost(member)

    def _ended(self, thread: Thread) -> bool:
        """Whether the text read so far is a complete text of the terminal."""
        return self.scanners[thread.terminal].final[thread.at] and thread.read >= thread.low

    def _after_token(self, state: State, token: int) -> State | None:
        items = [
            Item(edge.to, item.stack)
            for item in state.items
            for edge in self.network.edges_of(item.state)
            if isinstance(edge, TokenEdge) and token in edge.ids
        ]
        return self._state(items) if items else None

    def _state(self, kernel: Sequence[Thread | Item]) -> State:
        """Return the state of these threads and items."""
        kernel = _undominated(kernel) if len(kernel) > 1 else kernel
        key = frozenset(kernel) if len(kernel) > 1 else kernel[0]
        state = self._states.get(key)
        if state is None:
            if len(self._states) >= _REMEMBERED:
                self._forget()
            state = self._states[key] = self._closed([*dict.fromkeys(kernel)])
        return state

    def _forget(self) -> None:
        """Forget all states: later ones are not shared with them."""
        for state in self._states.values():
            state.next = UNREAD_BYTES
        self._states.clear()
        self._runs.clear()
        self._stacks.clear()

    def _closed(self, kernel: Sequence[Thread | Item]) -> State:
        """Build the state of `kernel`: predict and complete until nothing is new."""
        threads: list[Thread] = []
        begin: list[Item] = []
        ended: list[Item] = []
        for member in kernel:
            if isinstance(member, Item):
                begin.append(member)
            else:
                threads.append(member)
                if self._ended(member):
                    ended.append(member.onward)
        begin += ended
        if not begin:
            return State(threads, [], kernel, False, self._costs)
        predicted, items, may_end, work = self._closures.of(begin)
        self._meter.add(work // 2)
        if threads or len(kernel) > 1:  # what they predict may be there already
            threads = [*dict.fromkeys([*threads, *predicted])]
            items = [*dict.fromkeys(items)]
        else:
            threads = predicted
        return State(_undominated(threads), items, kernel, may_end, self._costs)


def _undominated(kernel: Sequence[AnyMember]) -> Sequence[AnyMember]:
    """Return `kernel` without threads after which another one of it allows all the same texts.

    Threads of one terminal in the same situation differ in the characters read. Once all have
    enough, that with the fewest may still read the most. So a count over characters that also
    follow it, or come before it, takes no more threads than its lower limit.
    """
    counted = [
        member
        for member in kernel
        if isinstance(member, Thread) and member.high is not None and member.read >= member.low
    ]
    if len(counted) < 2:
        return kernel
    fewest: dict[tuple[object, ...], Thread] = {}  # by situation
    for thread in counted:
        situation = *thread[:2], *thread[3:]
        if situation not in fewest or thread.read < fewest[situation].read:
            fewest[situation] = thread
    dominated = {*counted}.difference(fewest.values())
    return [member for member in kernel if member not in dominated]


def _length(text: list[bytes | int]) -> int:
    """Return the number of bytes; a control token counts as one."""
    return sum(len(part) if isinstance(part, bytes) else 1 for part in text)
