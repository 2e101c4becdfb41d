"""Many rows on one engine: each is answered, whatever is wrong with it or with others."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Protocol

from dlm.batch.rows import Row
from dlm.errors import DlmError, failure
from dlm.events import Event, Failed, Finished
from dlm.request import Request, Result

if TYPE_CHECKING:
    from dlm.engine import Engine  # with torch, which takes seconds

Answer = dict[str, Any]  # JSON; its "error" is None where the row succeeded
Ended = tuple[int, Answer]  # with the number of the row


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What a row asks for."""

    requests: Sequence[Request]
    answer: Callable[[Sequence[Result]], Answer]  # takes a result for each request


class Form(Protocol):
    """What rows mean, and how their answers are written. It travels to other processes."""

    def job(self, row: Row, engine: "Engine") -> Job:
        """Raises `DlmError` for a row that cannot be served."""
        ...

    def refusal(self, row: Row, error: DlmError) -> Answer:
        """The answer to a row that has failed."""
        ...

    def row_of(self, answer: Answer) -> int:
        """The number of the row. Raises `LookupError` or `ValueError` for what is no answer."""
        ...


class Runner(Protocol):
    """Who answers rows: one engine, or several processes."""

    @property
    def room(self) -> bool:
        """It takes another row."""
        ...

    @property
    def busy(self) -> bool:
        """Some row that was added has no answer yet."""
        ...

    def add(self, row: Row) -> None: ...

    def step(self) -> list[Ended]:
        """Goes on for a while, and tells of the rows that have ended."""
        ...

    def close(self) -> None: ...


def answers(rows: Iterable[Row], runner: Runner) -> Iterator[Ended]:
    """An answer to each row, in the order in which they end. Rows are read as there is room."""
    left = iter(rows)
    more = True
    while more or runner.busy:
        while more and runner.room:
            row = next(left, None)
            if row is None:
                more = False
            else:
                runner.add(row)
        yield from runner.step()


@dataclass(slots=True)
class _Running:
    """A row that is being answered."""

    row: Row
    job: Job
    numbers: list[int]  # of the engine's requests, in the job's order
    results: dict[int, Result] = field(default_factory=dict)  # by those numbers


class Batch:
    """The `Runner` that owns an engine, which nobody else steps."""

    def __init__(self, engine: "Engine", form: Form, ahead: int):
        """So many rows are under way at once: those beyond the engine's slots have their grammars
        compiled while others run."""
        self._engine, self._form, self._ahead = engine, form, ahead
        self._running: dict[int, _Running] = {}  # by request; a row may have several
        self._rows = 0  # that are running
        self._ended: list[Ended] = []

    @property
    def room(self) -> bool:
        return self._rows + len(self._ended) < self._ahead

    @property
    def busy(self) -> bool:
        return bool(self._running or self._ended)

    def add(self, row: Row) -> None:
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
        self._rows += 1

    def step(self) -> list[Ended]:
        for event in self._engine.step() if self._running else ():
            self._take(event)
        ended, self._ended = self._ended, []
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
                    self._ended.append((running.row.number, running.job.answer(results)))
                except Exception as error:
                    self._refuse(running.row, failure(error))

    def _refuse(self, row: Row, error: DlmError) -> None:
        self._ended.append((row.number, self._form.refusal(row, error)))

    def _end(self, running: _Running) -> None:
        self._rows -= 1
        for number in running.numbers:
            del self._running[number]
            if number not in running.results:
                self._engine.cancel(number)


def take(rows: "SimpleQueue[Row | None]", batch: Batch) -> bool:
    """All rows that have come, and at least one unless there is work. False: no more will come."""
    with suppress(Empty):
        while (row := rows.get(block=not batch.busy)) is not None:
            batch.add(row)
        return False
    return True
