"""Sets that grow by one element at a time, such as the keys of an object after each token.

A matcher keeps the set after every token, so that tokens can be taken back. Copies of a set of
`n` elements would take memory in `n ** 2` together. Here a large set is a tuple of parts that
later versions share: the last part has at most `SMALL` elements and is copied, and of two full
parts of one size, the next element makes one part, as the digits of a binary counter. All versions
together take memory in `n log n`, and a look-up reads at most `log n` parts.
"""

from collections.abc import Callable, Collection, Hashable, Iterator
from itertools import chain
from typing import Any, Generic, TypeVar

SMALL = 32  # elements that are copied with each new one
_HASHES = (1 << 64) - 1  # of elements, added up
T = TypeVar("T", bound=Hashable)
Part = TypeVar("Part", bound=Collection[Any])


class LargeSet(Generic[T]):
    """A set of more than `SMALL` elements. Equal sets are equal in whatever order they grew."""

    __slots__ = ("_hash", "_size", "parts")

    def __init__(self, parts: tuple[frozenset[T], ...], size: int, hash_: int):
        """`size` and `hash_` are the number of elements and the sum of their hashes."""
        self.parts, self._size, self._hash = parts, size, hash_

    def __contains__(self, element: Hashable) -> bool:
        return any(element in part for part in self.parts)

    def __iter__(self) -> Iterator[T]:
        return chain.from_iterable(self.parts)

    def __len__(self) -> int:
        return self._size

    def with_element(self, element: T) -> "LargeSet[T]":
        """Return the set with a new element."""
        parts = with_part(self.parts, element, frozenset)
        return LargeSet(parts, self._size + 1, (self._hash + _hash(element)) & _HASHES)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, LargeSet):
            return False
        if (self._hash, self._size) != (other._hash, other._size):
            return False
        return self.parts == other.parts or holds_all(self, other)


GrowingSet = frozenset[T] | LargeSet[T]
"""A set of at most `SMALL` elements is a frozenset."""
SETS = (frozenset, LargeSet)


def with_element(elements: GrowingSet[T], element: T) -> GrowingSet[T]:
    """Return `elements` and a new one."""
    if isinstance(elements, frozenset):
        if len(elements) < SMALL:
            return elements | {element}
        elements = LargeSet((elements,), len(elements), sum(map(_hash, elements)))
    return elements.with_element(element)


def with_part(
    parts: tuple[Part, ...], element: Hashable, part_of: Callable[[list[Any]], Part]
) -> tuple[Part, ...]:
    """Return parts that have one element more. `part_of` makes a part of elements."""
    if parts and len(parts[-1]) < SMALL:
        return (*parts[:-1], part_of([*parts[-1], element]))
    merged, number = list[Any](), len(parts)
    while number and len(parts[number - 1]) == max(SMALL, len(merged)):
        number -= 1
        merged.extend(parts[number])
    full = (part_of(merged),) if number < len(parts) - 1 else parts[number:]
    return (*parts[:number], *full, part_of([element]))


def holds_all(elements: GrowingSet[T], others: GrowingSet[T]) -> bool:
    """Whether `elements` has all of `others`."""
    mine, parts = _parts(elements), _parts(others)
    return len(elements) >= len(others) and all(
        any(part <= other for other in mine) or all(element in elements for element in part)
        for part in parts
    )


def unshared(elements: GrowingSet[T], before: GrowingSet[T]) -> int:
    """Return how many elements are held by `elements` in parts that are not those of `before`."""
    shared = set(map(id, _parts(before)))
    return sum(len(part) for part in _parts(elements) if id(part) not in shared)


def _parts(elements: GrowingSet[T]) -> tuple[frozenset[T], ...]:
    return elements.parts if isinstance(elements, LargeSet) else (elements,)


def _hash(element: Hashable) -> int:
    return hash((element,))  # a number's own hash is no more than the number
