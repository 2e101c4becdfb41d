"""The states of one grammar, each of which is built once, then found by look-up.

The extension does the same where it is built (`grammar/_states.c`). A test holds both equal.
"""

from collections.abc import Sequence
from typing import Any, NoReturn, Protocol, TypeVar

from dlm.grammar.errors import GrammarError
from dlm.grammar.limits import LimitedCache, Meter
from dlm.grammar.masks.bits import NATIVE
from dlm.grammar.parse.closure import Closures
from dlm.grammar.parse.predictions import Predictions
from dlm.grammar.parse.states import UNREAD, UNREAD_BYTES, Item, Stacks, State, StateCosts, Thread
from dlm.grammar.parse.threads import Threads

_MOST_STATES = 32_768  # before all are forgotten
_MEMBERS = 32  # of a state, on average, beyond which fewer states are kept; in C: `MEMBERS`
_MOST_WORK = 20_000  # items reached from one state
_RUNS = 1 << 14  # cached states after several bytes
_THREADS = 8  # threads moved by a byte for a unit of work
AnyMember = TypeVar("AnyMember", Thread, Thread | Item)


class StateTable(Protocol):
    """The states of a grammar."""

    def __len__(self) -> int:
        """Return the number of known states."""
        ...

    def of(self, kernel: Sequence[Thread | Item]) -> State:
        """Return the state of these threads and items."""
        ...

    def for_walk(self, kernel: Sequence[Thread | Item]) -> Any:
        """Return the state of these threads and items as `Below` takes it.

        That is quicker than `of`: in C, no object of Python is made of the state.
        """
        ...

    def after(self, state: State, piece: bytes) -> State | None:
        """Return the state after some bytes of text; None if the grammar refuses them."""
        ...

    def clear(self) -> None:
        """Forget all states and stack nodes: later ones are not shared with them."""
        ...


def state_table(
    threads: Threads, predictions: Predictions, stacks: Stacks, costs: StateCosts, meter: Meter
) -> StateTable:
    """Return an empty table: in C if the extension is built."""
    if NATIVE is None:
        return PythonStates(threads, predictions, stacks, costs, meter)
    return NATIVE.States(
        threads.tables,
        threads.starts,
        threads.moved,
        predictions.read,
        predictions.read_rule,
        stacks,
        costs,
        meter,
        (State, Thread, Item),
        _too_ambiguous,
        (_MOST_STATES, _MOST_WORK),
    )


class PythonStates:
    """The states of a grammar, in Python."""

    def __init__(
        self,
        threads: Threads,
        predictions: Predictions,
        stacks: Stacks,
        costs: StateCosts,
        meter: Meter,
    ):
        self._threads, self._stacks, self._costs, self._meter = threads, stacks, costs, meter
        self._closures = Closures(predictions, stacks, threads.starts)
        self._states: dict[Thread | Item | frozenset[Thread | Item], State] = {}  # by kernel
        self._members = 0  # of all states
        self._runs = LimitedCache[tuple[State, bytes], tuple[State | None, int]](_RUNS)

    def __len__(self) -> int:
        return len(self._states)

    def of(self, kernel: Sequence[Thread | Item]) -> State:
        kernel = _undominated(kernel) if len(kernel) > 1 else kernel
        key = frozenset(kernel) if len(kernel) > 1 else kernel[0]
        state = self._states.get(key)
        if state is None:
            if max(len(self._states), self._members // _MEMBERS) >= _MOST_STATES:
                self.clear()
            state = self._states[key] = self._closed([*dict.fromkeys(kernel)])
            self._members += len(kernel) + len(state.threads) + len(state.items)
        return state

    for_walk = of

    def after(self, state: State, piece: bytes) -> State | None:
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

    def clear(self) -> None:
        for state in self._states.values():
            state.next = UNREAD_BYTES
        self._states.clear()
        self._members = 0
        self._runs.clear()
        self._stacks.clear()

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
            onward = self.of(members) if members else None
            run = onward, length
            if length == 1:
                self._link(state, begin, end, onward)
            else:
                self._runs[key] = run
        return run

    def _link(self, state: State, begin: int, end: int, onward: State | None) -> None:
        """Set the state after the bytes from `begin` to `end`."""
        if isinstance(state.next, list):
            state.next[begin : end + 1] = [onward] * (end + 1 - begin)
        else:
            state.next = self._threads.next_states(state.threads, begin, end, onward)

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
                if self._threads.ended(member):
                    ended.append(member.onward)
        begin += ended
        if not begin:
            return State(threads, [], kernel, False, self._costs)
        closure = self._closures.of(begin, _MOST_WORK)
        if closure is None:
            _too_ambiguous()
        predicted, items, may_end, work = closure
        self._meter.add(work // 2)
        reading = _undominated([*dict.fromkeys([*threads, *predicted])])
        return State(reading, [*dict.fromkeys(items)], kernel, may_end, self._costs)


def _too_ambiguous() -> NoReturn:
    raise GrammarError(
        f"the grammar is too ambiguous: over {_MOST_WORK} readings of a text at once"
    )


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
