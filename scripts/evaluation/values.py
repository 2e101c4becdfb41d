"""JSON values of answers: whether a text is valid, and how much of a value is the wanted one.

Validity is judged by `jsonschema`, which knows nothing of how an answer was made. A code fence
around JSON is forgiven where values are compared, but it is not valid.
"""

import json
from collections.abc import Iterator
from typing import Any

from jsonschema import validators

MISSING = object()  # stands for a value that is absent; equal to nothing else


def is_valid(text: str, schema: Any) -> bool:
    """Whether `text` is JSON that `jsonschema` accepts."""
    try:
        return validator_of(schema)(schema).is_valid(json.loads(text))
    except (ValueError, RecursionError):
        return False


def validator_of(schema: Any) -> Any:
    """Return the validator class for the draft that the schema names, by default 2020-12."""
    return validators.validator_for(schema, default=validators.Draft202012Validator)


def is_exact(text: str, value: Any) -> bool:
    """Whether `text` is JSON for `value`; a code fence around it is forgiven."""
    return same(value_of(text), value)


def value_of(text: str) -> Any:
    """Return the JSON value of an answer, without its code fence, or `MISSING` if it is no JSON."""
    try:
        return json.loads(text.strip().removeprefix("```json").removesuffix("```"))
    except (ValueError, RecursionError):
        return MISSING


def same(value: Any, other: Any) -> bool:
    """Whether two JSON values are equal: 19 equals 19.0, 1 is not true, keys have no order."""
    if isinstance(value, bool) or isinstance(other, bool):
        return value is other
    if isinstance(value, dict) and isinstance(other, dict):
        return value.keys() == other.keys() and all(same(value[k], other[k]) for k in value)
    if isinstance(value, list) and isinstance(other, list):
        return len(value) == len(other) and all(map(same, value, other))
    return value == other


def right_leaves(value: Any, target: Any) -> tuple[int, int]:
    """Return the number of the target's leaves that `value` has at the same path, and of all."""
    wanted = list(leaves(target))
    return sum(same(_at(value, path), leaf) for path, leaf in wanted), len(wanted)


def f1(value: Any, target: Any) -> float:
    """Return the F1 of the leaves: the harmonic mean of their precision and recall."""
    right, wanted = right_leaves(value, target)
    return 2 * right / (len(list(leaves(value))) + wanted)


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yield the values that contain no others, each after its path."""
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
