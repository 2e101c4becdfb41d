"""Runs prompts through a mode, one after the other, and measures each."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import judging

import dlm
from comparison.modes import Mode
from comparison.tasks import Task

WARM = 3  # prompts before the first that counts, so that it finds code and caches warm


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One prompt in one mode. `exact` and `f1` are None where no answer is known."""

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
    first_seconds: float | None  # until something final was told; None: nothing before the end
    repairs: int
    rollbacks: int
    pins: int
    drafted: int  # tokens of drafts that were judged
    drafts_kept: int
    text: str
    error: str | None = None  # why there is no answer


def engine_of(mode: Mode, model: str | None) -> dlm.Engine:
    """For one request at a time, so that a second is a second of that request."""
    engine = dlm.Engine.load(model, slots=1, decoding=mode.decoding)
    if not mode.config:
        return engine
    engine.close()
    config = replace(engine.config, **mode.config)
    return dlm.Engine(engine.model, engine.chat, config, slots=1, decoding=mode.decoding)


def runs(
    mode: Mode, tasks: list[Task], model: str | None, max_tokens: int, seed: int
) -> Iterator[Run]:
    """Each is measured with its grammar compiled, as in a service."""
    engine = engine_of(mode, model)
    try:
        for task in tasks[:WARM]:
            _run(engine, mode, task, max_tokens, seed)
        for task in tasks:
            yield _run(engine, mode, task, max_tokens, seed)
    finally:
        engine.close()


def _run(engine: dlm.Engine, mode: Mode, task: Task, max_tokens: int, seed: int) -> Run:
    spec = None
    if mode.constrained:
        spec = dlm.JsonSchema(task.schema, unenforced="check", **mode.schema)
        engine.compile(spec).result()
    each, first, text, complete, error, tries = [dlm.Stats()], None, "", False, None, 0
    started = time.perf_counter()
    for tries in range(1, mode.tries + 1):
        request = dlm.Request(
            prompt=task.prompt,
            constraint=spec,
            max_tokens=max_tokens,
            seed=seed * 1_000_003 + task.id * 101 + tries,
        )
        result, told, error = _answer(engine, request)
        first = first or (told and told - started)
        if result is not None:
            text, complete = result.text, result.finish_reason == "stop"
            each.append(result.stats)
        if task.valid(text):
            break
    seconds = time.perf_counter() - started
    exact, f1 = judged(task, text)
    stats = dlm.Stats.total(each)
    return Run(
        mode=mode.name,
        prompt_id=task.id,
        valid=task.valid(text),
        complete=complete,
        exact=exact,
        f1=f1,
        calls=stats.calls,
        tokens=each[-1].tokens,  # of the answer
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
    """The result, when something final was first told, and why there is no result."""
    told = None
    try:
        engine.add(request)
        while engine.busy:
            for event in engine.step():
                if isinstance(event, dlm.Committed):
                    told = told or time.perf_counter()
                elif isinstance(event, dlm.Finished):
                    return event.result, told, None
                elif isinstance(event, dlm.Failed):
                    return None, told, str(event.error)
    except dlm.DlmError as error:
        return None, told, str(error)
    return None, told, "the engine told of no end"


def judged(task: Task, text: str) -> tuple[bool | None, float | None]:
    """Whether the answer is the expected value, and the F1 of its fields; None if none is known."""
    if not task.known:
        return None, None
    value = judging.value_of(text)
    return judging.same(value, task.expected), judging.f1(value, task.expected)
