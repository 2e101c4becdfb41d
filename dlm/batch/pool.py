"""Rows on several processes, each with an engine of its own. One that ends costs no row."""

import logging
import pickle
import signal
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import connection, get_context
from multiprocessing.context import SpawnProcess
from queue import SimpleQueue
from threading import Thread

from dlm.batch.batch import AnswerForm, Batch, Ended, take
from dlm.batch.rows import InputRow
from dlm.errors import DlmError

_LOG = logging.getLogger("dlm")

StartBatch = Callable[[int], Batch]  # takes the worker's place, 0 up; it travels to its process
_CHANCES = 3  # processes that a row may be on when they end, or that may end without one
_PARTING = 10.0  # seconds for a process to end in, once there is nothing for it to do


@dataclass(eq=False, slots=True)
class _Worker:
    place: int
    process: SpawnProcess
    pipe: connection.Connection
    ready: bool = False  # its model is loaded
    held: dict[int, InputRow] = field(default_factory=dict)  # by number


class Pool:
    """The `Runner` of several processes.

    Rows of a process that ended are given to others, at most twice. Any of them may be what ended
    it, so each is then alone with its process: the others succeed.
    """

    def __init__(self, start: StartBatch, count: int, form: AnswerForm, ahead: int):
        """`start` loads an engine in each of `count` processes, which have up to `ahead` rows."""
        self._start, self._count, self._form, self._ahead = start, count, form, ahead
        self._workers: list[_Worker] = []
        self._fresh: deque[InputRow] = deque()
        self._suspects: deque[InputRow] = deque()  # whose process ended
        self._losses: dict[int, int] = {}  # processes that ended, by the number of a row they had
        self._unready = 0  # processes that ended before they were ready, since the last that was
        self._ended: list[Ended] = []

    @property
    def room(self) -> bool:
        return self._under_way < self._count * self._ahead

    @property
    def busy(self) -> bool:
        return self._under_way > 0

    def add(self, row: InputRow) -> None:
        self._fresh.append(row)

    def step(self) -> list[Ended]:
        """Waits for an answer, or for the news of a process. Raises `DlmError` where a process
        cannot load its model."""
        self._hire()
        self._deal()
        pipes = [worker.pipe for worker in self._workers]
        told = connection.wait(pipes, 0 if self._ended or not pipes else None)
        for worker in [worker for worker in self._workers if worker.pipe in told]:
            self._hear(worker)
        ended, self._ended = self._ended, []
        return ended

    def close(self) -> None:
        for worker in self._workers:
            worker.pipe.close()
        for worker in self._workers:
            worker.process.join(_PARTING)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
        self._workers = []

    @property
    def _under_way(self) -> int:
        held = sum(len(worker.held) for worker in self._workers)
        return held + len(self._fresh) + len(self._suspects) + len(self._ended)

    def _hire(self) -> None:
        """As many processes as there is work for."""
        free = sorted(set(range(self._count)) - {worker.place for worker in self._workers})
        idle = sum(not worker.held for worker in self._workers)
        for place in free[: max(0, len(self._fresh) + len(self._suspects) - idle)]:
            context = get_context("spawn")
            ours, theirs = context.Pipe()
            process = context.Process(target=_work, args=(theirs, self._start, place))
            process.start()
            theirs.close()  # so that its end is the pipe's
            self._workers.append(_Worker(place, process, ours))

    def _deal(self) -> None:
        ready = [worker for worker in self._workers if worker.ready]
        for worker in ready:
            if self._suspects and not worker.held:
                self._give(worker, self._suspects.popleft())
        if self._suspects:
            return  # so that processes come to be without rows
        takers = [worker for worker in ready if not worker.held.keys() & self._losses.keys()]
        while self._fresh and takers:
            worker = min(takers, key=lambda taker: len(taker.held))
            if len(worker.held) >= self._ahead:
                return
            self._give(worker, self._fresh.popleft())

    def _give(self, worker: _Worker, row: InputRow) -> None:
        worker.held[row.number] = row
        with suppress(OSError):  # it has ended, as its pipe will say
            worker.pipe.send(row)

    def _hear(self, worker: _Worker) -> None:
        try:
            said = worker.pipe.recv()
        except (EOFError, OSError, pickle.UnpicklingError):
            self._lose(worker)
            return
        if worker.ready:
            number, answer = said
            del worker.held[number]
            self._losses.pop(number, None)
            self._ended.append((number, answer))
        elif said is None:
            worker.ready, self._unready = True, 0
        else:
            raise DlmError(said)

    def _lose(self, worker: _Worker) -> None:
        self._workers.remove(worker)
        worker.pipe.close()
        worker.process.join(_PARTING)
        if worker.process.is_alive():  # it has closed its pipe, and goes on
            worker.process.kill()
            worker.process.join()
        code = worker.process.exitcode
        self._unready += not worker.ready
        if self._unready >= _CHANCES:
            raise DlmError(
                f"{self._unready} workers ended before their models were loaded, "
                f"the last one with {code}"
            )
        for number, row in worker.held.items():
            losses = self._losses[number] = self._losses.get(number, 0) + 1
            if losses < _CHANCES:
                self._suspects.append(row)
            else:
                del self._losses[number]
                error = DlmError(f"{losses} workers ended with this row, the last one with {code}")
                self._ended.append((number, self._form.refusal(row, error)))


def _work(pipe: connection.Connection, start: StartBatch, place: int) -> None:
    """A worker's process. It ends when its pipe does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for its parent
    try:
        batch = start(place)
    except Exception as error:
        name = "" if isinstance(error, DlmError) else f"{type(error).__name__}: "
        if not isinstance(error, DlmError | OSError):
            _LOG.error("a worker could not start", exc_info=error)
        pipe.send(f"{name}{error}")
        return
    rows: SimpleQueue[InputRow | None] = SimpleQueue()
    # A thread reads, so that sending a row never waits for the engine.
    Thread(target=_receive, args=(pipe, rows), daemon=True).start()
    with suppress(OSError):  # nobody is left to take an answer
        pipe.send(None)
        while take(rows, batch):
            for ended in batch.step():
                pipe.send(ended)
    batch.close()


def _receive(pipe: connection.Connection, rows: "SimpleQueue[InputRow | None]") -> None:
    try:
        while True:
            rows.put(pipe.recv())
    except (EOFError, OSError):
        rows.put(None)
