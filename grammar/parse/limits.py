"""Dictionaries that fill lazily or are limited in size, and a meter that bounds work per step."""

from collections.abc import Callable
from sys import maxsize
from typing import TypeVar

from dlm.grammar.errors import Unfinished

K = TypeVar("K")
T = TypeVar("T")
V = TypeVar("V")


class LazyDict(dict[int, T]):
    """A dictionary that makes each value at its first look-up."""

    def __init__(self, make: Callable[[int], T]):
        super().__init__()
        self._make = make

    def __missing__(self, number: int) -> T:
        value = self[number] = self._make(number)
        return value


class LimitedCache(dict[K, V]):
    """A dictionary that is emptied before it would hold more than `most` entries."""

    def __init__(self, most: int):
        super().__init__()
        self._most = most

    def __setitem__(self, key: K, value: V) -> None:
        if len(self) >= self._most and key not in self:
            self.clear()
        super().__setitem__(key, value)


class Meter:
    """A counter of work units, about 10 us each. It has no limit until `begin` is called."""

    def __init__(self):
        self.spent = 0  # units since it was made
        self._limit = maxsize

    def begin(self, units: int = maxsize) -> None:
        """Allow `units` more units to be spent."""
        self._limit = self.spent + units

    def spend(self, units: int) -> None:
        """Count work that is about to be done. Raises `Unfinished` if the limit is reached."""
        if self.spent >= self._limit:
            raise Unfinished("a look at the grammar takes more than its share of a step")
        self.spent += units

    def add(self, units: int) -> None:
        """Count work that is done. Only the next `spend` raises `Unfinished`."""
        self.spent += units
