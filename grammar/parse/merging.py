"""Nodes of a trie at which terminals may end, with one state for all threads there if many do.

Many threads may reach the same nodes. With one state for all of them, the tokens below a node are
read once instead of once for each thread. The work is continued where it stopped if it runs out.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import numpy as np

from dlm.grammar.limits import Meter
from dlm.grammar.masks.trie import Nodes, Trie
from dlm.grammar.masks.walks import Beginning, parts_of
from dlm.grammar.parse.place_costs import scattered
from dlm.grammar.parse.states import Item, Thread

_FEW = 16  # kernels that are not merged
_NODES = 500  # trie nodes looked at for a unit of work
_MEMBERS = 16  # members of kernels for a unit of work
_GROUP_BYTES, _MEMBER_BYTES = 400, 50  # of memory, for some nodes, and for a member at them
Kernel = Sequence[Thread | Item]
Kernels = tuple[Nodes, Kernel]  # nodes, and the threads and items there


def bytes_of(groups: Iterable[tuple[Nodes, Collection[object]]]) -> int:
    """Return the approximate memory of nodes, each array of which is counted once, and members."""
    nodes: dict[int, int] = {}
    members = 0
    for each, kernel in list(groups):
        nodes[id(each)] = _GROUP_BYTES + each.nbytes
        members += len(kernel)
    return sum(nodes.values()) + _MEMBER_BYTES * members


class Beginnings:
    """Nodes at which a walk begins: collected, then merged, then in parts with states."""

    def __init__(self, collected: list[Kernels]):
        """More may be added to `collected` until `parts` is called."""
        self.collected = collected
        self._merging: _Merging | None = None
        self._parts: list[list[Beginning]] | None = None

    @property
    def nbytes(self) -> int:
        """Approximate memory, without the states."""
        before = bytes_of(self.collected) if self._merging is None else self._merging.nbytes
        parts = list(self._parts or ())
        return before + sum(bytes_of((nodes, ()) for nodes, _ in part) for part in parts)

    def parts(
        self, trie: Trie, make: Callable[[Kernel], Any], most: int, meter: Meter
    ) -> list[list[Beginning]]:
        """Return the parts that are left, of which the caller removes those that are walked.

        Each has at most about `most` nodes of the trie below it. `make` makes the state of threads
        and items. Raises `Unfinished`; a second call continues.
        """
        if self._parts is None:
            if self._merging is None:
                self._merging = _Merging(self.collected, len(trie))
            self._parts = parts_of(trie, self._merging.states(make, meter), most)
            self.collected, self._merging = [], None
        return self._parts


class _Merging:
    """Nodes with the threads and items there, on the way to nodes with states."""

    def __init__(self, begin: list[Kernels], size: int):
        """`size` is the number of the trie's nodes."""
        self._merged: list[Kernels] = begin  # with states that are still to be built
        self._waiting: list[Kernels] = []  # to be hashed, then to be looked for
        self._states: list[Beginning] = []
        if len(begin) > _FEW:
            equal: dict[int, tuple[Nodes, dict[Thread | Item, None]]] = {}
            for nodes, kernel in begin:
                equal.setdefault(id(nodes), (nodes, {}))[1].update(dict.fromkeys(kernel))
            self._merged, self._waiting = [], [(n, [*kernel]) for n, kernel in equal.values()]
            self._hashed, self._read = 0, 0  # numbers of those that are done
            self._hashes = np.zeros(size, np.uint64)  # of the kernels at each node
            self._is_there = np.zeros(size, bool)
            self._groups: list[tuple[Nodes, dict[Thread | Item, None]]] = []

    @property
    def nbytes(self) -> int:
        """Approximate memory, without the states."""
        kept = bytes_of(self._merged) + bytes_of(self._waiting)
        arrays = 0
        if self._waiting:
            arrays = self._hashes.nbytes + self._is_there.nbytes + bytes_of(self._groups)
        return kept + arrays + sum(nodes.nbytes for nodes, _ in list(self._states))

    def states(self, make: Callable[[Kernel], Any], meter: Meter) -> list[Beginning]:
        """Return the nodes with their states, as `make` makes them.

        Raises `Unfinished`; a second call continues.
        """
        if self._waiting:
            self._group(meter)
            self._merged = [(nodes, [*kernel]) for nodes, kernel in reversed(self._groups)]
            self._waiting, self._groups = [], []
            self._hashes, self._is_there = self._hashes[:0].copy(), self._is_there[:0].copy()
        while self._merged:
            nodes, kernel = self._merged[-1]
            meter.add(len(kernel) // _MEMBERS)
            self._states.append((nodes, make(kernel)))
            self._merged.pop()
        return self._states

    def _group(self, meter: Meter) -> None:
        """Group the nodes by their kernels."""
        waiting = self._waiting
        for nodes, _ in waiting[self._hashed :]:
            meter.spend(1 + len(nodes) // _NODES)
            self._hashes[nodes] += scattered(np.array([self._hashed]))
            self._hashed += 1
        if not self._groups:
            nodes = np.flatnonzero(self._hashes).astype(np.int32)
            nodes = nodes[np.argsort(self._hashes[nodes], kind="stable")]
            cuts = np.flatnonzero(np.diff(self._hashes[nodes])) + 1
            self._groups = [(group, {}) for group in np.split(nodes, cuts)]
            meter.add(len(nodes) // _NODES)
        firsts = np.array([group[0] for group, _ in self._groups], np.int32)
        for nodes, kernel in waiting[self._read :]:
            meter.spend(1 + len(nodes) // _NODES)
            self._is_there[nodes] = True
            for i in np.flatnonzero(self._is_there[firsts]).tolist():
                self._groups[i][1].update(dict.fromkeys(kernel))
                meter.add(len(kernel) // _MEMBERS)
            self._is_there[nodes] = False
            self._read += 1
