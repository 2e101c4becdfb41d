"""Distances from the states of an automaton to acceptance: in bytes and in characters."""

import heapq
from collections.abc import Callable
from functools import cached_property, lru_cache
from math import inf

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
