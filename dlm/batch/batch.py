"""Batches of rows on one engine or on several processes, and the file of their answers.

Each row is answered, even if it is invalid or others fail. A `Batch` owns an engine. A `Pool` has
processes with a batch each, and one that ends loses no row. An `AnswerForm` makes requests of rows
and answers of results; `Extraction` is the one of rows that are texts.
"""

import logging
import pickle
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import connection, get_context
from multiprocessing.context import SpawnProcess
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Any, Protocol

from dlm.batch.rows import InputRow, Lines, Template
from dlm.errors import DlmError, RequestError, failure
from dlm.events import Event, Failed, Finished
from dlm.grammar import Spec, Tools
from dlm.request import Request, Result

if TYPE_CHECKING:
    from dlm.engine import Engine

_LOG = logging.getLogger("dlm")

AnswerRow = dict[str, Any]  # JSON; "error" is None if the row succeeded
Ended = tuple[int, AnswerRow]  # the row's number and its answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Requests of a row."""

    requests: Sequence[Request]
    answer: Callable[[Sequence[Result]], AnswerRow]  # makes the answer of a result for each request


class AnswerForm(Protocol):
    """Form of rows and answers. It is pickled to other processes."""

    def job(self, row: InputRow, engine: "Engine") -> Job:
        """Return the requests of a row. Raises `DlmError` if it cannot be served."""
        ...

    def refusal(self, row: InputRow, error: DlmError) -> AnswerRow:
        """Return the answer to a row that failed."""
        ...

    def row_of(self, answer: AnswerRow) -> int:
        """Return the row's number. Raises `LookupError` or `ValueError` if `answer` is none."""
        ...


@dataclass(slots=True)
class _Running:
    """Row that is being answered."""

    row: InputRow
    job: Job
    numbers: list[int]  # of the engine's requests, in the job's order
    results: dict[int, Result] = field(default_factory=dict)  # by request number


class Batch:
    """Runner that owns an engine; nothing else steps it."""

    def __init__(self, engine: "Engine", form: AnswerForm, ahead: int):
        """`ahead` is the number of rows at a time: the grammars of those beyond the engine's slots
        are compiled while others run."""
        self._engine, self._form, self._ahead = engine, form, ahead
        self._running: dict[int, _Running] = {}  # by request number; a row may have several
        self._row_count = 0  # rows that are running
        self._answered: list[Ended] = []

    @property
    def has_capacity(self) -> bool:
        """Whether it takes another row."""
        return self._row_count + len(self._answered) < self._ahead

    @property
    def busy(self) -> bool:
        """Whether a row that was added has no answer yet."""
        return bool(self._running or self._answered)

    def add(self, row: InputRow) -> None:
        numbers = list[int]()
        try:
            job = self._form.job(row, self._engine)
            for request in job.requests:
                numbers.append(self._engine.add(request))
        except Exception as error:
            for number in numbers:
                self._engine.cancel(number)
            self._refuse(row, failure(error))
            return
        self._running |= dict.fromkeys(numbers, _Running(row, job, numbers))
        self._row_count += 1

    def step(self) -> list[Ended]:
        """Run for a while, and return the answers to rows that ended."""
        for event in self._engine.step() if self._running else ():
            self._take(event)
        ended, self._answered = self._answered, []
        return ended

    def close(self) -> None:
        self._engine.close()

    def _take(self, event: Event) -> None:
        running = self._running.get(event.request)
        if running is None:
            return
        if isinstance(event, Failed):
            self._end(running)
            self._refuse(running.row, event.error)
        elif isinstance(event, Finished):
            running.results[event.request] = event.result
            if len(running.results) == len(running.numbers):
                self._end(running)
                results = [running.results[number] for number in running.numbers]
                try:
                    self._answered.append((running.row.number, running.job.answer(results)))
                except Exception as error:
                    self._refuse(running.row, failure(error))

    def _refuse(self, row: InputRow, error: DlmError) -> None:
        self._answered.append((row.number, self._form.refusal(row, error)))

    def _end(self, running: _Running) -> None:
        self._row_count -= 1
        for number in running.numbers:
            del self._running[number]
            if number not in running.results:
                self._engine.cancel(number)


def take(rows: "SimpleQueue[InputRow | None]", batch: Batch) -> bool:
    """Add all rows in the queue, and wait for one if the batch is idle. False: no more will
    come."""
    with suppress(Empty):
        while (row := rows.get(block=not batch.busy)) is not None:
            batch.add(row)
        return False
    return True


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

    def end(self) -> None:
        """Close the pipe, at which the process ends; after a while it is killed."""
        self.pipe.close()
        self.process.join(_EXIT_SECONDS)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


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
            worker.pipe.close()  # so that all of them end at the same time
        for worker in self._workers:
            worker.end()
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
        worker.end()
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


Runner = Batch | Pool


def answers(rows: Iterable[InputRow], runner: Runner) -> Iterator[Ended]:
    """Yield the answer to each row, in the order in which they end; rows are read as capacity
    allows."""
    left = iter(rows)
    more = True
    while more or runner.busy:
        while more and runner.has_capacity:
            row = next(left, None)
            if row is None:
                more = False
            else:
                runner.add(row)
        yield from runner.step()


_SEEDS = 2**63


def prompt_arguments(system: str | None, prompt: str) -> dict[str, Any]:
    """Return the arguments of a `Request` for a prompt, after a `system` message if there is
    one."""
    if system is None or not prompt.strip():  # for an empty prompt the error names `prompt`
        return {"prompt": prompt}
    first = {"role": "system", "content": system}
    return {"messages": [first, {"role": "user", "content": prompt}]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Extraction:
    """Answer form of rows that are texts. The seed of each row follows from its number, so its
    answer does not depend on when it runs."""

    template: Template
    constraint: Spec | None = None  # None: free text
    max_tokens: int = 256
    seed: int = 0  # of the first row
    system: str | None = None  # a message before each prompt
    temperature: float = 1.0
    cuts: Mapping[str, Any] = field(default_factory=dict)  # top_k, top_p, min_p
    id: str | None = None  # column with the rows' own names

    def __post_init__(self) -> None:
        """Raise `RequestError` for settings that are invalid for every row."""
        self._request("a prompt", 0)

    def job(self, row: InputRow, engine: "Engine") -> Job:
        request = self._request(self.template.fill(row.fields), row.number)
        return Job(requests=[request], answer=lambda results: self._answer(row, results))

    def refusal(self, row: InputRow, error: DlmError) -> AnswerRow:
        answer = {"value": None, "text": None, "finish_reason": None, "tokens": None}
        return self._named(row) | answer | {"error": str(error)}

    def row_of(self, answer: AnswerRow) -> int:
        return int(answer["row"])

    def _request(self, prompt: str, number: int) -> Request:
        return Request(
            **prompt_arguments(self.system, prompt),
            constraint=self.constraint,
            tools=getattr(self.constraint, "tools", ()),
            max_tokens=self.max_tokens,
            seed=(self.seed + number) % _SEEDS,
            temperature=self.temperature,
            **self.cuts,
        )

    def _answer(self, row: InputRow, results: Sequence[Result]) -> AnswerRow:
        (result,) = results
        value = result.parsed
        if isinstance(self.constraint, Tools):  # the value is the calls, the text the rest
            calls = result.tool_calls
            value = [{"name": call.name, "arguments": call.arguments} for call in calls] or None
        return self._named(row) | {
            "value": value,
            "text": result.text,
            "finish_reason": result.finish_reason,
            "tokens": result.stats.tokens,
            "error": None,
        }

    def _named(self, row: InputRow) -> AnswerRow:
        if self.id is None:
            return {"row": row.number}
        try:
            id = row.fields.get(self.id)
        except RequestError:
            id = None
        return {"row": row.number, "id": id}


class Output:
    """File of answers that no other process writes at the same time."""

    def __init__(self, path: Path, settings: dict[str, Any], form: AnswerForm):
        """Raise `LinesError` if it holds answers of other settings, and `OSError`."""
        self.done, self.failed = set[int](), 0
        self._form = form
        self._lines = Lines(path, settings, self._count)

    def write(self, answer: AnswerRow) -> None:
        """Write and flush."""
        self._lines.write(answer)
        self._count(answer)

    def close(self) -> None:
        self._lines.close()

    def _count(self, answer: AnswerRow) -> None:
        self.done.add(self._form.row_of(answer))
        self.failed += answer["error"] is not None
