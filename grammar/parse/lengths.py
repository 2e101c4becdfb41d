"""How many bytes a text of an automaton still takes, by how many characters it may have.

A shortest text between bounds is found over tables of exact lengths (Bellman's recursion). From
some length on, most automata take what they took so many characters before, and as much more each
time: then no table is needed, and a bound of a billion costs nothing.
"""

import heapq
from collections.abc import Callable, Iterator
from math import inf
from threading import Lock

from dlm.grammar.errors import InvalidGrammarError
from dlm.grammar.regex.automaton import Automaton

_MOST_WORK = 500_000  # edges that are looked at for tables of exact lengths
_NICE = " a0"  # what a shortest text is spelled with, if there is a choice

Weigh = Callable[[int], int]  # the fewest bytes that a code point is written in


class Lengths:
    """Of one automaton, under one spelling."""

    def __init__(self, automaton: Automaton, weigh: Weigh):
        self._final = automaton.final
        self._edges: list[list[tuple[int, int, int]]] = []  # bytes, state, a code point
        for found in automaton.edges:
            best: dict[int, tuple[int, ...]] = {}
            for low, high, to in found:
                each = min((weigh(c), rank, c) for rank, c in _candidates(low, high))
                best[to] = min(best.get(to, (each[0] + 1, 0, 0)), each)
            self._edges.append([(each[0], to, each[-1]) for to, each in best.items()])
        self._shortest = self._measure()
        self.fewest = self._count()  # characters to acceptance, by state
        self._longest = self._most()  # likewise, the most
        self._exactly = [[0.0 if q in self._final else inf for q in range(len(self._edges))]]
        self._seen: dict[tuple[float, ...], int] = {}  # rows, but for what they have in common
        self._lock = Lock()  # grammars that share it may be made in another thread
        self._cycle: tuple[int, float] | None = None  # rows that the last is behind, bytes more
        self._work = 0

    @property
    def regular(self) -> tuple[int, int] | None:
        """From the first of these numbers of characters on, as many as the second make no
        difference but to take always the same bytes; None: not known to be so."""
        return None if self._cycle is None else (len(self._exactly) - 1, self._cycle[0])

    def check(self, low: int, high: int | None) -> None:
        """Raises `InvalidGrammarError` where `within` does for lesser bounds, from any state."""
        for q in range(len(self._edges)):
            self.within(q, low, high)

    def within(self, q: int, low: int, high: int | None) -> int | None:
        """The fewest bytes from state `q` to acceptance in `low` to `high` characters.

        None if there is no such text. Raises `InvalidGrammarError` where that is too hard to say.
        """
        bytes_, characters = self._shortest[q]
        if characters < 0 or low > self._longest[q]:
            return None
        if high is not None and high < max(low, self.fewest[q]):
            return None
        if low <= characters and (high is None or characters <= high):
            return bytes_
        best, count = inf, max(low, self.fewest[q])
        most = min(self._longest[q], inf if high is None else high)
        while count <= most and count < best:
            row, beyond = self._row(count)
            best = min(best, row[q] + beyond)
            if self._cycle is not None:  # once around, and every further character takes more
                last = max(low, len(self._exactly)) + self._cycle[0]
                most = min(most, last)
            count += 1
        return None if best == inf else int(best)

    def way(self, q: int, low: int, high: int | None) -> Iterator[int]:
        """The code points of the way that `within` has measured."""
        total = self.within(q, low, high)
        while total:
            low, high = low - 1, None if high is None else high - 1
            for weight, to, point in self._edges[q]:
                if self.within(to, low, high) == total - weight:
                    yield point
                    q, total = to, total - weight
                    break
            else:
                raise InvalidGrammarError("terminal", "it has no completion")

    def _row(self, count: int) -> tuple[list[float], float]:
        """Bytes by state for exactly `count` characters, and what to add to them."""
        with self._lock:
            while self._cycle is None and len(self._exactly) <= count:
                self._extend()
        last = len(self._exactly) - 1
        if self._cycle is None or count <= last:
            return self._exactly[count], 0.0
        period, more = self._cycle
        rounds = -((last - count) // period)
        return self._exactly[count - rounds * period], rounds * more

    def _extend(self) -> None:
        last = self._exactly[-1]
        self._work += sum(map(len, self._edges)) + len(last)
        if self._work > _MOST_WORK:
            raise InvalidGrammarError(
                "terminal", f"a pattern is too intricate for a length of {len(self._exactly)}"
            )
        row = [min((w + last[to] for w, to, _ in edges), default=inf) for edges in self._edges]
        self._exactly.append(row)
        number, least = len(self._exactly) - 1, min(row)
        before = self._seen.setdefault(
            tuple(each if each == inf else each - least for each in row), number
        )
        if before < number:  # a row follows from the one before, whatever all of it has more
            more = 0.0 if least == inf else least - min(self._exactly[before])
            self._cycle = number - before, more

    def _into(self) -> list[list[tuple[int, int]]]:
        into: list[list[tuple[int, int]]] = [[] for _ in self._edges]
        for q, edges in enumerate(self._edges):
            for weight, to, _ in edges:
                into[to].append((weight, q))
        return into

    def _count(self) -> list[int]:
        into, found = self._into(), [-1] * len(self._edges)
        level, count = set(self._final), 0
        while level:
            for q in level:
                found[q] = count
            level = {before for q in level for _, before in into[q] if found[before] < 0}
            count += 1
        return found

    def _most(self) -> list[float]:
        """Characters to acceptance at the most, by state."""
        into, found = self._into(), [inf] * len(self._edges)
        left = [len(edges) for edges in self._edges]
        ready = [q for q, count in enumerate(left) if not count]
        while ready:  # what is never ready leads into a circle
            q = ready.pop()
            found[q] = max((1 + found[to] for _, to, _ in self._edges[q]), default=0.0)
            for _, before in into[q]:
                left[before] -= 1
                if not left[before]:
                    ready.append(before)
        return found

    def _measure(self) -> list[tuple[int, int]]:
        """Dijkstra's algorithm from the final states back: bytes and characters; -1: no way."""
        into = self._into()
        found = [(-1, -1)] * len(self._edges)
        heap = [(0, 0, q) for q in self._final]
        heapq.heapify(heap)
        while heap:
            bytes_, characters, q = heapq.heappop(heap)
            if found[q][1] >= 0:
                continue
            found[q] = bytes_, characters
            for weight, before in into[q]:
                if found[before][1] < 0:
                    heapq.heappush(heap, (bytes_ + weight, characters + 1, before))
        return found


def _candidates(low: int, high: int) -> list[tuple[int, int]]:
    """Code points of a range among which one is written in the fewest bytes, by how they read."""
    nice = [(rank, ord(c)) for rank, c in enumerate(_NICE) if low <= ord(c) <= high]
    plain = [p for p in range(max(low, 0x20), min(high, 0x7E) + 1) if p not in (0x22, 0x5C)][:1]
    edges = [p for p in (low, 0x0A, 0x22, 0x5C, 0x80, 0x800, 0x10000) if low <= p <= high]
    return nice + [(3, p) for p in plain] + [(4, p) for p in edges]
