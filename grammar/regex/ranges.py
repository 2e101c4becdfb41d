"""Sets of characters as ranges of code points, and the alphabet that tells several sets apart."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import pairwise

from dlm.grammar.rules.nodes import Ranges

EVERY: Ranges = ((0, 0xD7FF), (0xE000, 0x10FFFF))  # Unicode scalar values: no surrogates
_FOREIGN = ((0xD800, 0xDFFF), (0x110000, 0x110000))


def union(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Sorted, with those that overlap or touch made one."""
    merged: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = merged[-1][0], max(high, merged[-1][1])
        else:
            merged.append((low, high))
    return tuple(merged)


def inverted(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Every character but these."""
    left, start = [], 0
    for low, high in union((*ranges, *_FOREIGN)):
        if start < low:
            left.append((start, low - 1))
        start = high + 1
    return tuple(left)


def bits(mask: int) -> Iterator[int]:
    """The numbers of the bits that are set."""
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest


def alphabet(sets: Iterable[Ranges]) -> tuple[list[Ranges], dict[Ranges, list[int]]]:
    """Classes of characters that no set tells apart, and by set the numbers of its classes."""
    distinct = list(dict.fromkeys(sets))
    toggles: dict[int, int] = defaultdict(int)
    for number, ranges in enumerate(distinct):
        for low, high in ranges:
            toggles[low] ^= 1 << number
            toggles[high + 1] ^= 1 << number
    classes: dict[int, list[tuple[int, int]]] = {}
    within = 0
    for low, behind in pairwise(sorted(toggles)):
        within ^= toggles[low]
        if within:
            classes.setdefault(within, []).append((low, behind - 1))
    members: list[list[int]] = [[] for _ in distinct]
    for number, mask in enumerate(classes):
        for member in bits(mask):
            members[member].append(number)
    return [tuple(ranges) for ranges in classes.values()], dict(zip(distinct, members, strict=True))
