"""JSON files of a model directory, and checks of their numbers.

Anybody can have written them. A file is bounded in size, depth and digits, and holds no NaN and no
infinity; errors name the file and the field.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dlm.models import CheckpointError

_MOST_BYTES = 1 << 26  # an index of a million tensors has as many
_DEEPEST = 64
_MOST_DIGITS = 100  # of an integer; transformers writes some of 31


@dataclass(frozen=True, slots=True)
class Range:
    """Numbers that a field may have. Of floats `least` is none, unless they are `closed`."""

    kind: type[int] | type[float]
    least: int | float
    most: int | float
    closed: bool = False

    def __contains__(self, value: Any) -> bool:
        if isinstance(value, bool) or not isinstance(value, int | self.kind):
            return False
        if self.kind is int or self.closed:
            return self.least <= value <= self.most
        return self.least < value <= self.most

    def __str__(self) -> str:
        if self.kind is int:
            return f"an integer from {self.least:,} to {self.most:,}"
        if self.closed:
            return f"a number from {self.least:g} to {self.most:g}"
        return f"a number above {self.least:g} and at most {self.most:g}"


def check_number(place: str, value: Any, allowed: Range) -> None:
    """Raise `CheckpointError` unless `value` is allowed; `place` are the file and the field."""
    if value not in allowed:
        raise CheckpointError(f"{place} must be {allowed}, got {shown(value)}")


def check_numbers(place: str, fields: Mapping[str, Any], ranges: Mapping[str, Range]) -> None:
    """Check all fields that are there and not null; `place` precedes their names in errors."""
    for name, allowed in ranges.items():
        if fields.get(name) is not None:
            check_number(f"{place}{name}", fields[name], allowed)


def shown(value: Any) -> str:
    """Return `value` as it is in JSON, cut to a length for errors."""
    try:
        text = json.dumps(value)
    except (RecursionError, TypeError, ValueError):
        text = type(value).__name__
    return text if len(text) <= 60 else f"{text[:57]}..."


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file of a model directory. Raises `CheckpointError`."""
    try:
        size = path.stat().st_size
        if size > _MOST_BYTES:
            raise CheckpointError(f"{path} has {size:,} bytes; at most {_MOST_BYTES:,} are read")
        content = json.loads(path.read_text(encoding="utf-8"), parse_int=_integer)
    except FileNotFoundError:
        raise CheckpointError(
            f"{path.parent} holds no {path.name}: not a model directory"
        ) from None
    except RecursionError:
        raise CheckpointError(_too_deep(path)) from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} holds no JSON object")
    _check_values(path, content)
    return content


def _integer(digits: str) -> int:
    if len(digits) > _MOST_DIGITS:
        raise ValueError(f"it holds an integer of {len(digits)} digits")
    return int(digits)


def _check_values(path: Path, content: Any) -> None:
    """Raise `CheckpointError` for a number that is not finite, and for too deep a value."""
    waiting: list[tuple[tuple[str | int, ...], Any]] = [((), content)]
    while waiting:
        place, value = waiting.pop()
        if isinstance(value, float) and not math.isfinite(value):
            name = ".".join(map(str, place))
            raise CheckpointError(f"{path}: {name} must be a finite number, got {shown(value)}")
        if isinstance(value, dict | list) and len(place) >= _DEEPEST:
            raise CheckpointError(_too_deep(path))
        if isinstance(value, dict):
            waiting += [((*place, name), inner) for name, inner in value.items()]
        elif isinstance(value, list):
            waiting += [((*place, index), inner) for index, inner in enumerate(value)]


def _too_deep(path: Path) -> str:
    return f"{path} is nested too deeply: at most {_DEEPEST} levels are read"
