"""Scheduler of requests, which wait for their grammars, then for slots. Knows no model and no
canvas."""

from collections import Counter, deque
from collections.abc import Iterable
from concurrent import futures
from dataclasses import dataclass

from dlm.grammar import Task
from dlm.loop.interfaces import Cache
from dlm.sequence import Sequence

_NAP = 0.02  # seconds to wait for a compiler when there is nothing else to do


@dataclass(slots=True, eq=False)
class Waiting:
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

    @property
    def failed(self) -> bool:
        """Whether its grammar could not be compiled."""
        task = self.compiling
        return task is not None and task.done() and (task.cancelled() or bool(task.exception()))


class Scheduler:
    """Scheduler that gives slots, and memory for them, to requests with compiled grammars. Clients
    take turns; the requests of one client are served in their order. Decisions, which may have
    hundreds of questions, leave slots to requests.

    A round of admission is `begin_round`, then `next` until there is none. The caller makes each
    request's constraint, and reports how that went by `enter`, `defer` or `cancel`.
    """

    def __init__(self, slots: int, cache: Cache):
        self.running: dict[int, Sequence] = {}  # by slot
        self._free, self._half = list(range(slots)), -(-slots // 2)
        self._cache = cache
        self._waiting: list[Waiting] = []
        self._compiling: dict[int, Waiting] = {}  # by number, until they are seen to be compiled
        self._turns: dict[str, None] = {}  # clients with waiting requests, the next one first
        self._reserved = 0  # slots for clients that have none
        self._shared = False  # whether decisions leave half of the slots in this round
        self._deferred = set[int]()  # requests that get no slot in this round
        self._passes = 0

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
        waiting = Waiting(queue[0].number, queue, compiling, decides, client)
        self._waiting.append(waiting)
        if compiling is not None:
            self._compiling[waiting.number] = waiting
        self._turns.setdefault(client)

    def reserve(self, slots: int) -> None:
        """Keep `slots` slots for clients that have none: no other client gets the last free
        ones."""
        self._reserved = slots

    def cancel(self, number: int) -> None:
        """Drop a request, waiting or running, with its compilation or its check."""
        waiting = self.find(number)
        if waiting is not None:
            if waiting.compiling is not None:
                waiting.compiling.leave()
            self._drop(waiting)
        for slot in [slot for slot, s in self.running.items() if s.number == number]:
            self.leave(slot)

    def find(self, number: int) -> Waiting | None:
        """Return a request that waits; None if it does not."""
        return next((waiting for waiting in self._waiting if waiting.number == number), None)

    def begin_round(self) -> None:
        """Begin to give free slots to requests. While requests wait that can run, decisions get
        half of the slots together, and requests go first."""
        self._shared = any(waiting.ready and not waiting.decides for waiting in self._waiting)
        self._deferred.clear()

    def next(self) -> Waiting | None:
        """Return the request that gets the next free slot; None if none gets one in this round.
        Those whose grammars could not be compiled come before, since they end without a slot.

        It is one of the client with the fewest slots, and among equals of the one whose turn it is.
        If memory is missing for it, no other request starts, so that it does not wait for ever.
        """
        ready = [waiting for waiting in self._compiling.values() if waiting.ready]
        for waiting in ready:
            if waiting.failed:
                return waiting
            del self._compiling[waiting.number]
        waiting = self._chosen() if self._free else None
        if waiting is None or not self._cache.fits(waiting.sequences[0].most_tokens):
            return None
        return waiting

    def _chosen(self) -> Waiting | None:
        """Return the request that gets the next free slot, if there is memory for it."""
        oldest = dict[str, Waiting]()  # of those that may run, by client
        for waiting in self._waiting:
            if len(oldest) == len(self._turns):
                break
            if waiting.client in oldest or waiting.number in self._deferred or not waiting.ready:
                continue
            if not (waiting.decides and self._shared and self._deciding >= self._half):
                oldest[waiting.client] = waiting
        slots_of = Counter(sequence.client for sequence in self.running.values())
        reserved_only = len(self._free) <= self._reserved  # for clients that have no slot
        eligible = [
            client
            for client in self._turns
            if client in oldest and not (reserved_only and slots_of[client])
        ]
        return oldest[min(eligible, key=slots_of.__getitem__)] if eligible else None

    def enter(self, waiting: Waiting) -> tuple[int, Sequence]:
        """Give a free slot, and its memory, to the next sequence of a request; returns both. Does
        nothing if the cache raises an error."""
        self._cache.reserve(self._free[-1], waiting.sequences[0].most_tokens)
        slot, sequence = self._free.pop(), waiting.sequences.popleft()
        self.running[slot] = sequence
        del self._turns[waiting.client]  # moved to the end if more of it waits
        self._turns[waiting.client] = None
        if not waiting.sequences:
            self._drop(waiting)
        return slot, sequence

    def defer(self, waiting: Waiting) -> None:
        """Let a request wait for the next round."""
        self._deferred.add(waiting.number)

    def _drop(self, waiting: Waiting) -> None:
        """Remove a request from those that wait; its client loses its turn if it has no other."""
        self._waiting.remove(waiting)
        self._compiling.pop(waiting.number, None)
        clients = {other.client for other in self._waiting}
        self._turns = {client: None for client in self._turns if client in clients}

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
            sequences.sort(key=lambda sequence: (sequence.last_pass, sequence.number))
            for i, sequence in enumerate(sequences):
                sequence.paused = i >= fewest
                if not sequence.paused:
                    sequence.last_pass = self._passes

    @property
    def _deciding(self) -> int:
        """Number of slots that questions have."""
        return sum(sequence.question is not None for sequence in self.running.values())

    def leave(self, slot: int) -> None:
        """Free a slot and its memory; its sequence has ended."""
        self._cache.release(slot)
        self._free.append(slot)
        self.running.pop(slot).leave_checks()

    def nap(self) -> None:
        """Wait a moment for a compilation or a check."""
        pending = [waiting.compiling for waiting in self._waiting] + [
            sequence.checking for sequence in self.running.values()
        ]
        undone = [task for task in pending if task is not None and not task.done()]
        futures.wait(undone, _NAP, futures.FIRST_COMPLETED)
