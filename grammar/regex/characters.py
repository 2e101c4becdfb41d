"""Sets of characters, as ranges of code points."""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import pairwise

Ranges = tuple[tuple[int, int], ...]  # code points: sorted, disjoint, both ends included
EVERY: Ranges = ((0, 0xD7FF), (0xE000, 0x10FFFF))  # Unicode scalar values: no surrogates
_FOREIGN = ((0xD800, 0xDFFF), (0x110000, 0x110000))
SURROGATES = re.compile("[\ud800-\udfff]")  # lone ones are not text


def union(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Return `ranges` sorted, merging those that overlap or touch."""
    merged: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = merged[-1][0], max(high, merged[-1][1])
        else:
            merged.append((low, high))
    return tuple(merged)


def inverted(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Return all characters that are not in `ranges`."""
    gaps, start = [], 0
    for low, high in union((*ranges, *_FOREIGN)):
        if start < low:
            gaps.append((start, low - 1))
        start = high + 1
    return tuple(gaps)


def bits(mask: int) -> Iterator[int]:
    """Yield the indices of the set bits of `mask`, the lowest first."""
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest


def alphabet(sets: Iterable[Ranges]) -> tuple[list[Ranges], dict[Ranges, list[int]]]:
    """Return classes of characters that no set divides, and by set the indices of its classes."""
    distinct = list(dict.fromkeys(sets))
    toggles: dict[int, int] = defaultdict(int)
    for number, ranges in enumerate(distinct):
        for low, high in ranges:
            toggles[low] ^= 1 << number
            toggles[high + 1] ^= 1 << number
    classes: dict[int, list[tuple[int, int]]] = {}
    within = 0
    for low, end in pairwise(sorted(toggles)):
        within ^= toggles[low]
        if within:
            classes.setdefault(within, []).append((low, end - 1))
    members: list[list[int]] = [[] for _ in distinct]
    for number, mask in enumerate(classes):
        for member in bits(mask):
            members[member].append(number)
    return [tuple(ranges) for ranges in classes.values()], dict(zip(distinct, members, strict=True))
