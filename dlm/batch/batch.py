"""Many rows on one engine: each is answered, whatever is wrong with it or with others.

Rows to prompts, all under one constraint, and results to lines of values.

Answers on disk, and which rows have one.

A file of JSON, a line each, that goes on where a run of the same settings was stopped.

A run that is killed leaves whole lines and at most one that is cut off. The next run takes that one
away and goes on, if its settings are the same.
"""

import fcntl
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from io import UnsupportedOperation
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Protocol

from dlm.batch.rows import InputRow, Template
from dlm.errors import DlmError, RequestError, failure
from dlm.events import Event, Failed, Finished
from dlm.grammar import Spec, Tools
from dlm.request import Request, Result

if TYPE_CHECKING:
    from dlm.engine import Engine


AnswerRow = dict[str, Any]  # JSON; its "error" is None where the row succeeded
Ended = tuple[int, AnswerRow]  # with the number of the row


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What a row asks for."""

    requests: Sequence[Request]
    answer: Callable[[Sequence[Result]], AnswerRow]  # takes a result for each request


class AnswerForm(Protocol):
    """What rows mean, and how their answers are written. It travels to other processes."""

    def job(self, row: InputRow, engine: "Engine") -> Job:
        """Raises `DlmError` for a row that cannot be served."""
        ...

    def refusal(self, row: InputRow, error: DlmError) -> AnswerRow:
        """The answer to a row that has failed."""
        ...

    def row_of(self, answer: AnswerRow) -> int:
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

    def add(self, row: InputRow) -> None: ...

    def step(self) -> list[Ended]:
        """Goes on for a while, and tells of the rows that have ended."""
        ...

    def close(self) -> None: ...


def answers(rows: Iterable[InputRow], runner: Runner) -> Iterator[Ended]:
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

    row: InputRow
    job: Job
    numbers: list[int]  # of the engine's requests, in the job's order
    results: dict[int, Result] = field(default_factory=dict)  # by those numbers


class Batch:
    """The `Runner` that owns an engine, which nobody else steps."""

    def __init__(self, engine: "Engine", form: AnswerForm, ahead: int):
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

    def _refuse(self, row: InputRow, error: DlmError) -> None:
        self._ended.append((row.number, self._form.refusal(row, error)))

    def _end(self, running: _Running) -> None:
        self._rows -= 1
        for number in running.numbers:
            del self._running[number]
            if number not in running.results:
                self._engine.cancel(number)


def take(rows: "SimpleQueue[InputRow | None]", batch: Batch) -> bool:
    """All rows that have come, and at least one unless there is work. False: no more will come."""
    with suppress(Empty):
        while (row := rows.get(block=not batch.busy)) is not None:
            batch.add(row)
        return False
    return True


_SEEDS = 2**63


def asked(system: str | None, prompt: str) -> dict[str, Any]:
    """The arguments of a `Request` for a prompt, with a `system` message before it or without."""
    if system is None or not prompt.strip():  # an empty prompt is refused by its name
        return {"prompt": prompt}
    first = {"role": "system", "content": system}
    return {"messages": [first, {"role": "user", "content": prompt}]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Extraction:
    """The `AnswerForm` of rows that are texts.

    Each row has the seed of its number, so that its answer does not depend on when it runs.
    """

    template: Template
    constraint: Spec | None = None  # None: free text
    max_tokens: int = 256
    seed: int = 0  # of the first row
    system: str | None = None  # a message before each prompt
    temperature: float = 1.0
    cuts: Mapping[str, Any] = field(default_factory=dict)  # top_k, top_p, min_p
    id: str | None = None  # the column of the rows' own names

    def __post_init__(self) -> None:
        """Raises `RequestError` for what no row could be answered with."""
        self._request("a prompt", 0)

    def job(self, row: InputRow, engine: "Engine") -> Job:
        request = self._request(self.template.fill(row.fields), row.number)
        return Job(requests=[request], answer=lambda results: self._answer(row, results))

    def refusal(self, row: InputRow, error: DlmError) -> AnswerRow:
        said = {"value": None, "text": None, "finish_reason": None, "tokens": None}
        return self._named(row) | said | {"error": str(error)}

    def row_of(self, answer: AnswerRow) -> int:
        return int(answer["row"])

    def _request(self, prompt: str, number: int) -> Request:
        return Request(
            **asked(self.system, prompt),
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
        if isinstance(self.constraint, Tools):  # the calls: what else was said is the text
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


class LinesError(DlmError):
    """A file that another run writes, or has written with other settings."""


class Lines:
    """A file that nobody else writes at the time."""

    def __init__(self, path: Path, settings: dict[str, Any], take: Callable[[Any], None]):
        """The settings are in a file beside it, `.settings.json` behind its name. `take` is given
        what the file's lines say; what is none of a run, it refuses as a `dict` or `int` would.

        Raises `LinesError`, and `OSError`, which names the file, where it cannot write.
        """
        self._path, self._take = path, take
        self._settings = path.with_name(f"{path.name}.settings.json")
        try:
            self._file = path.open("a+b")
        except UnsupportedOperation as error:
            raise LinesError(f"{path} is a pipe or a terminal: it takes a file") from error
        try:
            with self._named():
                self._resume(settings)
        except BaseException:
            self._file.close()
            raise

    def write(self, value: Any) -> None:
        """It is in the file when this returns."""
        with self._named():
            self._file.write(_line(value))
            self._file.flush()

    def close(self) -> None:
        with self._named():
            self._file.close()

    @contextmanager
    def _named(self) -> Iterator[None]:
        """An error of the system says which file it is about."""
        try:
            yield
        except OSError as error:
            name = error.filename or str(self._path)
            raise OSError(error.errno, error.strerror, name) from error

    def _resume(self, settings: dict[str, Any]) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # given up by whatever ends it
        except BlockingIOError as error:
            raise LinesError(f"another run writes {self._path}: wait, or take another") from error
        if self._file.tell():
            self._compare(settings)
            self._read()
        else:
            new = self._settings.with_suffix(".new")
            new.write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
            new.replace(self._settings)

    def _compare(self, settings: dict[str, Any]) -> None:
        try:
            before = {} | json.loads(self._settings.read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError, TypeError) as error:
            raise LinesError(
                f"{self._path} is there, without the settings of a run in {self._settings.name}: "
                "take another file"
            ) from error
        for name in before | settings:
            was, now = before.get(name), settings.get(name)
            if was != now:
                raise LinesError(
                    f"{self._path} has answers with {name} {was!r}, not {now!r}: "
                    "take another file, or remove this one"
                )

    def _read(self) -> None:
        """The lines that are there; one that a kill cut short goes."""
        self._file.seek(0)
        end = 0
        for number, line in enumerate(self._file, 1):
            if not line.endswith(b"\n"):
                break
            try:
                self._take(json.loads(line))
            except (ValueError, TypeError, LookupError) as error:
                raise LinesError(f"{self._path}, line {number}: no answer of a run") from error
            end += len(line)
        self._file.truncate(end)
        self._file.seek(end)


def _line(value: Any) -> bytes:
    """Half a surrogate pair, which JSON may hold and UTF-8 may not, is written as JSON's escape;
    dates and other names of rows that JSON does not know are written as texts."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text.encode("utf-8", "backslashreplace") + b"\n"


class Output:
    """A file of answers, which nobody else writes at the time."""

    def __init__(self, path: Path, settings: dict[str, Any], form: AnswerForm):
        """Raises `LinesError` where answers of other settings are there, and `OSError`."""
        self.done, self.failed = set[int](), 0
        self._form = form
        self._lines = Lines(path, settings, self._count)

    def write(self, answer: AnswerRow) -> None:
        """It is in the file when this returns."""
        self._lines.write(answer)
        self._count(answer)

    def close(self) -> None:
        self._lines.close()

    def _count(self, answer: AnswerRow) -> None:
        self.done.add(self._form.row_of(answer))
        self.failed += answer["error"] is not None
