"""Values by number, each made when it is first asked for."""

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class Made(dict[int, T]):
    """Of a large grammar, most texts reach little."""

    def __init__(self, make: Callable[[int], T]):
        super().__init__()
        self._make = make

    def __missing__(self, number: int) -> T:
        value = self[number] = self._make(number)
        return value
