"""The fewest bytes from an automaton's state to acceptance, within bounds on characters.

The shortest text within bounds comes from tables of exact lengths (Bellman's recursion). Beyond
some length, the tables of most automata repeat with a period, each time with the same number of
bytes more. Then no further table is needed, and a bound of a billion costs nothing.
"""

import heapq
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, lru_cache
from math import inf
from threading import Lock

from dlm.grammar.errors import InvalidGrammarError
from dlm.grammar.limits import RESULTS, LazyDict
from dlm.grammar.regex.automaton import Automaton

_NICE = " a0"  # preferred characters among those of equal size
_SHORTER = b'\b\t\n\f\r"\\'  # characters with short escapes in JSON
_EDGE_BYTES, _STATE_BYTES = 150, 400  # approximate memory

Weigh = Callable[[int], int]  # maps a code point to the fewest bytes that spell it


class Distances:
    """Distances from one automaton's states to acceptance. Several scanners share them."""

    def __init__(self, automaton: Automaton, weigh: Weigh):
        self.final, self.count = automaton.final, len(automaton.edges)
        self.edges = LazyDict(lambda q: _weighed(automaton.edges[q], weigh))
        moves = sum(map(len, automaton.edges))
        self.nbytes = _EDGE_BYTES * moves + _STATE_BYTES * self.count
        self.shortest = self._measure()  # bytes and characters, by state

    @cached_property
    def fewest(self) -> list[int]:
        """The fewest characters to acceptance, by state; -1 if it is unreachable."""
        into, counts = self._into(), [-1] * self.count
        level, count = set(self.final), 0
        while level:
            for q in level:
                counts[q] = count
            level = {before for q in level for _, before in into[q] if counts[before] < 0}
            count += 1
        return counts

    @cached_property
    def most(self) -> list[float]:
        """The most characters to acceptance, by state; `inf` if there is no limit."""
        into, counts = self._into(), [inf] * self.count
        unmeasured = [len(self.edges[q]) for q in range(self.count)]
        ready = [q for q, count in enumerate(unmeasured) if not count]
        while ready:  # states that lead into a cycle are never ready
            q = ready.pop()
            counts[q] = max((1 + counts[to] for _, to, _ in self.edges[q]), default=0.0)
            for _, before in into[q]:
                unmeasured[before] -= 1
                if not unmeasured[before]:
                    ready.append(before)
        return counts

    def _into(self) -> list[list[tuple[int, int]]]:
        into: list[list[tuple[int, int]]] = [[] for _ in range(self.count)]
        for q in range(self.count):
            for weight, to, _ in self.edges[q]:
                into[to].append((weight, q))
        return into

    def _measure(self) -> list[tuple[int, int]]:
        """Return bytes and characters to acceptance by Dijkstra's algorithm; -1: unreachable.

        Most states of free text are final: the edges of these are not looked at.
        """
        distances = [(0, 0) if q in self.final else (-1, -1) for q in range(self.count)]
        into: dict[int, list[tuple[int, int]]] = {}
        for q, (_, characters) in enumerate(distances):
            for weight, to, _ in self.edges[q] if characters else ():
                into.setdefault(to, []).append((weight, q))
        heap = [(weight, 1, q) for final in self.final for weight, q in into.get(final, ())]
        heapq.heapify(heap)
        while heap:
            bytes_, characters, q = heapq.heappop(heap)
            if distances[q][1] >= 0:
                continue
            distances[q] = bytes_, characters
            for weight, before in into.get(q, ()):
                if distances[before][1] < 0:
                    heapq.heappush(heap, (bytes_ + weight, characters + 1, before))
        return distances


def _weighed(moves: Sequence[tuple[int, int, int]], weigh: Weigh) -> list[tuple[int, int, int]]:
    """Return the bytes, the next state and a code point of the best move to each state."""
    if len(moves) == 1 and moves[0][0] == moves[0][1]:  # most states of words
        ((low, _, to),) = moves
        return [(weigh(low), to, low)]
    best: dict[int, tuple[int, int, int]] = {}
    for low, high, to in moves:
        move = _cheapest(weigh, low, high)
        if to not in best or move < best[to]:
            best[to] = move
    return [(move[0], to, move[2]) for to, move in best.items()]


_distances = RESULTS.remembered(Distances)  # by the automaton, and a function of the module level


@lru_cache(maxsize=1 << 14)  # entries of 250 bytes
def _cheapest(weigh: Weigh, low: int, high: int) -> tuple[int, int, int]:
    """Return bytes, rank and code point of a range's shortest, most readable character."""
    return min((weigh(c), rank, c) for rank, c in _candidates(low, high))


def _candidates(low: int, high: int) -> list[tuple[int, int]]:
    """Return ranks of readability and code points of a range, a shortest one among them."""
    nice = [(rank, ord(c)) for rank, c in enumerate(_NICE) if low <= ord(c) <= high]
    plain = [p for p in range(max(low, 0x20), min(high, 0x7E) + 1) if p not in (0x22, 0x5C)][:1]
    edges = [p for p in (low, *_SHORTER, 0x80, 0x800, 0x10000) if low <= p <= high]
    return nice + [(3, p) for p in plain] + [(4, p) for p in edges]


_MOST_WORK = 500_000  # edges visited to build tables of exact lengths


class Lengths:
    """The fewest bytes to acceptance within bounds, for one automaton and one spelling."""

    def __init__(self, automaton: Automaton, weigh: Weigh):
        self._distances = _distances(automaton, weigh)
        self._edges, self._shortest = self._distances.edges, self._distances.shortest
        self._exactly: list[list[float]] = []  # bytes by number of characters, then by state
        self._seen: dict[tuple[float, ...], int] = {}  # rows less their minimum, with their index
        self._lock = Lock()  # grammars that share it may be built in several threads
        self._cycle: tuple[int, float] | None = None  # period in rows, and bytes more per period
        self._work = 0

    @property
    def nbytes(self) -> int:
        """Approximate memory, the distances included."""
        return self._distances.nbytes + 8 * sum(map(len, self._exactly)) * 2

    @property
    def fewest(self) -> list[int]:
        """The fewest characters to acceptance, by state."""
        return self._distances.fewest

    @property
    def endless(self) -> bool:
        """Whether texts of any greater length lead to acceptance from every state."""
        return min(self._distances.most) == inf and min(self._distances.fewest) >= 0

    @property
    def regular(self) -> tuple[int, int] | None:
        """`(start, period)`: beyond `start` characters, adding `period` more adds only bytes.

        None if no such period is known.
        """
        return None if self._cycle is None else (len(self._exactly) - 1, self._cycle[0])

    def check(self, low: int, high: int | None) -> None:
        """Raises `InvalidGrammarError` if `within` would, from any state, for these bounds."""
        for q in range(self._distances.count):
            self.within(q, low, high)

    def within(self, q: int, low: int, high: int | None) -> int | None:
        """Return the fewest bytes from state `q` to acceptance in `low` to `high` characters.

        None if there is no such text. Raises `InvalidGrammarError` if it takes too much work.
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
            if self._cycle is not None:  # beyond one period, texts only get longer
                last = max(low, len(self._exactly)) + self._cycle[0]
                most = min(most, last)
            count += 1
        return None if best == inf else int(best)

    def shortest_path(self, q: int, low: int, high: int | None) -> Iterator[tuple[int, int]]:
        """Yield the code points of the text that `within` measures, each with its repetitions."""
        total = self.within(q, low, high)
        while total:
            low, high = low - 1, None if high is None else high - 1
            for weight, to, point in self._edges[q]:
                if self.within(to, low, high) == total - weight:
                    repeats = self._again(q, weight, low, high, total - weight) if to == q else 0
                    yield point, 1 + repeats
                    low, high = low - repeats, None if high is None else high - repeats
                    q, total = to, total - weight * (1 + repeats)
                    break
            else:
                raise InvalidGrammarError("terminal", "it has no completion")

    def _again(self, q: int, weight: int, low: int, high: int | None, total: int) -> int:
        """Return how many more times a character that loops at `q` repeats on a shortest path."""
        repeats = low - self._distances.count
        if repeats <= 0:
            return 0
        after = self.within(q, low - repeats, None if high is None else high - repeats)
        return repeats if after == total - weight * repeats else 0

    def _row(self, count: int) -> tuple[list[float], float]:
        """Return bytes by state for exactly `count` characters, and a number to add to each."""
        with self._lock:
            while self._cycle is None and len(self._exactly) <= count:
                self._extend()
        last = len(self._exactly) - 1
        if self._cycle is None or count <= last:
            return self._exactly[count], 0.0
        period, bytes_ = self._cycle
        rounds = -((last - count) // period)
        return self._exactly[count - rounds * period], rounds * bytes_

    def _extend(self) -> None:
        if not self._exactly:
            final = self._distances.final
            self._exactly.append([0.0 if q in final else inf for q in range(self._distances.count)])
            return
        last = self._exactly[-1]
        edges = [self._edges[q] for q in range(len(last))]
        self._work += sum(map(len, edges)) + len(last)
        if self._work > _MOST_WORK:
            raise InvalidGrammarError(
                "terminal", f"a pattern is too intricate for a length of {len(self._exactly)}"
            )
        row = [min((w + last[to] for w, to, _ in moves), default=inf) for moves in edges]
        self._exactly.append(row)
        number, least = len(self._exactly) - 1, min(row)
        before = self._seen.setdefault(
            tuple(cost if cost == inf else cost - least for cost in row), number
        )
        if before < number:  # a row determines the next one, up to a constant
            bytes_ = 0.0 if least == inf else least - min(self._exactly[before])
            self._cycle = number - before, bytes_
