"""Deterministic automata of characters: what patterns, numbers, formats and words come down to.

Knows no notation: `pattern.py` reads patterns.
"""

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from dlm.grammar.regex import algebra
from dlm.grammar.regex.builder import built
from dlm.grammar.regex.table import MOST_STATES, Edges, TooLargeError
from dlm.grammar.rules.nodes import Node
from dlm.grammar.shared_cache import RESULTS

__all__ = ["MOST_STATES", "Automaton", "TooLargeError"]

_STATE_BYTES, _EDGE_BYTES = 150, 110  # measured: edges take 80 to 150


@dataclass(frozen=True)
class Automaton:
    """Minimal, its states in the order in which a search finds them: equal for equal texts.

    It begins in state 0. `edges` are sorted by character, apart, and as few as there can be; each
    state has a way to a final one, but for the only state of an automaton of no text. Characters
    are Unicode scalar values. Operations raise `TooLargeError`.
    """

    edges: Edges  # by state: from, to (included), and the state that they lead to
    final: frozenset[int]

    ANY: ClassVar["Automaton"]
    NONE: ClassVar["Automaton"]

    @staticmethod
    def of(node: Node) -> "Automaton":
        """Of a pattern. Terminals in it are spelled raw, and their bounds become states."""
        return Automaton(*built(node))

    @staticmethod
    def words(texts: Iterable[str]) -> "Automaton":
        """Of these texts, tens of thousands of them too."""
        return Automaton(*algebra.words(texts))

    @staticmethod
    @RESULTS.remembered
    def lengths(low: int, high: int | None) -> "Automaton":
        """Of all texts of so many characters."""
        return Automaton(*algebra.lengths(low, high))

    def union(self, other: "Automaton") -> "Automaton":
        if self == other or other.is_empty:
            return self
        return other if self.is_empty else _product(self, other, "union")

    def intersection(self, other: "Automaton") -> "Automaton":
        if self in (other, Automaton.NONE) or other == Automaton.ANY:
            return self
        return other if self == Automaton.ANY else _product(self, other, "intersection")

    def difference(self, other: "Automaton") -> "Automaton":
        return self if other.is_empty else _product(self, other, "difference")

    def complement(self) -> "Automaton":
        return _complement(self)

    @property
    def is_empty(self) -> bool:
        return not self.final

    @cached_property
    def is_finite(self) -> bool:
        """Only so many texts: no state leads back to itself."""
        waiting = [0] * len(self.edges)
        for state in self.edges:
            for _, _, to in state:
                waiting[to] += 1
        done = [] if waiting[0] else [0]
        for state in done:  # it grows meanwhile
            for _, _, to in self.edges[state]:
                waiting[to] -= 1
                if not waiting[to]:
                    done.append(to)
        return len(done) == len(self.edges)

    @property
    def runs_out(self) -> bool:
        """Some of its texts begin as only so many do: their ways end where nothing follows."""
        return not all(self.edges)

    def accepts(self, text: str) -> bool:
        state = 0
        for character in text:
            point = ord(character)
            edges = self.edges[state]
            found = bisect_right(edges, point, key=lambda edge: edge[0]) - 1
            if found < 0 or edges[found][1] < point:
                return False
            state = edges[found][2]
        return state in self.final

    def shortest(self) -> str | None:
        """A text of the fewest characters, plain ones where there is a choice."""
        texts = {0: ""}
        for state in (work := [0]):  # it grows meanwhile
            if state in self.final:
                return texts[state]
            for low, high, to in sorted(self.edges[state], key=lambda edge: _plain(*edge[:2])[0]):
                if to not in texts:
                    texts[to] = texts[state] + _plain(low, high)[1]
                    work.append(to)
        return None

    def words_up_to(self, limit: int) -> list[str] | None:
        """All texts in order, if they are at most `limit`."""
        if not self.is_finite:
            return None
        found: list[str] = []
        work = [(0, "")]
        while work:
            state, text = work.pop()
            if state in self.final:
                found.append(text)
            if len(found) + len(work) > limit:  # each has a way to a final state
                return None
            for low, high, to in reversed(self.edges[state]):
                if high - low >= limit:
                    return None
                work += [(to, text + chr(point)) for point in range(high, low - 1, -1)]
        return found

    @cached_property
    def nbytes(self) -> int:
        """Bytes of memory, roughly."""
        return _STATE_BYTES * len(self.edges) + _EDGE_BYTES * sum(map(len, self.edges))

    @cached_property
    def _hash(self) -> int:
        return hash((self.edges, self.final))

    def __hash__(self) -> int:
        return self._hash


Automaton.ANY = Automaton(*algebra.ANYTHING)
Automaton.NONE = Automaton(((),), frozenset())


def _plain(low: int, high: int) -> tuple[int, str]:
    """A character of a range, with how far it is from being plain."""
    ranked = enumerate("a0A -")
    return next(((rank, c) for rank, c in ranked if low <= ord(c) <= high), (9, chr(low)))


_WANTED = {
    "union": bool.__or__,
    "intersection": bool.__and__,
    "difference": bool.__gt__,
}


@RESULTS.remembered
def _product(one: Automaton, other: Automaton, operation: str) -> Automaton:
    machines = (one.edges, one.final), (other.edges, other.final)
    return Automaton(*algebra.product(*machines, _WANTED[operation]))


@RESULTS.remembered
def _complement(automaton: Automaton) -> Automaton:
    return Automaton(*algebra.complement((automaton.edges, automaton.final)))
