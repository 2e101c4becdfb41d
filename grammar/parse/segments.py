"""Segments: intervals of numbers, each with the state after them, split digit by digit.

Digits are the six bits of a UTF-8 byte or the hexadecimal digits of an escape. The module knows no
automaton.
"""

from collections.abc import Iterable, Iterator

Segments = tuple[tuple[int, int, object], ...]


def scalars(edges: Iterable[tuple[int, int, int]]) -> Iterator[tuple[int, int, int]]:
    """Yield `edges` without surrogates, which are halves of characters."""
    for low, high, to in edges:
        if low < 0xD800:
            yield low, min(high, 0xD7FF), to
        if high > 0xDFFF:
            yield max(low, 0xE000), high, to


def clipped(edges: Iterable[tuple], begin: int, end: int, least: int = 0) -> Segments:
    """Return the parts of `edges` between `begin` and `end`, as distances from `begin`."""
    begun = max(begin, least)
    return tuple(
        (max(low, begun) - begin, min(high, end) - begin, to)
        for low, high, to in edges
        if low <= end and high >= begun
    )


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
            whole = next(s for s in segments if s[0] <= digit * width <= s[1])
            last = (whole[1] + 1) // width - 1
        if inner:
            yield digit, last, (size - 1, inner)
        digit = last + 1


def within(kind: str, remaining: tuple) -> tuple:
    """Return the key of a state within a character, by the digits that are left."""
    size, to = remaining
    if size:
        return (kind, size, to)
    return ("at", to) if isinstance(to, int) else ("backslash", to)


def utf16(edges: Iterable[tuple[int, int, int]]) -> Segments:
    """Return characters as UTF-16 units: a high surrogate leads to segments of low ones."""
    units: list[tuple[int, int, object]] = []
    for low, high, to in edges:
        if low <= 0xFFFF:
            units.append((low, min(high, 0xFFFF), to))
        if high > 0xFFFF:
            units += pairs(max(low, 0x10000) - 0x10000, high - 0x10000, to)
    merged: dict[tuple[int, int], list] = {}
    for low, high, to in units:
        merged.setdefault((low, high), []).append(to)
    return tuple(
        (low, high, to[0] if isinstance(to[0], int) else tuple(sorted(sum(to, ()))))
        for (low, high), to in sorted(merged.items())
    )


def pairs(low: int, high: int, to: int) -> Iterator[tuple[int, int, Segments]]:
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
