"""Paths of values within JSON data, for tests that change one of them."""

from collections.abc import Iterator
from typing import Any

Path = tuple[Any, ...]


def paths(value: Any, at: Path = ()) -> Iterator[Path]:
    """Yield the paths of all values within `value`, of the first four elements of each list."""
    if at:
        yield at
    if isinstance(value, list):
        value = dict(enumerate(value[:4]))
    for key, inner in value.items() if isinstance(value, dict) else ():
        yield from paths(inner, (*at, key))
