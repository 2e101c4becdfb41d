"""Walks over a vocabulary's trie: where do all tokens lead at once? Level by level, in arrays.

A machine says where a byte leads from a state. Knows neither terminals nor rules.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Int16, Int32

from dlm.grammar.trie import Trie

Nodes = Int32[np.ndarray, " _"]
Owners = Int16[np.ndarray, " _"]  # which of some roots each node is reached from
_NOWHERE = -1
_DENSE = 4  # a part of a level that is worth looking at all of it
_FEW = 100  # nodes that are looked at one by one
_SEVERAL = 24  # children of a node: of more, likely ones are looked up


@dataclass(frozen=True, slots=True)
class Reached:
    """Nodes of the trie that a walk reaches, with what it is like there."""

    nodes: Nodes
    states: Nodes
    counts: Nodes  # of moves that count; empty, if nobody wants to know


class WalkTable:
    """A machine with few states, all moves of which are written down when they are first needed."""

    def __init__(self, moves: Callable[[int], list[tuple[int, int, int, bool]]]):
        """`moves(state)`: bytes from, to; the state that they lead to, and whether that counts."""
        self._moves = moves
        self._to = np.full((16, 256), _NOWHERE, dtype=np.int32)
        self._counts = np.zeros((16, 256), dtype=np.int32)
        self._written: set[int] = set()

    def walk(
        self, trie: Trie, roots: Sequence[tuple[int, int]], counting: bool
    ) -> tuple[Reached, Owners]:
        """What is reached from some children of the root, these included, and from which of them.

        With each of them, the state in which it is reached.
        """
        nodes, states = np.array(roots, np.int32).reshape(-1, 2).T
        counts, owner = np.zeros(len(nodes), np.int32), np.arange(len(nodes), dtype=np.int16)
        found = [(nodes, states, counts if counting else nodes[:0], owner)]
        levels = trie.levels[1:]
        for begin, end, last in zip(levels, levels[1:], levels[2:], strict=False):
            if not len(nodes):
                break
            self._write(np.flatnonzero(np.bincount(states)).tolist())
            if len(nodes) * _DENSE < end - begin:
                children, parent = trie.children_of(nodes)
                byte = trie.byte[children]
            else:  # most of a level: all of the next one is looked at
                children, byte = np.arange(end, last, dtype=np.int32), trie.byte[end:last]
                place = np.full(end - begin, len(nodes), np.int32)
                place[nodes - begin] = np.arange(len(nodes), dtype=np.int32)
                parent = place[trie.parent[end:last] - begin]
                states = np.append(states, np.int32(len(self._to) - 1))  # of what is not reached
            moves = (states[parent] << 8) + byte
            behind = self._to.ravel().take(moves)
            kept = np.flatnonzero(behind != _NOWHERE)
            if counting:
                counts = counts[parent[kept]] + self._counts.ravel().take(moves[kept])
            nodes, states, owner = children[kept], behind[kept], owner[parent[kept]]
            found.append((nodes, states, counts if counting else nodes[:0], owner))
        nodes, states, counts, owner = map(np.concatenate, zip(*found, strict=True))
        return Reached(nodes, states, counts), owner

    def walk_below(self, trie: Trie, nodes: Nodes, state: int) -> Reached:
        """What is reached below some nodes of any depth, all of which are in one state."""
        states = np.full(len(nodes), state, np.int32)
        found = [(nodes[:0], states[:0])]
        while len(nodes):
            self._write(np.flatnonzero(np.bincount(states)).tolist())
            children, parent = trie.children_of(nodes)
            to = self._to.ravel().take((states[parent] << 8) + trie.byte[children])
            kept = np.flatnonzero(to != _NOWHERE)
            nodes, states = children[kept], to[kept]
            found.append((nodes, states))
        nodes, states = (np.concatenate(each) for each in zip(*found, strict=True))
        return Reached(nodes, states, nodes[:0])

    def _write(self, states: list[int]) -> None:
        for state in states:
            if state in self._written:
                continue
            moves = self._moves(state)
            self._room(max([state, *(to for _, _, to, _ in moves)]))
            for low, high, to, counts in moves:
                self._to[state, low : high + 1] = to
                self._counts[state, low : high + 1] = counts
            self._written.add(state)

    def _room(self, state: int) -> None:
        while state >= len(self._to) - 1:  # from the last row, nothing leads anywhere
            self._to = np.concatenate([self._to, np.full_like(self._to, _NOWHERE)])
            self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])


@runtime_checkable
class Machine(Protocol):
    """One with any number of states, which are objects."""

    def likely(self, state: Any) -> Bool[np.ndarray, " 256"]:
        """The bytes that `after` is worth asking for."""
        ...

    def after(self, state: Any, byte: int) -> Any | None: ...


def walk(trie: Trie, machine: Machine, begin: list[tuple[Nodes, Any]]) -> tuple[Reached, list[Any]]:
    """From nodes, each list of which a text has reached in another state.

    What is reached beyond them, and the states by their numbers there.
    """
    states: list[Any] = []
    numbers: dict[Any, int] = {}

    def number(state: Any) -> int:
        if state not in numbers:
            numbers[state] = len(states)
            states.append(state)
        return numbers[state]

    few: list[tuple[int, int]] = []  # nodes and states that are found one by one
    found = [(np.zeros(0, np.int32), np.zeros(0, np.int32))]
    level: list[tuple[int, int]] = []
    nodes, at = _joined(begin, number)
    while len(nodes):
        if len(nodes) > _FEW:
            likely = np.stack([machine.likely(state) for state in states])
            children, before = _likely_children(trie, nodes, at, likely)
            moves, which = np.unique(before << 8 | trie.byte[children], return_inverse=True)
            behind = [machine.after(states[move >> 8], move & 255) for move in moves.tolist()]
            to = np.array([_NOWHERE if s is None else number(s) for s in behind], np.int32)[which]
            kept = np.flatnonzero(to != _NOWHERE)
            nodes, at = children[kept], to[kept]
            found.append((nodes, at))
            continue
        level = [*zip(nodes.tolist(), at.tolist(), strict=True)]
        while level and len(level) <= _FEW:
            level = [
                (child, number(behind))
                for node, which in level
                for byte, child in _worth(trie, machine, node, states[which])
                if (behind := machine.after(states[which], byte)) is not None
            ]
            few += level
        nodes, at = np.array(level, np.int32).reshape(-1, 2).T
    nodes, at = np.array(few, np.int32).reshape(-1, 2).T
    found.append((nodes, at))
    nodes, at = (np.concatenate(each) for each in zip(*found, strict=True))
    return Reached(nodes, at, nodes[:0]), states


def _joined(begin: list[tuple[Nodes, Any]], number: Callable[[Any], int]) -> tuple[Nodes, Nodes]:
    """Nodes of several lists, with the numbers of their states."""
    if not begin:
        return np.zeros(0, np.int32), np.zeros(0, np.int32)
    at = [np.full(len(each), number(state), np.int32) for each, state in begin]
    return np.concatenate([each for each, _ in begin]), np.concatenate(at)


def _worth(trie: Trie, machine: Machine, node: int, state: Any) -> Iterator[tuple[int, int]]:
    """Children of one node that are worth looking at: of many, those by likely bytes."""
    if trie.child_count(node) <= _SEVERAL:
        return trie.each_child(node)
    return trie.children_by(node, np.flatnonzero(machine.likely(state)).tolist())


def _likely_children(
    trie: Trie, nodes: Nodes, at: Nodes, likely: Bool[np.ndarray, "states 256"]
) -> tuple[Nodes, Nodes]:
    """Children of `nodes`, reached in the states `at`, by bytes that are likely there; with `at`.

    Where the nodes are most of the trie, and few bytes are likely, these are looked for instead.
    """
    if len(nodes) * _DENSE < len(trie):
        children, parent = trie.children_of(nodes)
        before = at[parent]
        worth = np.flatnonzero(likely[before, trie.byte[children]])
        return children[worth], before[worth]
    found, present = [], np.flatnonzero(np.bincount(at)).astype(np.int32)
    for state in present.tolist():
        reached = np.zeros(len(trie), bool)
        reached[nodes[at == state]] = True
        children = np.flatnonzero(likely[state][trie.byte]).astype(np.int32)
        found.append(children[reached[trie.parent[children]]])
    return np.concatenate(found), np.repeat(present, [*map(len, found)])
