"""Judgement of an answer: whether it is valid for its task, and how much of it is right."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from training.samples import Sample

import dlm
from dlm.grammar import InvalidValueError, Spec, Vocabulary
from evaluation.tasks import EvaluationTask, words_of
from evaluation.values import MISSING, f1, is_valid, right_leaves, same, value_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """Judgement of an answer; the last four are None where no wanted answer is known."""

    valid: bool  # as it stands: JSON of the schema, a call of a tool, a word of the list
    exact: bool | None = None  # the wanted value, a code fence forgiven
    right: int | None = None  # wanted values that are at their places
    wanted: int | None = None  # values, without objects and lists that contain others
    f1: float | None = None  # of the fields, by path and value


def judged(
    task: EvaluationTask, result: dlm.Result | None, spec: Spec | None, vocabulary: Vocabulary
) -> Judgement:
    """Judge an answer, or the lack of one; `spec` is the task's, which calls of tools need."""
    valid, value = False, MISSING
    if result is not None:
        valid, value = meaning(result, task.item, spec, vocabulary)
    if not task.known:
        return Judgement(valid=valid)
    target = wanted(task.item)
    right, count = right_leaves(value, target)
    return Judgement(
        valid=valid,
        exact=same(value, target),
        right=right,
        wanted=count,
        f1=f1(value, target),
    )


def wanted(item: Sample) -> Any:
    """Return a sample's value in the form in which `meaning` returns an answer's."""
    if item.task != "tool":
        return item.value
    calls = item.value if isinstance(item.value, list) else [item.value]
    return _called(calls)


def _called(calls: Sequence[tuple[str, Any]]) -> Any:
    named = [{name: arguments} for name, arguments in calls]
    return named[0] if len(named) == 1 else named


def meaning(
    result: dlm.Result, item: Sample, spec: Spec | None, vocabulary: Vocabulary
) -> tuple[bool, Any]:
    """Return whether an answer is valid as it stands, and its value.

    The value of a call is `{name: arguments}`, of several calls a list of these; calls are read by
    the constraint's own reader. The value of an answer in words is its text.
    """
    if isinstance(spec, dlm.Tools):
        try:
            answer = spec.read(result.token_ids, vocabulary)
        except InvalidValueError:
            return False, MISSING
        if calls := answer.tool_calls:
            return True, _called([(call.name, call.arguments) for call in calls])
        return spec.choice == "auto" and bool(answer.content), answer.content or MISSING
    if item.task == "choice":
        return result.text in words_of(item), result.text.strip()
    return is_valid(result.text, item.schema or True), value_of(result.text)
