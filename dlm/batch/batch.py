"""Batches of rows on one engine, and the file of their answers.

Each row is answered, even if it is invalid or others fail. A `Batch` owns an engine; it knows no
other process. An `AnswerForm` makes requests of rows and answers of results; `Extraction` is the
one of rows that are texts.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from dlm.batch.rows import InputRow, Lines, Template
from dlm.errors import DlmError, RequestError, failure
from dlm.events import Event, Failed, Finished
from dlm.grammar import Spec, Tools
from dlm.request import Request, Result

if TYPE_CHECKING:
    from dlm.engine import Engine

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


def answers(rows: Iterable[InputRow], batch: Batch) -> Iterator[Ended]:
    """Yield the answer to each row, in the order in which they end; rows are read as capacity
    allows."""
    unread = iter(rows)
    exhausted = False
    while not exhausted or batch.busy:
        while not exhausted and batch.has_capacity:
            row = next(unread, None)
            if row is None:
                exhausted = True
            else:
                batch.add(row)
        yield from batch.step()


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
    temperature: float | None = None
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
        self.first_error: tuple[int, str] | None = None  # the first row with one, and its error
        self._form = form
        self._lines = Lines(path, settings, self._count)

    def write(self, answer: AnswerRow) -> None:
        """Write and flush."""
        self._lines.write(answer)
        self._count(answer)

    def close(self) -> None:
        self._lines.close()

    def abandon(self) -> None:
        """Remove the files if this run made them and has written nothing."""
        self._lines.abandon()

    def sort(self) -> None:
        """Bring the lines into the order of the rows."""
        self._lines.sort(self._form.row_of)

    def in_order(self) -> Iterator[AnswerRow]:
        """Yield the answers in the order of the rows."""
        return map(json.loads, self._lines.in_order(self._form.row_of))

    def _count(self, answer: AnswerRow) -> None:
        row, error = self._form.row_of(answer), answer["error"]
        self.done.add(row)
        if error is None:
            return
        self.failed += 1
        if self.first_error is None or row < self.first_error[0]:
            message = error["message"] if isinstance(error, dict) else error
            self.first_error = row, str(message)
