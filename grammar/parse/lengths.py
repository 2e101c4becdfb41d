"""How many bytes a text of an automaton still takes, by how many characters it may have.

A shortest text between bounds is found over tables of exact lengths (Bellman's recursion). From
some length on, most automata only take as much more for each further character: then no table is
needed, and a bound of a billion costs nothing.
"""

import heapq
from collections.abc import Callable, Iterator
from math import inf
from threading import Lock

from dlm.grammar.errors import InvalidGrammarError
from dlm.grammar.regex.automaton import Automaton

_MOST_WORK = 2_000_000  # edges that are looked at for tables of exact lengths
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
        self._exactly = [[0.0 if q in self._final else inf for q in range(len(self._edges))]]
        self._lock = Lock()  # grammars that share it may be made in another thread
        self._slope: float | None = None  # bytes for each character behind the tables
        self._work = 0

    @property
    def regular_from(self) -> int | None:
        """From so many characters on, every further one costs the same; None: not known to be."""
        return None if self._slope is None else len(self._exactly) - 1

    def within(self, q: int, low: int, high: int | None) -> int | None:
        """The fewest bytes from state `q` to acceptance in `low` to `high` characters.

        None if there is no such text. Raises `InvalidGrammarError` where that is too hard to say.
        """
        bytes_, characters = self._shortest[q]
        if characters < 0 or (high is not None and (high < 0 or high < low)):
            return None
        if low <= characters and (high is None or characters <= high):
            return bytes_
        best, count = inf, max(low, 0)
        while (high is None or count <= high) and count < best:
            row, beyond = self._row(count)
            best = min(best, row[q] + beyond)
            if beyond or (self._slope is not None and count >= len(self._exactly) - 1):
                break  # every further character takes more
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
            while self._slope is None and len(self._exactly) <= count:
                self._extend()
        last = len(self._exactly) - 1
        if count <= last:
            return self._exactly[count], 0.0
        return self._exactly[last], (count - last) * (self._slope or 0.0)

    def _extend(self) -> None:
        last = self._exactly[-1]
        self._work += sum(map(len, self._edges)) + len(last)
        if self._work > _MOST_WORK:
            raise InvalidGrammarError(
                "terminal", f"a pattern is too intricate for a length of {len(self._exactly)}"
            )
        row = [min((w + last[to] for w, to, _ in edges), default=inf) for edges in self._edges]
        steps = {b - a for a, b in zip(last, row, strict=True) if a != inf and b != inf}
        same = all((a == inf) == (b == inf) for a, b in zip(last, row, strict=True))
        self._exactly.append(row)
        if same and len(steps) <= 1:
            self._slope = steps.pop() if steps else 1.0

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
