"""Dictionaries: of values that are made when they are first asked for, and of limited size."""

from collections.abc import Callable
from typing import TypeVar

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


class Limited(dict[K, V]):
    """A dictionary that begins anew where it would hold more than `most` entries."""

    def __init__(self, most: int):
        super().__init__()
        self._most = most

    def __setitem__(self, key: K, value: V) -> None:
        if len(self) >= self._most and key not in self:
            self.clear()
        super().__setitem__(key, value)
