"""Immutable dataclasses that are made quickly, since thousands of them are made for one schema."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def immutable(*, eq: bool = True) -> Callable[[type[T]], type[T]]:
    """Decorate a class as a dataclass with slots whose objects are never changed.

    They are compared and hashed by their fields, or by identity if not `eq`. Changes are errors of
    the type checker, not of the program: `dataclass(frozen=True)` finds them at run time, but takes
    three times as long to make an object.
    """
    return dataclass(slots=True, eq=eq, unsafe_hash=eq)
