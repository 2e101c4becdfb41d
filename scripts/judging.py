"""Judging an answer: is it valid, and how much of what was wanted does it say.

Validity is judged by libraries that know nothing of how an answer was made: `jsonschema`, or the
reader of tool calls. An answer is exact if its value is the wanted one; a code fence around JSON
is forgiven there, but is not valid.
"""

import json
from collections.abc import Iterator
from typing import Any

from jsonschema import validators
from training.samples import Sample

import dlm
from dlm.grammar import InvalidValueError, Spec, Vocabulary

MISSING = object()  # the value where there is none; the same as nothing else


def is_valid(text: str, schema: Any) -> bool:
    """`text` is JSON that `jsonschema` accepts."""
    try:
        return validator_of(schema)(schema).is_valid(json.loads(text))
    except (ValueError, RecursionError):
        return False


def validator_of(schema: Any) -> Any:
    """Of the draft that the schema names, or of 2020-12."""
    return validators.validator_for(schema, default=validators.Draft202012Validator)


def is_exact(text: str, value: Any) -> bool:
    """`text` is JSON for `value`, a code fence around it forgiven."""
    return same(value_of(text), value)


def value_of(text: str) -> Any:
    """The JSON value of an answer; `MISSING` if it is no JSON even without its code fence."""
    try:
        return json.loads(text.strip().removeprefix("```json").removesuffix("```"))
    except (ValueError, RecursionError):
        return MISSING


def same(value: Any, other: Any) -> bool:
    """Equal as JSON values: 19 is 19.0, neither is true, and the order of keys does not matter."""
    if isinstance(value, bool) or isinstance(other, bool):
        return value is other
    if isinstance(value, dict) and isinstance(other, dict):
        return value.keys() == other.keys() and all(same(value[k], other[k]) for k in value)
    if isinstance(value, list) and isinstance(other, list):
        return len(value) == len(other) and all(map(same, value, other))
    return value == other


def found(value: Any, target: Any) -> tuple[int, int]:
    """How many of the target's leaves the value has at the same place, and how many there are."""
    places = list(leaves(target))
    return sum(same(_at(value, path), leaf) for path, leaf in places), len(places)


def f1(value: Any, target: Any) -> float:
    """Of the leaves: the harmonic mean of the shares that are right and that were found."""
    right, wanted = found(value, target)
    return 2 * right / (len(list(leaves(value))) + wanted)


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Values that hold no others, and where they are."""
    if not isinstance(value, dict | list) or not value:
        yield path, value
        return
    for key, part in value.items() if isinstance(value, dict) else enumerate(value):
        yield from leaves(part, (*path, key))


def _at(value: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        try:
            value = value[key]
        except (IndexError, KeyError, TypeError):
            return MISSING
    return value


def spec_of(item: Sample) -> Spec:
    """The constraint that fits a sample's task."""
    if item.task == "tool":
        return dlm.Tools(item.tools, choice="required", parallel=False)
    if item.task == "choice":
        return dlm.Choice((item.schema or {})["enum"])
    return dlm.JsonSchema(item.schema or True)


def wanted(item: Sample) -> Any:
    """A sample's value as `meaning` tells that of an answer."""
    return {item.value[0]: item.value[1]} if item.task == "tool" else item.value


def meaning(
    result: dlm.Result, item: Sample, spec: Spec, vocabulary: Vocabulary
) -> tuple[bool, Any]:
    """Whether an answer is valid as it stands, and its value; a call is `{name: arguments}`."""
    if isinstance(spec, dlm.Tools):
        try:
            call = spec.read(result.token_ids, vocabulary).tool_calls[0]
        except InvalidValueError:
            return False, MISSING
        return True, {call.name: call.arguments}
    if item.task == "choice":
        return result.text in (item.schema or {})["enum"], result.text.strip()
    return is_valid(result.text, item.schema or True), value_of(result.text)
