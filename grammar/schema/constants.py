"""Single JSON values, compared and spelled exactly.

`Constant` is a JSON value with the equality of JSON Schema: 1 equals 1.0, but not true.
"""

import json
import math
from collections.abc import Hashable
from dataclasses import field
from fractions import Fraction
from typing import Any

from dlm.grammar.errors import InvalidGrammarError
from dlm.grammar.immutable import immutable

_MOST_WRITTEN_OUT = 10**21  # JavaScript writes an exponent from this number on


@immutable()
class Constant:
    """A JSON value, compared by `identity`."""

    value: Any = field(compare=False)
    identity: Hashable
    parts: "tuple[Constant, ...]" = field(default=(), compare=False)  # items, or property values

    @property
    def kind(self) -> str:
        return kind(self.value)


def constant(value: Any) -> Constant:
    """Return `value`, parsed JSON, as a `Constant`."""
    if isinstance(value, dict):
        parts = tuple(map(constant, value.values()))
        named = zip(value, (part.identity for part in parts), strict=True)
        return Constant(value, ("object", frozenset(named)), parts)
    if isinstance(value, list):
        parts = tuple(map(constant, value))
        return Constant(value, ("array", tuple(part.identity for part in parts)), parts)
    if isinstance(value, bool) or value is None:
        return Constant(value, (str(value), None))
    return Constant(value, value if isinstance(value, str) else exact(value))


_KINDS = {dict: "object", list: "array", str: "string", bool: "boolean", type(None): "null"}


def kind(value: Any) -> str:
    """Return the JSON type of `value`, one of six: integers are numbers."""
    return _KINDS.get(type(value), "number")


def exact(number: int | float) -> Fraction | int:
    """Return the exact decimal value. Raises `InvalidGrammarError` for infinity and NaN."""
    if isinstance(number, int):
        return number
    if not math.isfinite(number):
        raise InvalidGrammarError("JSON schema", "a number is larger than a double can be")
    return int(number) if number == int(number) else Fraction(repr(number))


def spellings(number: int | float, plain: bool = False) -> tuple[str, ...]:
    """Return the spellings of a number; if `plain`, integers consist of digits only."""
    if isinstance(number, int):
        return (str(number),)
    if number != int(number) or (abs(number) >= _MOST_WRITTEN_OUT and not plain):
        return (json.dumps(number),)
    return (str(int(number)),) if plain else (str(int(number)), json.dumps(number))
