"""One JSON value, equal to what JSON Schema takes for equal: 1 and 1.0, but not 1 and true."""

import json
import math
from collections.abc import Hashable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from dlm.grammar.errors import InvalidGrammarError


@dataclass(frozen=True, slots=True)
class Constant:
    """Compared by `identity`."""

    value: Any = field(compare=False)
    identity: Hashable

    @property
    def kind(self) -> str:
        return kind(self.value)


def constant(value: Any) -> Constant:
    return Constant(value, identity(value))


def kind(value: Any) -> str:
    """One of the six types of JSON."""
    names = {dict: "object", list: "array", str: "string", bool: "boolean", type(None): "null"}
    return names.get(type(value), "number")


def identity(value: Any) -> Hashable:
    if isinstance(value, bool) or value is None:
        return str(value), None
    if isinstance(value, dict):
        return "object", frozenset((key, identity(part)) for key, part in value.items())
    if isinstance(value, list):
        return "array", tuple(identity(part) for part in value)
    return value if isinstance(value, str) else exact(value)


def exact(number: int | float) -> Fraction | int:
    """A number as its shortest decimal says it."""
    if isinstance(number, int):
        return number
    if not math.isfinite(number):
        raise InvalidGrammarError("JSON schema", "a number is larger than a double can be")
    return int(number) if number == int(number) else Fraction(repr(number))


def spellings(number: int | float) -> tuple[str, ...]:
    """Of a number: as an integer where it is one, and as the schema has it."""
    if isinstance(number, float) and number == int(number) and abs(number) < 2**63:
        return str(int(number)), json.dumps(number)
    return (json.dumps(number),)
