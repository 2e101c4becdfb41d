"""Scheduler of requests, which wait for their grammars, then for slots. Knows no model and no
canvas."""

from collections import Counter, deque
from collections.abc import Callable, Iterable
from concurrent import futures
from contextlib import suppress
from dataclasses import dataclass

from dlm.errors import DlmError, RequestError, failure
from dlm.events import Failed
from dlm.grammar import BudgetError, Compiled, CrashError, GrammarError, Task, Unfinished
from dlm.sequence import Sequence

Build = Callable[[Sequence, Compiled | None], None]
_NAP = 0.02  # seconds to wait for a compiler when there is nothing else to do


@dataclass(slots=True)
class _Waiting:
    """Waiting request, or decision, whose questions get slots one by one."""

    number: int
    sequences: deque[Sequence]  # those without slots
    compiling: Task | None  # None: without a constraint
    decides: bool
    client: str  # its owner
    built: bool = False  # whether it has its constraint

    @property
    def ready(self) -> bool:
        return self.compiling is None or self.compiling.done()


class Scheduler:
    """Scheduler that gives slots to requests with compiled grammars. Clients take turns; the
    requests of one client are served in their order. Decisions, which may have hundreds of
    questions, leave slots to requests."""

    def __init__(
        self,
        slots: int,
        build: Build,
        fits: Callable[[Sequence], bool],
        begin: Callable[[int, Sequence], None],
    ):
        """`build` gives a sequence its constraint, or raises `Unfinished` to be called again. A
        sequence that `fits` the memory gets a slot, in which `begin` starts it."""
        self.running: dict[int, Sequence] = {}  # by slot
        self._free, self._half = list(range(slots)), -(-slots // 2)
        self._waiting: list[_Waiting] = []
        self._turns: dict[str, None] = {}  # clients with waiting requests, the next one first
        self._reserved = 0  # slots for clients that have none
        self._passes = 0
        self._build, self._fits, self._begin = build, fits, begin

    def __len__(self) -> int:
        return len(self.running) + self.waiting

    @property
    def waiting(self) -> int:
        """Number of requests without a slot, and of decisions with questions that have none."""
        return len(self._waiting)

    def add(self, sequences: Iterable[Sequence], compiling: Task | None, client: str = "") -> None:
        """Queue the sequence of a request, or the questions of a decision, of `client`."""
        queue = deque(sequences)
        for sequence in queue:
            sequence.client = client
        decides = queue[0].question is not None
        self._waiting.append(_Waiting(queue[0].number, queue, compiling, decides, client))
        self._turns.setdefault(client)

    def reserve(self, slots: int) -> None:
        """Keep `slots` slots for clients that have none: no other client gets the last free
        ones."""
        self._reserved = slots

    def cancel(self, number: int) -> list[int]:
        """Return the slots in which a request runs. If it waits, it is dropped, and so is its
        compilation."""
        for one in self._waiting:
            if one.number == number and one.compiling is not None:
                one.compiling.leave()
        self._waiting = [one for one in self._waiting if one.number != number]
        self._forget_clients()
        return [slot for slot, s in self.running.items() if s.number == number]

    def prepare(self, number: int) -> None:
        """Wait until a request can run. Raises `DlmError` if it never can."""
        for one in self._waiting:
            while one.number == number and not one.built:
                with suppress(Unfinished):  # repeated until it is finished
                    self._prepare(one)

    def admit(self) -> list[Failed]:
        """Give free slots to requests that can run; returns those that never can.

        The next slot goes to the client with the fewest slots, and among equals to the one whose
        turn it is. If memory is missing for its request, no other request starts, so that it does
        not wait for ever. While requests wait that can run, decisions get half of the slots
        together, and requests go first.
        """
        failed: list[Failed] = []
        unbuilt = set[int]()
        shared = any(one.ready and not one.decides for one in self._waiting)
        try:
            while self._free and (one := self._next(shared, unbuilt)) is not None:
                try:
                    if not self._fits(one.sequences[0]):
                        break
                    self._start(one)
                except Unfinished:
                    unbuilt.add(one.number)  # building takes more than this step: it keeps waiting
                except DlmError as error:
                    failed.append(Failed(request=one.number, error=failure(error)))
                    one.sequences.clear()
        finally:
            self._waiting = [one for one in self._waiting if one.sequences]
            self._forget_clients()
        return failed

    def _next(self, shared: bool, unbuilt: set[int]) -> _Waiting | None:
        """Return the request that gets the next free slot. With `shared`, decisions leave half of
        the slots. Requests in `unbuilt` are left out."""
        first = dict[str, _Waiting]()  # by client
        for one in self._waiting:
            if len(first) == len(self._turns):
                break
            if one.client in first or one.number in unbuilt or not (one.sequences and one.ready):
                continue
            if not (one.decides and shared and self._deciding >= self._half):
                first[one.client] = one
        slots_of = Counter(sequence.client for sequence in self.running.values())
        reserved_only = len(self._free) <= self._reserved  # for clients that have no slot
        eligible = [
            client
            for client in self._turns
            if client in first and not (reserved_only and slots_of[client])
        ]
        return first[min(eligible, key=slots_of.__getitem__)] if eligible else None

    def share(self) -> None:
        """Choose the requests of the next pass: the same number for each client. That number is the
        fewest that a client has running. Those whose last pass is the longest ago come first."""
        by_client = dict[str, list[Sequence]]()
        for sequence in self.running.values():
            sequence.paused = False
            if sequence.ready:
                by_client.setdefault(sequence.client, []).append(sequence)
        fewest = min(map(len, by_client.values()), default=0)
        self._passes += 1
        for sequences in by_client.values():
            sequences.sort(key=lambda one: (one.last_pass, one.number))
            for i, sequence in enumerate(sequences):
                sequence.paused = i >= fewest
                if not sequence.paused:
                    sequence.last_pass = self._passes

    @property
    def _deciding(self) -> int:
        """Number of slots that questions have."""
        return sum(sequence.question is not None for sequence in self.running.values())

    def _start(self, one: _Waiting) -> None:
        """Give a free slot to the next sequence of a request."""
        self._prepare(one)
        slot, sequence = self._free[-1], one.sequences[0]
        self._begin(slot, sequence)
        self._free.pop()
        self.running[slot] = one.sequences.popleft()
        del self._turns[one.client]  # moved to the end if more of it waits
        self._turns[one.client] = None

    def _forget_clients(self) -> None:
        """Drop the turns of clients that wait for nothing."""
        waiting = {one.client for one in self._waiting}
        self._turns = {client: None for client in self._turns if client in waiting}

    def leave(self, slot: int) -> Sequence:
        self._free.append(slot)
        return self.running.pop(slot)

    def nap(self) -> None:
        """Wait a moment for a compilation or a check."""
        pending = [one.compiling for one in self._waiting] + [
            sequence.checking for sequence in self.running.values()
        ]
        undone = [one for one in pending if one is not None and not one.done()]
        futures.wait(undone, _NAP, futures.FIRST_COMPLETED)

    def _prepare(self, one: _Waiting) -> None:
        if one.built:
            return
        try:
            compiled = None if one.compiling is None else one.compiling.result()
            for sequence in one.sequences:
                self._build(sequence, compiled)
            one.built = True
        except Unfinished:
            raise
        except BudgetError as error:
            max_tokens = one.sequences[0].request.max_tokens
            message = f"max_tokens is {max_tokens}: {error}"
            raise RequestError(message, field="max_tokens") from error
        except CrashError as error:
            raise failure(error) from error
        except GrammarError as error:
            raise RequestError(str(error)) from error
        except Exception as error:
            raise failure(error) from error
