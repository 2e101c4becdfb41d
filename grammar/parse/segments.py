"""Segments: intervals of numbers, each with the state after them, split digit by digit.

Digits are the six bits of a UTF-8 byte or the hexadecimal digits of an escape. The module knows no
automaton.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence

Edge = tuple[int, int, int]  # the first and the last number, and the state after them
Segments = tuple[tuple[int, int, object], ...]


def scalars(edges: Sequence[Edge]) -> Sequence[Edge]:
    """Return sorted `edges` without surrogates, which are halves of characters."""
    begin, end = _touching(edges, 0xD800, 0xDFFF)
    if begin == end:
        return edges
    (low, _, to), (_, high, last) = edges[begin], edges[end - 1]
    before = [(low, 0xD7FF, to)] if low < 0xD800 else []
    after = [(0xE000, high, last)] if high > 0xDFFF else []
    return (*edges[:begin], *before, *after, *edges[end:])


def clipped(
    edges: Sequence[tuple[int, int, object]], begin: int, end: int, least: int = 0
) -> Segments:
    """Return the parts of sorted `edges` between `begin` and `end`, as distances from `begin`."""
    begun = max(begin, least)
    first, last = _touching(edges, begun, end)
    parts = [*edges[first:last]]
    if parts:
        low, high, to = parts[0]
        parts[0] = max(low, begun), high, to
        low, high, to = parts[-1]
        parts[-1] = low, min(high, end), to
    return tuple([(low - begin, high - begin, to) for low, high, to in parts] if begin else parts)


def _touching(edges: Sequence[tuple], low: int, high: int) -> tuple[int, int]:
    """Return the indices from and up to which sorted `edges` have numbers of `low` to `high`."""
    first = bisect_left(edges, (low,))
    if first and edges[first - 1][1] >= low:
        first -= 1
    return first, bisect_left(edges, (high + 1,))


def split(segments: Segments, base: int, size: int) -> Iterator[tuple[int, int, tuple]]:
    """Yield the first of `size` digits: runs of digits, and the rest of the interval after each."""
    width = base ** (size - 1)
    if size == 1:
        yield from ((low, high, (0, to)) for low, high, to in segments)
        return
    digit = segments[0][0] // width
    while digit <= segments[-1][1] // width:
        inner = clipped(segments, digit * width, (digit + 1) * width - 1)
        last = digit
        if len(inner) == 1 and inner[0][:2] == (0, width - 1):  # one interval for the segment
            whole, _ = _touching(segments, digit * width, digit * width)
            last = (segments[whole][1] + 1) // width - 1
        if inner:
            yield digit, last, (size - 1, inner)
        digit = last + 1


def within(kind: str, remaining: tuple) -> tuple:
    """Return the key of a state within a character, by the digits that are left."""
    size, to = remaining
    if size:
        return (kind, size, to)
    return ("at", to) if isinstance(to, int) else ("backslash", to)


def utf16(edges: Sequence[Edge]) -> Segments:
    """Return characters as UTF-16 units: a high surrogate leads to segments of low ones.

    `edges` are sorted and have no surrogates.
    """
    leads: dict[tuple[int, int], Segments] = {}
    for edge in clipped(edges, 0x10000, 0x10FFFF):
        for low, high, trails in pairs(*edge):
            leads[low, high] = leads.get((low, high), ()) + trails
    units = [(*lead, trails) for lead, trails in leads.items()]
    return tuple(sorted([*clipped(edges, 0, 0xFFFF), *units]))


def pairs(low: int, high: int, to: object) -> Iterator[tuple[int, int, Segments]]:
    """Yield surrogate pairs for `0x10000 + low` to `0x10000 + high`, all leading to `to`."""
    while low <= high:
        lead, begin = divmod(low, 0x400)
        end = min(high, low | 0x3FF)
        last = lead
        if begin == 0 and high - low >= 0x3FF:
            last = (high + 1) // 0x400 - 1
            end = last * 0x400 + 0x3FF
        yield 0xD800 + lead, 0xD800 + last, ((0xDC00 + begin, 0xDC00 + end % 0x400, to),)
        low = end + 1
