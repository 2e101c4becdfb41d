"""The fewest bytes to the end from the trie nodes that threads of one terminal reach.

Nodes have the same place if they are in the same state after equally many characters. Threads that
differ in their bounds, or in what follows the terminal, reach the same places. So costs are found
by place, and given to nodes at the end.
"""

import numpy as np
from jaxtyping import Int64, UInt64

from dlm.grammar.limits import Meter
from dlm.grammar.masks.trie import Nodes
from dlm.grammar.parse.branches import FAR, Bounds, TerminalTransitions, cost_within
from dlm.grammar.parse.scanner import LiteralScanner, Scanner

UNREACHABLE = FAR + 1  # bytes: the end is unreachable
_COUNT, _SCANNER, _THREAD = 24, 44, 48  # first bits of a place's state, scanner and thread
_PLACE_BYTES = 150  # of memory, of a place and its cost
_AT_ONCE, _COSTS = 64, 4  # costs computed in a step, and for a unit of work


class PlaceCosts:
    """The places that are reached from one state of a terminal, and their costs."""

    def __init__(self, transitions: TerminalTransitions):
        """`transitions` must count characters if threads have bounds."""
        scanners: dict[Scanner | LiteralScanner, int] = {}  # shared branches have other scanners
        indices: dict[tuple[Scanner | LiteralScanner, int, int], int] = {}
        nodes, at = [np.zeros(0, np.int32)], [np.zeros(0, np.int64)]
        for branch, before in transitions:
            scanners.setdefault(branch.scanner, len(scanners))
            reached, places, index = branch.places()
            counting = before if len(reached.counts) else 0
            keys = ((branch.scanner, state, count + counting) for state, count in places)
            own = [indices.setdefault(key, len(indices)) for key in keys]
            nodes.append(reached.nodes)
            at.append(np.array(own, np.int64)[index])
        self._nodes, self._at, self._places = np.concatenate(nodes), np.concatenate(at), [*indices]
        numbers = [
            (scanners[scanner] << _SCANNER) + (state << _COUNT) + count
            for scanner, state, count in self._places
        ]
        self._numbers = np.array(numbers, np.int64)
        self._least = np.full(len(numbers), UNREACHABLE, np.int64)
        self._ways = np.zeros(len(numbers), np.uint64)
        self._costs: list[int] = []  # of the thread that is added; -1: the end is unreachable

    def __len__(self) -> int:
        """Return the number of trie nodes."""
        return len(self._nodes)

    @property
    def nbytes(self) -> int:
        """Approximate memory."""
        arrays = (self._nodes, self._at, self._numbers, self._least, self._ways)
        return sum(array.nbytes for array in arrays) + _PLACE_BYTES * len(self._places)

    def add(self, thread: int, bounds: Bounds, onward: int, meter: Meter) -> None:
        """Add a thread, given its number and the fewest bytes to the end after the terminal.

        Raises `Unfinished`; a second call for the same thread continues.
        """
        costs = self._costs
        while len(costs) < len(self._places):
            some = self._places[len(costs) : len(costs) + _AT_ONCE]
            meter.spend(0)
            costs += [cost_within(*place, bounds) for place in some]
            meter.add(1 + len(some) // _COSTS)
        within = np.array(costs, np.int64)
        fit = within >= 0
        self._least[fit] = np.minimum(self._least[fit], np.minimum(within[fit] + onward, FAR))
        self._ways[fit] += scattered(self._numbers[fit] + (thread << _THREAD))
        self._costs = []

    def by_node(self) -> tuple[Nodes, Int64[np.ndarray, " n"], UInt64[np.ndarray, " n"]]:
        """Return the nodes from which threads reach the end, the fewest bytes, and a hash of their
        ways: nodes with equal hashes are in the same situation."""
        least = self._least[self._at]
        fit = np.flatnonzero(least < UNREACHABLE)
        return self._nodes[fit], least[fit], self._ways[self._at[fit]]


def scattered(numbers: np.ndarray) -> np.ndarray:
    """Return hashes of `numbers` (splitmix64's finaliser). Sums of them identify sets."""
    z = numbers.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
