"""Dictionaries: of values that are made when they are first asked for, and of limited size.

Counts work, so that no grammar takes more of a step than its share.
"""

from collections.abc import Callable
from sys import maxsize
from typing import TypeVar

from dlm.grammar.errors import Unfinished

K = TypeVar("K")
T = TypeVar("T")
V = TypeVar("V")


class Made(dict[int, T]):
    """Of a large grammar, most texts reach little."""

    def __init__(self, make: Callable[[int], T]):
        super().__init__()
        self._make = make

    def __missing__(self, number: int) -> T:
        value = self[number] = self._make(number)
        return value


class LimitedCache(dict[K, V]):
    """A dictionary that begins anew where it would hold more than `most` entries."""

    def __init__(self, most: int):
        super().__init__()
        self._most = most

    def __setitem__(self, key: K, value: V) -> None:
        if len(self) >= self._most and key not in self:
            self.clear()
        super().__setitem__(key, value)


class Meter:
    """Without a limit until `begin` is called. A unit is about ten microseconds of work."""

    def __init__(self):
        self.spent = 0  # units since it was made
        self._limit = maxsize

    def begin(self, units: int = maxsize) -> None:
        """From now on so many units may be spent."""
        self._limit = self.spent + units

    def spend(self, units: int) -> None:
        """Raises `Unfinished`, before the work is done, if nothing is left."""
        if self.spent >= self._limit:
            raise Unfinished("a look at the grammar takes more than its share of a step")
        self.spent += units

    def add(self, units: int) -> None:
        """Work that is done: whoever spends next may find that nothing is left."""
        self.spent += units
