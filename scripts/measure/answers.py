"""Answers to samples of the training's kinds: the fitting constraint, validity and value."""

from collections.abc import Sequence
from typing import Any

from training.samples import Sample

import dlm
from dlm.cli.compare.judging import MISSING, is_valid, value_of
from dlm.grammar import InvalidValueError, Spec, Vocabulary


def spec_of(item: Sample) -> Spec:
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
        return dlm.Choice((item.schema or {})["enum"])
    return dlm.JsonSchema(item.schema or True)


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
    result: dlm.Result, item: Sample, spec: Spec, vocabulary: Vocabulary
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
        return result.text in (item.schema or {})["enum"], result.text.strip()
    return is_valid(result.text, item.schema or True), value_of(result.text)
