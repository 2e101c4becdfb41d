"""Runs of tasks in a mode, some of them at once, and their records on disk."""

import csv
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import dlm
from dlm.batch.rows import Lines
from dlm.grammar import Spec
from evaluation.judging import Judgement, judged
from evaluation.modes import Mode
from evaluation.tasks import EvaluationTask

WARM = 3  # tasks that are run first and not counted, so that code and caches are warm


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One task in one mode. `exact`, `right`, `wanted` and `f1` are those of `Judgement`."""

    mode: str
    task_id: int
    group: str  # the task's
    valid: bool
    complete: bool  # ended by its own stop token
    called: bool  # it called a tool
    exact: bool | None
    right: int | None
    wanted: int | None
    f1: float | None
    calls: int  # forward passes, of all tries
    tokens: int  # of the answer, the stop among them
    tries: int
    seconds: float  # wall-clock since the run before it ended; with one slot without compilation
    model_seconds: float
    grammar_seconds: float
    first_seconds: float | None  # until the first committed text; None: none before the end
    repairs: int
    rollbacks: int
    pins: int
    drafted: int  # tokens of drafts that were checked
    drafts_kept: int
    text: str
    error: str | None = None  # why there is no answer


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationSettings:
    """Settings of the engines that run tasks."""

    model: str | None  # None: the built-in model
    kv: str
    slots: int  # tasks that run at once; with one, a run's time is that of its task alone
    max_tokens: int


def engine_of(mode: Mode, settings: EvaluationSettings) -> dlm.Engine:
    """Return the engine of a mode. Raises `DlmError` if it cannot have the cache's type."""
    slots, decoding = settings.slots, mode.decoding
    engine = dlm.Engine.load(settings.model, slots=slots, kv=settings.kv, decoding=decoding)
    if not mode.config and not mode.sampler:
        return engine
    engine.close()
    if settings.kv != "auto":
        raise dlm.DlmError(f"the mode {mode.name!r} needs --kv auto, got {settings.kv}")
    sampler: Any = engine.config.sampler
    config = replace(engine.config, sampler=replace(sampler, **mode.sampler), **mode.config)
    return dlm.Engine(engine.model, engine.chat, config, slots=slots, decoding=decoding)


def run_tasks(
    mode: Mode, tasks: Sequence[EvaluationTask], settings: EvaluationSettings
) -> Iterator[Run]:
    """Yield the run of each task, as it ends.

    With one slot its grammar is compiled before. With several, grammars are compiled while other
    tasks run, as in a service.
    """
    engine = engine_of(mode, settings)
    try:
        for counted, some in ((False, tasks[:WARM]), (True, tasks)):
            runner, waiting = _Runner(engine, mode, settings), deque(some)
            while waiting or runner.busy:
                while waiting and runner.has_capacity:
                    runner.begin(waiting.popleft())
                for run in runner.step():
                    if counted:
                        yield run
    finally:
        engine.close()


@dataclass(slots=True)
class _Attempts:
    """Tries of one task so far."""

    task: EvaluationTask
    spec: Spec | None
    begun: float
    tries: int = 0
    first: float | None = None  # when the first text was committed
    stats: list[dlm.Stats] = field(default_factory=list)
    result: dlm.Result | None = None  # of the last try that had one
    error: str | None = None


class _Runner:
    """Runner of tasks on an engine in a mode, with as many again waiting as the engine has
    slots."""

    def __init__(self, engine: dlm.Engine, mode: Mode, settings: EvaluationSettings):
        self._engine, self._mode, self._settings = engine, mode, settings
        self._alone = settings.slots == 1  # each task begins when the one before it has ended
        self._running: dict[int, _Attempts] = {}  # by request number
        self._ended: list[Run] = []
        self._last = time.perf_counter()  # when a run ended, or a grammar had been compiled

    @property
    def has_capacity(self) -> bool:
        return len(self._running) < (1 if self._alone else 2 * self._settings.slots)

    @property
    def busy(self) -> bool:
        """Whether a task that has begun has no run yet."""
        return bool(self._running or self._ended)

    def begin(self, task: EvaluationTask) -> None:
        """Begin a task. Raises `DlmError` for a constraint that cannot be compiled."""
        mode = self._mode
        spec = task.spec(mode.schema) if mode.constrained or task.item.tools else None
        if spec is not None and mode.constrained and self._alone:
            self._engine.compile(spec).result()
            self._last = time.perf_counter()
        self._try(_Attempts(task, spec, time.perf_counter()))

    def step(self) -> list[Run]:
        """Run one step of the engine; return the runs that have ended."""
        for event in self._engine.step() if self._running else ():
            if (attempts := self._running.get(event.request)) is None:
                continue
            if isinstance(event, dlm.Committed):
                attempts.first = attempts.first or time.perf_counter()
            elif isinstance(event, dlm.Finished):
                attempts.result = event.result
                attempts.stats.append(event.result.stats)
                self._conclude(self._running.pop(event.request))
            elif isinstance(event, dlm.Failed):
                attempts.error = str(event.error)
                self._conclude(self._running.pop(event.request))
        ended, self._ended = self._ended, []
        return ended

    def _try(self, attempts: _Attempts) -> None:
        attempts.tries += 1
        attempts.error = None
        spec = attempts.spec if self._mode.constrained else None
        request = attempts.task.request(spec, self._settings.max_tokens, attempts.tries)
        try:
            self._running[self._engine.add(request)] = attempts
        except dlm.DlmError as error:
            attempts.error = str(error)
            self._conclude(attempts)

    def _conclude(self, attempts: _Attempts) -> None:
        """Try again after an invalid answer if the mode does so; otherwise end the run."""
        judgement = judged(attempts.task, attempts.result, attempts.spec, self._engine.vocabulary)
        if not judgement.valid and attempts.tries < self._mode.tries:
            self._try(attempts)
            return
        now = time.perf_counter()
        self._ended.append(_run(self._mode, attempts, judgement, now - self._last))
        self._last = now


def _run(mode: Mode, attempts: _Attempts, judgement: Judgement, seconds: float) -> Run:
    stats, result = dlm.Stats.total([dlm.Stats(), *attempts.stats]), attempts.result
    return Run(
        mode=mode.name,
        task_id=attempts.task.id,
        group=attempts.task.group,
        **asdict(judgement),
        complete=result is not None and result.complete,
        called=result is not None and bool(result.tool_calls),
        calls=stats.calls,
        tokens=attempts.stats[-1].tokens if attempts.stats else 0,
        tries=attempts.tries,
        seconds=seconds,
        model_seconds=stats.seconds["denoise"],
        grammar_seconds=stats.seconds["guide"],
        first_seconds=attempts.first and attempts.first - attempts.begun,
        repairs=stats.repairs,
        rollbacks=stats.rollbacks,
        pins=stats.pins,
        drafted=stats.drafted,
        drafts_kept=stats.drafts_kept,
        text="" if result is None else result.text,
        error=attempts.error,
    )


class Records:
    """Records in a folder's `results.jsonl`, a line each, so that a stopped evaluation goes on.

    The settings of the runs are stored in a file beside it. Without a folder they are kept in
    memory alone.
    """

    def __init__(self, folder: Path | None, settings: dict[str, Any]):
        """Raises `LinesError` if the folder has runs of other settings, `OSError` if it cannot be
        made."""
        self.runs: list[Run] = []
        self._lines: Lines | None = None
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            self._lines = Lines(folder / "results.jsonl", settings, self._take)

    def add(self, run: Run) -> None:
        if self._lines is not None:
            self._lines.write(asdict(run))
        self.runs.append(run)

    def close(self) -> None:
        if self._lines is not None:
            self._lines.close()

    def done(self, mode: str) -> set[int]:
        """Return the numbers of the tasks that a mode has run."""
        return {run.task_id for run in self.runs if run.mode == mode}

    def of(self, mode: str) -> list[Run]:
        """Return the runs of a mode, sorted by task."""
        return sorted((run for run in self.runs if run.mode == mode), key=lambda r: r.task_id)

    def write_csv(self, path: Path) -> None:
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, [field.name for field in fields(Run)])
            writer.writeheader()
            writer.writerows(map(asdict, self.runs))

    def _take(self, run: dict[str, Any]) -> None:
        self.runs.append(Run(**run))
