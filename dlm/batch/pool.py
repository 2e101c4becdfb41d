"""Batches of rows on several processes, each with its own engine. A process that ends loses no
row."""

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

StartBatch = Callable[[int], Batch]  # takes the worker's index; it is pickled to its process
_MOST_LOSSES = 3  # processes that may end with a row, or before their models are loaded
_EXIT_SECONDS = 10.0  # seconds for an idle process to end


@dataclass(eq=False, slots=True)
class _Worker:
    place: int
    process: SpawnProcess
    pipe: connection.Connection
    ready: bool = False  # whether its model is loaded
    held: dict[int, InputRow] = field(default_factory=dict)  # by number


class Pool:
    """Runner with several processes. Rows of a process that ended are given to others, at most
    twice. Any of them may have ended it, so each then gets a process of its own: the others
    succeed."""

    def __init__(self, start: StartBatch, count: int, form: AnswerForm, ahead: int):
        """`start` loads an engine in each of `count` processes, which take up to `ahead` rows."""
        self._start, self._count, self._form, self._ahead = start, count, form, ahead
        self._workers: list[_Worker] = []
        self._new: deque[InputRow] = deque()
        self._suspects: deque[InputRow] = deque()  # rows whose process ended
        self._losses: dict[int, int] = {}  # processes that ended with a row, by row number
        self._unready = 0  # processes that ended before they were ready, since one was
        self._answered: list[Ended] = []

    @property
    def has_capacity(self) -> bool:
        return self._under_way < self._count * self._ahead

    @property
    def busy(self) -> bool:
        return self._under_way > 0

    def add(self, row: InputRow) -> None:
        self._new.append(row)

    def step(self) -> list[Ended]:
        """Wait for an answer, or for the end of a process. Raises `DlmError` if a process cannot
        load its model."""
        self._start_workers()
        self._distribute()
        pipes = [worker.pipe for worker in self._workers]
        readable = connection.wait(pipes, 0 if self._answered or not pipes else None)
        for worker in [worker for worker in self._workers if worker.pipe in readable]:
            self._receive_answer(worker)
        ended, self._answered = self._answered, []
        return ended

    def close(self) -> None:
        for worker in self._workers:
            worker.pipe.close()
        for worker in self._workers:
            worker.process.join(_EXIT_SECONDS)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
        self._workers = []

    @property
    def _under_way(self) -> int:
        held = sum(len(worker.held) for worker in self._workers)
        return held + len(self._new) + len(self._suspects) + len(self._answered)

    def _start_workers(self) -> None:
        """Start as many processes as there are rows for."""
        free = sorted(set(range(self._count)) - {worker.place for worker in self._workers})
        idle = sum(not worker.held for worker in self._workers)
        for place in free[: max(0, len(self._new) + len(self._suspects) - idle)]:
            context = get_context("spawn")
            ours, theirs = context.Pipe()
            process = context.Process(target=_work, args=(theirs, self._start, place))
            process.start()
            theirs.close()  # so that the pipe ends with the process
            self._workers.append(_Worker(place, process, ours))

    def _distribute(self) -> None:
        ready = [worker for worker in self._workers if worker.ready]
        for worker in ready:
            if self._suspects and not worker.held:
                self._send(worker, self._suspects.popleft())
        if self._suspects:
            return  # so that processes run out of rows
        takers = [worker for worker in ready if not worker.held.keys() & self._losses.keys()]
        while self._new and takers:
            worker = min(takers, key=lambda taker: len(taker.held))
            if len(worker.held) >= self._ahead:
                return
            self._send(worker, self._new.popleft())

    def _send(self, worker: _Worker, row: InputRow) -> None:
        worker.held[row.number] = row
        with suppress(OSError):  # it has ended, as its pipe will show
            worker.pipe.send(row)

    def _receive_answer(self, worker: _Worker) -> None:
        try:
            message = worker.pipe.recv()
        except (EOFError, OSError, pickle.UnpicklingError):
            self._remove(worker)
            return
        if worker.ready:
            number, answer = message
            del worker.held[number]
            self._losses.pop(number, None)
            self._answered.append((number, answer))
        elif message is None:
            worker.ready, self._unready = True, 0
        else:
            raise DlmError(message)

    def _remove(self, worker: _Worker) -> None:
        self._workers.remove(worker)
        worker.pipe.close()
        worker.process.join(_EXIT_SECONDS)
        if worker.process.is_alive():  # it has closed its pipe but still runs
            worker.process.kill()
            worker.process.join()
        code = worker.process.exitcode
        self._unready += not worker.ready
        if self._unready >= _MOST_LOSSES:
            raise DlmError(
                f"{self._unready} workers ended before their models were loaded, "
                f"the last one with {code}"
            )
        for number, row in worker.held.items():
            losses = self._losses[number] = self._losses.get(number, 0) + 1
            if losses < _MOST_LOSSES:
                self._suspects.append(row)
            else:
                del self._losses[number]
                error = DlmError(f"{losses} workers ended with this row, the last one with {code}")
                self._answered.append((number, self._form.refusal(row, error)))


def _work(pipe: connection.Connection, start: StartBatch, place: int) -> None:
    """Run a worker's process, which ends when its pipe does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    try:
        batch = start(place)
    except Exception as error:
        name = "" if isinstance(error, DlmError) else f"{type(error).__name__}: "
        if not isinstance(error, DlmError | OSError):
            _LOG.error("a worker could not start", exc_info=error)
        pipe.send(f"{name}{error}")
        return
    rows: SimpleQueue[InputRow | None] = SimpleQueue()
    # A thread reads, so that sending a row never waits for the engine
    Thread(target=_receive, args=(pipe, rows), daemon=True).start()
    with suppress(OSError):  # the parent has ended
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
