"""How many bytes a text of an automaton still takes, by how many characters it may have.

A shortest text between bounds is found over tables of exact lengths (Bellman's recursion). From
some length on, most automata take what they took so many characters before, and as much more each
time: then no table is needed, and a bound of a billion costs nothing.

Distances from the states of an automaton to acceptance: in bytes and in characters.
"""

import heapq
from collections.abc import Callable, Iterator
from functools import cached_property, lru_cache
from math import inf
from threading import Lock

from dlm.grammar.errors import InvalidGrammarError
from dlm.grammar.regex.automaton import Automaton
from dlm.grammar.shared_cache import RESULTS

_NICE = " a0"  # what a shortest text is spelled with, if there is a choice
_SHORTER = b'\b\t\n\f\r"\\'  # whose escapes in JSON are shorter than those of others
_EDGE_BYTES, _STATE_BYTES = 150, 400  # of memory, roughly

Weigh = Callable[[int], int]  # the fewest bytes that a code point is written in


class Distances:
    """Distances of one automaton under one spelling. Several scanners share them."""

    def __init__(self, automaton: Automaton, weigh: Weigh):
        self.final = automaton.final
        self.edges: list[list[tuple[int, int, int]]] = []  # bytes, state, a code point
        for found in automaton.edges:
            best: dict[int, tuple[int, int, int]] = {}
            for low, high, to in found:
                each = _cheapest(weigh, low, high)
                if to not in best or each < best[to]:
                    best[to] = each
            self.edges.append([(each[0], to, each[2]) for to, each in best.items()])
        kept = sum(map(len, self.edges))
        self.nbytes = _EDGE_BYTES * kept + _STATE_BYTES * len(self.edges)
        self.shortest = self._measure()  # bytes and characters, by state

    @cached_property
    def fewest(self) -> list[int]:
        """Characters to acceptance at the fewest, by state."""
        into, found = self._into(), [-1] * len(self.edges)
        level, count = set(self.final), 0
        while level:
            for q in level:
                found[q] = count
            level = {before for q in level for _, before in into[q] if found[before] < 0}
            count += 1
        return found

    @cached_property
    def most(self) -> list[float]:
        """Characters to acceptance at the most, by state."""
        into, found = self._into(), [inf] * len(self.edges)
        left = [len(edges) for edges in self.edges]
        ready = [q for q, count in enumerate(left) if not count]
        while ready:  # what is never ready leads into a circle
            q = ready.pop()
            found[q] = max((1 + found[to] for _, to, _ in self.edges[q]), default=0.0)
            for _, before in into[q]:
                left[before] -= 1
                if not left[before]:
                    ready.append(before)
        return found

    def _into(self) -> list[list[tuple[int, int]]]:
        into: list[list[tuple[int, int]]] = [[] for _ in self.edges]
        for q, edges in enumerate(self.edges):
            for weight, to, _ in edges:
                into[to].append((weight, q))
        return into

    def _measure(self) -> list[tuple[int, int]]:
        """Dijkstra's algorithm from the final states back: bytes and characters; -1: no way."""
        into = self._into()
        found = [(-1, -1)] * len(self.edges)
        heap = [(0, 0, q) for q in self.final]
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


@RESULTS.remembered
def distances(automaton: Automaton, weigh: Weigh) -> Distances:
    """Return what schemas with the same terminals share. `weigh` is a function of a module."""
    return Distances(automaton, weigh)


@lru_cache(maxsize=1 << 14)  # entries of 250 bytes
def _cheapest(weigh: Weigh, low: int, high: int) -> tuple[int, int, int]:
    """Bytes, rank and code point of the best character of a range."""
    return min((weigh(c), rank, c) for rank, c in _candidates(low, high))


def _candidates(low: int, high: int) -> list[tuple[int, int]]:
    """Code points of a range among which one is written in the fewest bytes, by how they read."""
    nice = [(rank, ord(c)) for rank, c in enumerate(_NICE) if low <= ord(c) <= high]
    plain = [p for p in range(max(low, 0x20), min(high, 0x7E) + 1) if p not in (0x22, 0x5C)][:1]
    edges = [p for p in (low, *_SHORTER, 0x80, 0x800, 0x10000) if low <= p <= high]
    return nice + [(3, p) for p in plain] + [(4, p) for p in edges]


_MOST_WORK = 500_000  # edges that are looked at for tables of exact lengths


class Lengths:
    """Of one automaton, under one spelling."""

    def __init__(self, automaton: Automaton, weigh: Weigh):
        self._distances = distances(automaton, weigh)
        self._edges, self._shortest = self._distances.edges, self._distances.shortest
        self._exactly: list[list[float]] = []  # made when they are asked for
        self._seen: dict[tuple[float, ...], int] = {}  # rows, but for what they have in common
        self._lock = Lock()  # grammars that share it may be made in another thread
        self._cycle: tuple[int, float] | None = None  # rows that the last is behind, bytes more
        self._work = 0

    @property
    def fewest(self) -> list[int]:
        """The fewest characters to acceptance, by state."""
        return self._distances.fewest

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
        if characters < 0:
            return None
        if high is None and low <= characters:
            return bytes_
        if low > self._distances.most[q]:
            return None
        if high is not None and high < max(low, self.fewest[q]):
            return None
        if low <= characters and (high is None or characters <= high):
            return bytes_
        best, count = inf, max(low, self.fewest[q])
        most = min(self._distances.most[q], inf if high is None else high)
        while count <= most and count < best:
            row, beyond = self._row(count)
            best = min(best, row[q] + beyond)
            if self._cycle is not None:  # once around, and every further character takes more
                last = max(low, len(self._exactly)) + self._cycle[0]
                most = min(most, last)
            count += 1
        return None if best == inf else int(best)

    def way(self, q: int, low: int, high: int | None) -> Iterator[tuple[int, int]]:
        """The code points of the way that `within` has measured, and how often each comes."""
        total = self.within(q, low, high)
        while total:
            low, high = low - 1, None if high is None else high - 1
            for weight, to, point in self._edges[q]:
                if self.within(to, low, high) == total - weight:
                    more = self._again(q, weight, low, high, total - weight) if to == q else 0
                    yield point, 1 + more
                    low, high = low - more, None if high is None else high - more
                    q, total = to, total - weight * (1 + more)
                    break
            else:
                raise InvalidGrammarError("terminal", "it has no completion")

    def _again(self, q: int, weight: int, low: int, high: int | None, total: int) -> int:
        """Count how often a character that leads back to `q` can come again on a shortest way."""
        more = low - len(self._edges)
        if more <= 0:
            return 0
        rest = self.within(q, low - more, None if high is None else high - more)
        return more if rest == total - weight * more else 0

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
        if not self._exactly:
            final = self._distances.final
            self._exactly.append([0.0 if q in final else inf for q in range(len(self._edges))])
            return
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
