"""Runs of prompts in a mode, one after the other, and their records on disk."""

import csv
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import dlm
from dlm.batch.rows import Lines
from dlm.cli.compare.judging import Prompt, judged
from dlm.cli.compare.modes import Mode

WARM = 3  # prompts that are run first and not counted, so that code and caches are warm


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One prompt in one mode. `exact` and `f1` are None where no expected answer is known."""

    mode: str
    prompt_id: int
    valid: bool  # JSON that the schema accepts, as it stands
    complete: bool  # ended by its own stop token
    exact: bool | None  # the expected value, a code fence forgiven
    f1: float | None  # of the fields, by path and value
    calls: int  # forward passes, of all tries
    tokens: int  # of the answer, the stop among them
    tries: int
    seconds: float  # wall-clock, of all tries
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


def engine_of(mode: Mode, model: str | None) -> dlm.Engine:
    """Return an engine with a single slot, so that its time is one request's time."""
    engine = dlm.Engine.load(model, slots=1, decoding=mode.decoding)
    if not mode.config:
        return engine
    engine.close()
    config = replace(engine.config, **mode.config)
    return dlm.Engine(engine.model, engine.chat, config, slots=1, decoding=mode.decoding)


def run_prompts(
    mode: Mode, prompts: list[Prompt], model: str | None, max_tokens: int, seed: int
) -> Iterator[Run]:
    """Yield the run of each prompt. Its grammar is compiled before, as in a service."""
    engine = engine_of(mode, model)
    try:
        for prompt in prompts[:WARM]:
            _run(engine, mode, prompt, max_tokens, seed)
        for prompt in prompts:
            yield _run(engine, mode, prompt, max_tokens, seed)
    finally:
        engine.close()


def _run(engine: dlm.Engine, mode: Mode, prompt: Prompt, max_tokens: int, seed: int) -> Run:
    spec = None
    if mode.constrained:
        spec = dlm.JsonSchema(prompt.schema, unenforced="check", **mode.schema)
        engine.compile(spec).result()
    attempts, first, text, complete, error, tries = [dlm.Stats()], None, "", False, None, 0
    started = time.perf_counter()
    for tries in range(1, mode.tries + 1):
        request = dlm.Request(
            prompt=prompt.prompt,
            constraint=spec,
            max_tokens=max_tokens,
            seed=seed * 1_000_003 + prompt.id * 101 + tries,
        )
        result, committed, error = _answer(engine, request)
        first = first or (committed and committed - started)
        if result is not None:
            text, complete = result.text, result.complete
            attempts.append(result.stats)
        if prompt.valid(text):
            break
    seconds = time.perf_counter() - started
    exact, f1 = judged(prompt, text)
    stats = dlm.Stats.total(attempts)
    return Run(
        mode=mode.name,
        prompt_id=prompt.id,
        valid=prompt.valid(text),
        complete=complete,
        exact=exact,
        f1=f1,
        calls=stats.calls,
        tokens=attempts[-1].tokens,  # of the answer
        tries=tries,
        seconds=seconds,
        model_seconds=stats.seconds["denoise"],
        grammar_seconds=stats.seconds["guide"],
        first_seconds=first,
        repairs=stats.repairs,
        rollbacks=stats.rollbacks,
        pins=stats.pins,
        drafted=stats.drafted,
        drafts_kept=stats.drafts_kept,
        text=text,
        error=error,
    )


def _answer(
    engine: dlm.Engine, request: dlm.Request
) -> tuple[dlm.Result | None, float | None, str | None]:
    """Return the result, the time of the first committed text, and the error if there is one."""
    committed = None
    try:
        engine.add(request)
        while engine.busy:
            for event in engine.step():
                if isinstance(event, dlm.Committed):
                    committed = committed or time.perf_counter()
                elif isinstance(event, dlm.Finished):
                    return event.result, committed, None
                elif isinstance(event, dlm.Failed):
                    return None, committed, str(event.error)
    except dlm.DlmError as error:
        return None, committed, str(error)
    return None, committed, "the engine stopped without a result"


class Records:
    """Records in a folder's `results.jsonl`, a line each, so that a stopped comparison goes on.

    The settings of the runs are stored in a file beside it.
    """

    def __init__(self, folder: Path, settings: dict[str, Any]):
        """Raises `LinesError` if the folder has runs of other settings, `OSError` if it cannot be
        made."""
        folder.mkdir(parents=True, exist_ok=True)
        self.runs: list[Run] = []
        self._lines = Lines(folder / "results.jsonl", settings, self._take)

    def add(self, run: Run) -> None:
        self._lines.write(asdict(run))
        self.runs.append(run)

    def close(self) -> None:
        self._lines.close()

    def done(self, mode: str) -> set[int]:
        """Return the numbers of the prompts that a mode has run."""
        return {run.prompt_id for run in self.runs if run.mode == mode}

    def of(self, mode: str) -> list[Run]:
        """Return the runs of a mode, sorted by prompt."""
        return sorted((run for run in self.runs if run.mode == mode), key=lambda r: r.prompt_id)

    def write_csv(self, path: Path) -> None:
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, [field.name for field in fields(Run)])
            writer.writeheader()
            writer.writerows(map(asdict, self.runs))

    def _take(self, run: dict[str, Any]) -> None:
        self.runs.append(Run(**run))
