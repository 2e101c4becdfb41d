"""Sets of characters that ECMA-262 has names for under its flag u: escapes, and case.

Readers differ in what `\\d`, `\\w` and `\\s` are: for ECMA-262 mostly ASCII, for Python's `re` and
Rust's `regex` any alphabet's. So each has a narrow meaning, what all of them match, and a wide one.
"""

import unicodedata
from bisect import bisect_left
from functools import lru_cache
from itertools import chain, groupby, starmap

from dlm.grammar.regex.ranges import Ranges, union

DIGITS: Ranges = ((0x30, 0x39),)
WORD: Ranges = ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))
SPACES: Ranges = (
    *((0x09, 0x0D), (0x20, 0x20), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A)),
    *((0x2028, 0x2029), (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000)),
)  # without U+FEFF, which is one for ECMA-262 alone
_OTHER_SPACES: Ranges = ((0x1C, 0x1F), (0x85, 0x85), (0xFEFF, 0xFEFF))  # for some readers
LINE_ENDS: Ranges = ((0x0A, 0x0A), (0x0D, 0x0D), (0x2028, 0x2029))
_CASED = (0, 0x3000), (0xA640, 0xAC00), (0xFB00, 0x12000), (0x16E00, 0x17000), (0x1E900, 0x1EA00)
_PLANES = 0x32400  # beyond, there are no letters and no digits


@lru_cache(maxsize=8)
def named(letter: str, wide: bool) -> Ranges:
    """What all readers of patterns take for `\\d`, `\\w` or `\\s`; `wide`: what any one does."""
    if not wide:
        return {"d": DIGITS, "w": WORD, "s": SPACES}[letter]
    if letter == "s":
        return union([*SPACES, *_OTHER_SPACES])
    kinds = ("Nd",) if letter == "d" else ("L", "N", "M", "Pc")
    joiners = () if letter == "d" else ((0x200C, 0x200D),)
    found, start = [*joiners], 0
    categories = map(unicodedata.category, map(chr, range(_PLANES)))
    for among, run in groupby(category.startswith(kinds) for category in categories):
        end = start + sum(1 for _ in run)
        if among:
            found.append((start, end - 1))
        start = end
    return union(found)


def any_case(ranges: Ranges) -> Ranges:
    """With all characters that differ from one of these in case only (simple case folding)."""
    variants, points = _variants()
    found = list(ranges)
    for low, high in ranges:
        for point in points[bisect_left(points, low) : bisect_left(points, high + 1)]:
            found += ((other, other) for other in variants[point])
    return union(found)


@lru_cache(maxsize=1)
def _variants() -> tuple[dict[int, list[int]], list[int]]:
    """Characters that differ in case only, by each of them; and those that have any, sorted."""
    alike: dict[str, list[int]] = {}
    for character in map(chr, chain.from_iterable(starmap(range, _CASED))):
        for folded in (character.casefold(), character.lower()):
            if len(folded) == 1:
                alike.setdefault(folded, []).append(ord(character))
                break
    variants = {point: group for group in alike.values() if len(group) > 1 for point in group}
    return variants, sorted(variants)
