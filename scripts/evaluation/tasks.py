"""Tasks of an evaluation: a conversation, the constraint that fits it, and the wanted answer.

Extractions, the exams of training and the kinds of constraints are drawn from the training data's
sentence patterns, with values that no training sample has. A file has tasks of a user's own.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

from jsonschema import SchemaError
from training.exams import exams
from training.extraction import extract
from training.lessons import choice, tool_call
from training.samples import Sample

import dlm
from dlm.grammar import Spec
from evaluation.values import validator_of

_SPREAD = 1_000_003  # between the seeds of runs
_TRIES = 101  # seeds of an extraction's tries


_OF_BOOLEANS = {True: {}, False: {"not": {}}}  # objects that mean what these schemas do


class TaskError(Exception):
    """An error in a file of tasks, or in the choice of tasks or modes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationTask:
    """A conversation, with its constraint and its wanted answer."""

    id: int  # its number among the tasks
    group: str  # tasks that figures are added up for
    item: Sample
    seed: int  # of the first try; each further try has one more
    constraint: Spec | None = None  # None: the one that fits the sample
    known: bool = True  # there is a wanted answer

    def spec(self, options: Mapping[str, Any]) -> Spec:
        """Return the constraint; `options` are those of a `JsonSchema`."""
        return self.constraint or spec_of(self.item, options)

    def request(self, spec: Spec | None, max_tokens: int, tries: int) -> dlm.Request:
        """Return the request of a try, which is 1 for the first; without a `spec` it is not
        constrained."""
        return dlm.Request(
            messages=self.item.messages,
            tools=self.item.tools,
            constraint=spec,
            constrained=spec is not None,
            max_tokens=max_tokens,
            seed=self.seed + tries - 1,
            thinking=self.item.thought is not None,
        )


def spec_of(item: Sample, options: Mapping[str, Any]) -> Spec:
    """Return the constraint that fits a sample's task.

    Where tools are only offered, text is as good as a call. Raises `ValueError` if there is none.
    """
    if item.task == "tool" and "offered" not in item.traits:
        return dlm.Tools(item.tools, choice="required", parallel=False)
    if item.tools:
        return dlm.Tools(item.tools)
    if item.task == "chat":
        raise ValueError("an answer in words without tools has no constraint")
    if item.task == "choice":
        return dlm.Choice(words_of(item))
    return dlm.JsonSchema(item.schema or True, unenforced="check", **options)


def words_of(item: Sample) -> list[str]:
    """Return the words that a sample chooses from."""
    return (item.schema or {})["enum"]


def extractions(count: int, seed: int) -> list[EvaluationTask]:
    """Draw extractions of trained sentence patterns; their thoughts are left out."""
    random = Random(f"compare/{seed}")
    samples = [extract(random, "heldout") for _ in range(count)]
    return [
        EvaluationTask(
            id=i,
            group="extractions",
            item=replace(sample, thought=None),
            seed=_first_seed(seed, i),
        )
        for i, sample in enumerate(samples)
    ]


def _first_seed(seed: int, number: int) -> int:
    return seed * _SPREAD + number * _TRIES + 1


def exam_tasks(count: int, seed: int, names: Sequence[str]) -> list[EvaluationTask]:
    """Return the tasks of the exams whose names contain one of `names`. Raises `TaskError`."""
    groups = chosen(exams(1, seed), names)  # before all samples are drawn
    drawn = exams(count, seed)
    pairs = [(group, i, item) for group in groups for i, item in enumerate(drawn[group])]
    return [
        EvaluationTask(id=id, group=group, item=item, seed=seed * _SPREAD + i)
        for id, (group, i, item) in enumerate(pairs)
    ]


def chosen(groups: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    """Return the names of groups that contain one of `names`. Raises `TaskError`."""
    for name in names:
        if not any(name in group for group in groups):
            raise TaskError(f"no set's name holds {name!r}: there are {', '.join(groups)}")
    return [group for group in groups if any(name in group for name in names)]


def kind_tasks(count: int, seed: int, names: Sequence[str]) -> list[EvaluationTask]:
    """Draw tasks of every kind of constraint, in turns. Raises `TaskError`."""
    groups, random = chosen(_KINDS, names), Random(f"kinds/{seed}")
    kinds = [*_KINDS]
    tasks = []
    for id in range(count):
        group = kinds[id % len(kinds)]
        draw, constrained = _KINDS[group]
        item, constraint = constrained(draw(random, "heldout"))
        task = EvaluationTask(
            id=id, group=group, item=item, seed=seed * _SPREAD + id, constraint=constraint
        )
        tasks += [task] * (group in groups)
    return tasks


def _fitting(item: Sample) -> tuple[Sample, Spec | None]:
    return item, None


def _by_object(item: Sample) -> tuple[Sample, Spec | None]:
    return replace(item, schema={"type": "object"}), dlm.JsonObject()


def _by_regex(item: Sample) -> tuple[Sample, Spec | None]:
    return item, dlm.Regex("|".join(words_of(item)))


def _by_grammar(item: Sample) -> tuple[Sample, Spec | None]:
    words = " | ".join(json.dumps(word) for word in words_of(item))
    return item, dlm.Grammar(f"start: {words}", "lark")


Constrained = Callable[[Sample], tuple[Sample, Spec | None]]
_KINDS: dict[str, tuple[Any, Constrained]] = {
    "JSON schema": (extract, _fitting),
    "tools": (tool_call, _fitting),
    "choice": (choice, _fitting),
    "JSON object": (extract, _by_object),
    "regex": (choice, _by_regex),
    "grammar": (choice, _by_grammar),
}


def read(path: Path, count: int | None, seed: int) -> list[EvaluationTask]:
    """Read the first `count` tasks of a file, or all.

    A line is `{"prompt", "schema", "expected"?}`. Raises `TaskError`.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise TaskError(f"{path.name} cannot be read: {error}") from error
    tasks = [
        EvaluationTask(id=i, group="prompts", item=item, seed=_first_seed(seed, i), known=known)
        for i, (item, known) in enumerate(_parsed(lines, path.name))
    ]
    if not tasks:
        raise TaskError(f"{path.name} has no prompts")
    return tasks[:count]


def _parsed(lines: Sequence[str], name: str) -> Iterator[tuple[Sample, bool]]:
    """Yield the sample of each line, and whether its answer is known."""
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"{name}, line {number}"
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise TaskError(f"{where}: no JSON: {error}") from error
        if not isinstance(entry, dict) or not isinstance(entry.get("prompt"), str):
            raise TaskError(f'{where}: a task must be an object with a text as its "prompt"')
        if unknown := entry.keys() - {"prompt", "schema", "expected"}:
            raise TaskError(
                f"{where}: {sorted(unknown)[0]!r} is none of prompt, schema and expected"
            )
        schema = entry.get("schema")
        if not isinstance(schema, dict | bool):
            raise TaskError(f'{where}: "schema" must be a JSON Schema')
        try:
            validator_of(schema).check_schema(schema)
        except SchemaError as error:
            raise TaskError(f"{where}: the schema is none: {error.message}") from error
        value = entry.get("expected")
        item = Sample(
            task="extract",
            prompt=entry["prompt"],
            answer=json.dumps(value, ensure_ascii=False),
            value=value,
            schema=_OF_BOOLEANS[schema] if isinstance(schema, bool) else schema,
        )
        yield item, "expected" in entry
