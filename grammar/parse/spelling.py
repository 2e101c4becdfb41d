"""Characters as bytes and as JSON's escapes: intervals of numbers, split digit by digit.

What may still come of a character that is begun is a list of segments: parts of the interval of the
digits that are left, each with what it leads to.
"""

from collections.abc import Iterable, Iterator

Segments = tuple[tuple[int, int, object], ...]


def scalars(edges: Iterable[tuple[int, int, int]]) -> Iterator[tuple[int, int, int]]:
    """Without surrogates, which are halves of characters: ranges may lead across them."""
    for low, high, to in edges:
        if low < 0xD800:
            yield low, min(high, 0xD7FF), to
        if high > 0xDFFF:
            yield max(low, 0xE000), high, to


def hex(point: int) -> bytes:
    """What follows the backslash of an escape by number."""
    if point <= 0xFFFF:
        return b"u%04x" % point
    high, low = divmod(point - 0x10000, 0x400)
    return b"u%04x\\u%04x" % (0xD800 + high, 0xDC00 + low)


def clipped(edges: Iterable[tuple], begin: int, end: int, least: int = 0) -> Segments:
    """The parts of `edges` between `begin` and `end`, by their distance from `begin`."""
    begun = max(begin, least)
    return tuple(
        (max(low, begun) - begin, min(high, end) - begin, to)
        for low, high, to in edges
        if low <= end and high >= begun
    )


def split(segments: Segments, base: int, size: int) -> Iterator[tuple[int, int, tuple]]:
    """The first of `size` digits: runs of digits, and what remains of the interval behind them."""
    width = base ** (size - 1)
    if size == 1:
        yield from ((low, high, (0, to)) for low, high, to in segments)
        return
    digit = segments[0][0] // width
    while digit <= segments[-1][1] // width:
        rest = clipped(segments, digit * width, (digit + 1) * width - 1)
        last = digit
        if len(rest) == 1 and rest[0][:2] == (0, width - 1):  # the same for all that it holds
            whole = next(s for s in segments if s[0] <= digit * width <= s[1])
            last = (whole[1] + 1) // width - 1
        if rest:
            yield digit, last, (size - 1, rest)
        digit = last + 1


def within(kind: str, rest: tuple) -> tuple:
    """The key of a state by what remains of a character: digits, and where they lead."""
    size, to = rest
    if size:
        return (kind, size, to)
    return ("at", to) if isinstance(to, int) else ("backslash", to)


def utf16(edges: Iterable[tuple[int, int, int]]) -> Segments:
    """Characters as UTF-16 units: a high surrogate leads to the segments of its low ones."""
    found: list[tuple[int, int, object]] = []
    for low, high, to in edges:
        if low <= 0xFFFF:
            found.append((low, min(high, 0xFFFF), to))
        if high > 0xFFFF:
            found += pairs(max(low, 0x10000) - 0x10000, high - 0x10000, to)
    merged: dict[tuple[int, int], list] = {}
    for low, high, to in found:
        merged.setdefault((low, high), []).append(to)
    return tuple(
        (low, high, to[0] if isinstance(to[0], int) else tuple(sorted(sum(to, ()))))
        for (low, high), to in sorted(merged.items())
    )


def pairs(low: int, high: int, to: int) -> Iterator[tuple[int, int, Segments]]:
    """Surrogate pairs for the code points from `low` to `high` behind U+FFFF."""
    while low <= high:
        first, begin = divmod(low, 0x400)
        end = min(high, low | 0x3FF)
        last = first
        if begin == 0 and high - low >= 0x3FF:
            last = (high + 1) // 0x400 - 1
            end = last * 0x400 + 0x3FF
        yield 0xD800 + first, 0xD800 + last, ((0xDC00 + begin, 0xDC00 + end % 0x400, to),)
        low = end + 1
