"""Union, intersection, difference and complement of deterministic automata; words and lengths."""

import re
from collections.abc import Callable, Iterable
from itertools import chain

from dlm.grammar.regex.effort import spend
from dlm.grammar.regex.ranges import EVERY, Ranges, alphabet, inverted
from dlm.grammar.regex.table import (
    MOST_STATES,
    Edge,
    Machine,
    TooLargeError,
    explored,
    minimal,
    numbered,
)

ANYTHING: Machine = ((tuple((low, high, 0) for low, high in EVERY),), frozenset({0}))
_HALF = re.compile("[\ud800-\udfff]")
_DEAD = -1
_MOST_PRODUCT = 16 * MOST_STATES


def grouped(edges: Iterable[Edge]) -> dict[int, Ranges]:
    """The characters that lead to each state."""
    found: dict[int, list[tuple[int, int]]] = {}
    for low, high, to in edges:
        found.setdefault(to, []).append((low, high))
    return {to: tuple(ranges) for to, ranges in found.items()}


def product(one: Machine, other: Machine, wanted: Callable[[bool, bool], bool]) -> Machine:
    """Of the texts for which `wanted` holds, told which of both accept them.

    Of texts that neither accepts it must be false. Raises `TooLargeError`.
    """
    spend(sum(len(edges) for machine in (one, other) for edges in machine[0]) // 2)
    groups = [[grouped(edges) for edges in machine[0]] for machine in (one, other)]
    classes, members = alphabet(ranges for group in chain(*groups) for ranges in group.values())
    ones, others = (
        [{c: to for to, ranges in group.items() for c in members[ranges]} for group in rows]
        for rows in groups
    )
    alone, behind = wanted(True, False), wanted(False, True)

    def follow(pair: tuple[int, int]) -> Iterable[tuple[int, tuple[int, int]]]:
        left = ones[pair[0]] if pair[0] != _DEAD else {}
        right = others[pair[1]] if pair[1] != _DEAD else {}
        if not alone and not behind and len(right) < len(left):
            return [(c, (left[c], to)) for c, to in right.items() if c in left]
        found = [(c, (to, right.get(c, _DEAD))) for c, to in left.items() if alone or c in right]
        if behind:
            found += [(c, (_DEAD, to)) for c, to in right.items() if c not in left]
        return found

    limit = min(_MOST_PRODUCT, max(MOST_STATES, 2 * (len(ones) + len(others))))
    return minimal(
        explored(
            (0, 0),
            follow,
            lambda pair: wanted(pair[0] in one[1], pair[1] in other[1]),
            classes,
            limit,
        )
    )


def complement(machine: Machine) -> Machine:
    """Of all other texts: minimal as it is, but for the order of its states."""
    edges, final = machine
    spend(sum(map(len, edges)) // 2)
    if not final:
        return ANYTHING
    sink = len(edges)
    rows: list[dict[int, Ranges]] = []
    for state in edges:
        row = grouped(state)
        if left := inverted((low, high) for low, high, _ in state):
            row[sink] = left
        rows.append(row)
    rows.append({sink: EVERY})
    useless = next(
        (s for s, row in enumerate(rows) if s in final and row == {s: EVERY}), None
    )  # the only state that accepted everything: no text gets back from there
    if useless == 0:
        return ((),), frozenset()
    return numbered(
        [{to: ranges for to, ranges in row.items() if to != useless} for row in rows],
        {state for state in range(len(rows)) if state not in final},
    )


def lengths(low: int, high: int | None) -> Machine:
    """Of texts of so many characters. Raises `TooLargeError`."""
    last = low if high is None else high
    if last >= MOST_STATES:
        raise TooLargeError
    if last < low:
        return ((),), frozenset()
    edges = [tuple((*r, state + 1) for r in EVERY) for state in range(last)]
    edges.append(tuple((*r, last) for r in EVERY) if high is None else ())
    return tuple(edges), frozenset(range(low, last + 1))


def words(texts: Iterable[str]) -> Machine:
    """Of just these texts: in one pass over them in order, alike endings are kept once (Daciuk).

    Those with half a surrogate pair are none.
    """
    registry: dict[tuple[bool, tuple[tuple[str, int], ...]], int] = {}
    path: list[dict[str, int]] = [{}]  # of the last text: where its states' edges go to
    ends = [False]

    def close(length: int) -> None:
        """All states of the path behind its first `length` characters are as they stay."""
        while len(path) > length + 1:
            key = (ends.pop(), tuple(path.pop().items()))
            path[-1][last[len(path) - 1]] = registry.setdefault(key, len(registry))

    last = ""
    for text in sorted({text for text in texts if not _HALF.search(text)}):
        common = next(
            (i for i, (a, b) in enumerate(zip(last, text, strict=False)) if a != b),
            min(len(last), len(text)),
        )
        close(common)
        spend(len(text) - common)
        last = text
        path += ({} for _ in text[common:])
        ends += [False] * len(text[common:])
        ends[-1] = True
    close(0)
    if not ends[0] and not path[0]:
        return ((),), frozenset()
    states = [*registry, (ends[0], tuple(path[0].items()))]
    rows = [grouped((ord(c), ord(c), to) for c, to in row) for _, row in states]
    return numbered(rows, (number for number, (end, _) in enumerate(states) if end), len(rows) - 1)
