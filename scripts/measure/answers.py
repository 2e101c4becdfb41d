"""Answers to samples of the training's kinds: the fitting constraint, validity and value."""

from typing import Any

from training.samples import Sample

import dlm
from dlm.cli.comparison.judging import MISSING, is_valid, value_of
from dlm.grammar import InvalidValueError, Spec, Vocabulary


def spec_of(item: Sample) -> Spec:
    """Return the constraint that fits a sample's task."""
    if item.task == "tool":
        return dlm.Tools(item.tools, choice="required", parallel=False)
    if item.task == "choice":
        return dlm.Choice((item.schema or {})["enum"])
    return dlm.JsonSchema(item.schema or True)


def wanted(item: Sample) -> Any:
    """Return a sample's value in the form in which `meaning` returns an answer's."""
    return {item.value[0]: item.value[1]} if item.task == "tool" else item.value


def meaning(
    result: dlm.Result, item: Sample, spec: Spec, vocabulary: Vocabulary
) -> tuple[bool, Any]:
    """Return whether an answer is valid as it stands, and its value.

    The value of a call is `{name: arguments}`; calls are read by the constraint's own reader.
    """
    if isinstance(spec, dlm.Tools):
        try:
            call = spec.read(result.token_ids, vocabulary).tool_calls[0]
        except InvalidValueError:
            return False, MISSING
        return True, {call.name: call.arguments}
    if item.task == "choice":
        return result.text in (item.schema or {})["enum"], result.text.strip()
    return is_valid(result.text, item.schema or True), value_of(result.text)
