"""Walks that read many tokens at once, level by level of a trie, in arrays.

A machine returns the state after a byte. The module knows tokens as numbers, and neither terminals
nor rules.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import wraps
from threading import RLock
from typing import Any, Concatenate, NamedTuple, ParamSpec, Protocol, TypeVar, runtime_checkable

import numpy as np
from jaxtyping import Bool, Int16, UInt8, UInt32

from dlm.grammar.masks.bits import NATIVE, add_tokens, as_numbers_if_few
from dlm.grammar.masks.trie import Nodes, Trie

P = ParamSpec("P")
R = TypeVar("R")
Owners = Int16[np.ndarray, " _"]  # for each node, the index of the root it is reached from
_NOWHERE, _UNWRITTEN = -1, -2  # entries of a table without a next state, as in _walk.c
_DONE = -1  # the outcome of a whole walk in C; a state: its row is needed; else `ends` is full
_CURSOR, _ENDS_AT, _READ_AT = 4, 2, 3  # numbers of a cursor in C, and the indices of two of them
_SORTED = 4096  # nodes up to which ends are sorted, so that equal ones are found in caches
_ENDS = 4096  # nodes that one call of C lists
NODES_READ = 100 if NATIVE is None else 1000  # trie nodes for a unit of work, about 10 us
_ROWS, _COLUMNS = 16, 16  # of a new table
_DENSE = 4  # from 1/4 of a level on, or of the trie for each state, all nodes are looked at
_FEW = 100  # nodes up to which a level is read one by one
_TABLE_BYTES = 1500  # of memory of a table without moves
_EXPLORED_BYTES, _LIKELY_BYTES = 100, 400  # of memory, for a move, and for likely bytes
_SEVERAL = 24  # children of a node, beyond which only likely bytes are looked up


@dataclass(frozen=True, slots=True)
class Reached:
    """The trie nodes that a walk reaches, with the states there."""

    nodes: Nodes
    states: Nodes
    counts: Nodes  # counted moves up to each node; empty if moves are not counted


class TokenSet(NamedTuple):
    """The tokens that stay within a text, and the trie nodes at which it may end."""

    tokens: np.ndarray  # packed bits (uint32); or the tokens' numbers (int32), if they are few
    ends: Nodes  # those with nodes below, where a token may continue

    @property
    def nbytes(self) -> int:
        """The bytes of the arrays, unless they are views of another set's."""
        return sum(array.nbytes for array in self if not isinstance(array.base, np.ndarray))


class Reach:
    """A token set that is being made: what walks have reached so far."""

    def __init__(self, words: UInt32[np.ndarray, " words"]):
        """`words` holds the tokens to begin with, as packed bits. They are changed."""
        self.words, self.ends, self.nodes = words, list[Nodes](), 0  # nodes: bytes read

    def token_set(self) -> TokenSet:
        ends = np.concatenate(self.ends) if self.ends else np.zeros(0, np.int32)
        if len(ends) <= _SORTED:
            ends.sort()
        return TokenSet(as_numbers_if_few(self.words), ends)


def _one_at_a_time(
    use: Callable[Concatenate["WalkTable", P], R],
) -> Callable[Concatenate["WalkTable", P], R]:
    """Decorate a method of a table, of which no other thread is to use one meanwhile."""

    @wraps(use)
    def locked(table: "WalkTable", *args: P.args, **kwargs: P.kwargs) -> R:
        with table.lock:
            return use(table, *args, **kwargs)

    return locked


class WalkTable:
    """A machine of numbered states, whose moves are tabulated at their first use.

    Bytes that all states so far treat alike share a column: an automaton of thousands of words has
    a column for each letter, not for each byte. Grammars in several threads may share a table: one
    walk uses it at a time.
    """

    def __init__(
        self,
        moves: Callable[[int], Sequence[tuple[int, int, int]]],
        final: Sequence[bool],
        counted: Sequence[bool],
    ):
        """`moves(state)` returns first and last byte, and the next state.

        For each state, `final` tells whether a text may end there, and `counted` whether moves to
        it count. Both may grow.
        """
        self._moves, self._is_final, self._is_counted = moves, final, counted
        self.lock = RLock()
        self._column = np.zeros(256, np.uint8)  # by byte
        self._begins = [0]  # the first byte of each run of bytes with one column, sorted
        self._runs = [0]  # the column of each run
        self._cuts = {0, 256}  # the bytes at which runs begin or end
        self._to = np.full((_ROWS, _COLUMNS), _UNWRITTEN, dtype=np.int32)
        self._counted = np.zeros(_ROWS, np.bool_)
        self._final = np.zeros(_ROWS, np.uint8)
        self._written: set[int] = set()

    @property
    def nbytes(self) -> int:
        return _TABLE_BYTES + self._to.nbytes + self._counted.nbytes + self._final.nbytes

    @_one_at_a_time
    def walk(
        self, trie: Trie, roots: Sequence[tuple[int, int]], counting: bool
    ) -> tuple[Reached, Owners]:
        """Return the nodes reached from `roots`, these included, and the root of each.

        `roots` holds children of the trie's root, each with the state there.
        """
        nodes, states = np.array(roots, np.int32).reshape(-1, 2).T
        counts, owner = np.zeros(len(nodes), np.int32), np.arange(len(nodes), dtype=np.int16)
        reached_by_level = [(nodes, states, counts if counting else nodes[:0], owner)]
        levels = trie.levels[1:]
        for begin, end, last in zip(levels, levels[1:], levels[2:], strict=False):
            if not len(nodes):
                break
            self._write(np.flatnonzero(np.bincount(states)).tolist())
            if len(nodes) * _DENSE < end - begin:
                children, parent = trie.children_of(nodes)
                byte = trie.byte[children]
            else:  # most of a level: the whole next level is computed
                children, byte = np.arange(end, last, dtype=np.int32), trie.byte[end:last]
                place = np.full(end - begin, len(nodes), np.int32)
                place[nodes - begin] = np.arange(len(nodes), dtype=np.int32)
                parent = place[trie.parent[end:last] - begin]
                states = np.append(states, np.int32(len(self._to) - 1))  # for nodes not reached
            moves = self._places(states[parent], byte)
            to = self._to.ravel().take(moves)
            kept = np.flatnonzero(to >= 0)
            if counting:
                counts = counts[parent[kept]] + self._counted[to[kept]]
            nodes, states, owner = children[kept], to[kept], owner[parent[kept]]
            reached_by_level.append((nodes, states, counts if counting else nodes[:0], owner))
        nodes, states, counts, owner = map(np.concatenate, zip(*reached_by_level, strict=True))
        return Reached(nodes, states, counts), owner

    @_one_at_a_time
    def read(
        self, trie: Trie, nodes: Nodes, state: int, reach: "Reach", below: bool = False
    ) -> None:
        """Add to `reach` what is reached by the bytes of `nodes` from `state`, and below them.

        `below`: only what is below them, with `state` at the nodes.
        """
        if NATIVE is None:
            nodes = trie.children_of(nodes)[0] if below else nodes
            self.read_by_level(trie, nodes, state, reach)
            return
        places = trie.places[nodes]
        ranges = places + np.int32(below), places + trie.sizes[nodes]
        cursor, stack = np.zeros(_CURSOR, np.int64), np.empty(len(trie.levels), np.int32)
        ends = np.empty(_ENDS, np.int32)
        *preorder, node_at = trie.preorder
        self._write([state])  # now all states that it leads to have rows, if not moves
        while True:
            table = self._column, self._to, self._final
            outcome = NATIVE.walk_ranges(
                *preorder, *table, state, *ranges, cursor, stack, reach.words, ends
            )
            if outcome >= 0:
                self._write([outcome])
                continue
            reach.ends.append(node_at[ends[: cursor[_ENDS_AT]]])
            cursor[_ENDS_AT] = 0
            if outcome == _DONE:
                break
        reach.nodes += int(cursor[_READ_AT])

    @_one_at_a_time
    def read_by_level(self, trie: Trie, nodes: Nodes, state: int, reach: "Reach") -> None:
        """Do the same as `read` without the extension."""
        states = np.full(len(nodes), state, np.int32)
        tokens: list[Nodes] = []
        while len(nodes):
            reach.nodes += len(nodes)
            self._write(np.flatnonzero(np.bincount(states)).tolist())
            to = self._to.ravel().take(self._places(states, trie.byte[nodes]))
            kept = np.flatnonzero(to >= 0)
            nodes, states = nodes[kept], to[kept]
            tokens.append(trie.tokens_at(nodes)[0])
            reach.ends.append(nodes[(self._final[states] > 0) & (trie.children[nodes] > 0)])
            nodes, parent = trie.children_of(nodes)
            states = states[parent]
        add_tokens(reach.words, tokens)

    def _places(self, states: Nodes, bytes_: UInt8[np.ndarray, " _"]) -> np.ndarray:
        """Return the indices of moves in the flat tables."""
        return states * np.int64(self._to.shape[1]) + self._column[bytes_]

    def _write(self, states: Iterable[int]) -> None:
        for state in states:
            if state in self._written:
                continue
            moves = self._moves(state)
            self._grow(max([state, *(to for _, _, to in moves)]))
            for low, high, _ in moves:
                if low not in self._cuts:
                    self._part(low)
                if high + 1 not in self._cuts:
                    self._part(high + 1)
            begins, runs = self._begins, self._runs
            row = [_NOWHERE] * len(runs)
            for low, high, to in moves:
                place = bisect_left(begins, low)
                while place < len(begins) and begins[place] <= high:
                    row[runs[place]] = to
                    place += 1
                if self._is_final[to]:
                    self._final[to] = True
                if self._is_counted[to]:
                    self._counted[to] = True
            self._to[state, : len(row)] = row
            self._written.add(state)

    def _part(self, byte: int) -> None:
        """Let the bytes from `byte` on, where no run begins, have another column than before."""
        place = bisect_left(self._begins, byte)
        end = self._begins[place] if place < len(self._begins) else 256
        new, old = len(self._begins), self._runs[place - 1]
        if new == self._to.shape[1]:
            self._to = np.concatenate([self._to, np.full_like(self._to, _UNWRITTEN)], axis=1)
        self._to[:, new] = self._to[:, old]
        self._column[byte:end] = new
        self._cuts.add(byte)
        self._begins.insert(place, byte)
        self._runs.insert(place, new)

    def _grow(self, state: int) -> None:
        while state >= len(self._to) - 1:  # the last row has no moves
            self._to = np.concatenate([self._to, np.full_like(self._to, _UNWRITTEN)])
            self._counted = np.concatenate([self._counted, np.zeros_like(self._counted)])
            self._final = np.concatenate([self._final, np.zeros_like(self._final)])


@runtime_checkable
class Machine(Protocol):
    """A machine with any number of states, which are objects."""

    states: Any  # the machine in C, if the extension is built

    def likely(self, state: Any) -> Bool[np.ndarray, " 256"]:
        """Return a superset of the bytes for which `after` is not None."""
        ...

    def after(self, state: Any, byte: int) -> Any | None: ...


Beginning = tuple[Nodes, Any]  # nodes of a trie, with a machine's state there


def spell(trie: Trie, nodes: Nodes, text: bytes) -> TokenSet:
    """Return the tokens that spell the beginning of `text` below `nodes`, and the nodes at its end.

    The ends include `nodes` if `text` is empty.
    """
    if NATIVE is not None:
        tokens, ends = trie.native.spell(nodes, text)
        return TokenSet(np.frombuffer(tokens, np.int32), np.frombuffer(ends, np.int32))
    reached: list[int] = []
    if len(nodes) == 1:
        path = [*nodes.tolist(), *trie.along(text, node=nodes.item())]
        reached, nodes = path[1:], np.array(path[len(text) :], np.int32)
    else:
        for byte in text:
            nodes = trie.children_along(nodes, byte)
            reached += nodes.tolist()
    return TokenSet(trie.tokens_of(reached), nodes[trie.children[nodes] > 0])


class Explored:
    """A machine's states by number, with what is known of them: several walks may share it."""

    def __init__(self, machine: Machine):
        self._machine = machine
        self.states: list[Any] = []
        self._numbers: dict[Any, int] = {}
        self._likely: dict[int, np.ndarray] = {}
        self._moves: dict[int, int] = {}  # by the state's number and a byte

    @property
    def nbytes(self) -> int:
        """Approximate memory, without the states."""
        return _EXPLORED_BYTES * len(self._moves) + _LIKELY_BYTES * len(self._likely)

    def number(self, state: Any) -> int:
        number = self._numbers.get(state)
        if number is None:
            number = self._numbers[state] = len(self.states)
            self.states.append(state)
        return number

    def likely(self, number: int) -> Bool[np.ndarray, " 256"]:
        likely = self._likely.get(number)
        if likely is None:
            likely = self._likely[number] = self._machine.likely(self.states[number])
        return likely

    def after(self, move: int) -> int:
        """Return the number of the state after a move: 256 times a state's number, and a byte.

        -1 if there is none.
        """
        to = self._moves.get(move)
        if to is None:
            state = self._machine.after(self.states[move >> 8], move & 255)
            to = self._moves[move] = _NOWHERE if state is None else self.number(state)
        return to


class Walk:
    """A walk below nodes of a trie, which is continued if the machine stops it."""

    def __init__(self, trie: Trie, explored: Explored, begin: list[Beginning]):
        self._trie, self._explored = trie, explored
        none = np.zeros(0, np.int32)
        self._nodes, self._at = _joined(begin, explored.number)  # the last level
        self._reached = [(none, none)]  # all levels
        self._children: tuple[np.ndarray, ...] | None = None  # of the last level

    def reached(self) -> Reached:
        """Return the nodes reached, with the numbers of the states there."""
        while len(self._nodes):
            if len(self._nodes) > _FEW:
                self._nodes, self._at = self._next_level()
            else:
                self._nodes, self._at = self._next_nodes()
            self._reached.append((self._nodes, self._at))
        nodes, at = (np.concatenate(parts) for parts in zip(*self._reached, strict=True))
        return Reached(nodes, at, nodes[:0])

    def _next_level(self) -> tuple[Nodes, Nodes]:
        if self._children is None:
            children, before = _likely_children(self._trie, self._nodes, self._at, self._explored)
            moves = before << 8 | self._trie.byte[children]
            self._children = children, *np.unique(moves, return_inverse=True)
        children, moves, which = self._children
        to = np.array([*map(self._explored.after, moves.tolist())], np.int32)[which]
        kept = np.flatnonzero(to != _NOWHERE)
        self._children = None
        return children[kept], to[kept]

    def _next_nodes(self) -> tuple[Nodes, Nodes]:
        explored, level = self._explored, zip(self._nodes.tolist(), self._at.tolist(), strict=True)
        reached = [
            (child, after)
            for node, which in level
            for byte, child in _worth(self._trie, explored, node, which)
            if (after := explored.after(which << 8 | byte)) != _NOWHERE
        ]
        nodes, at = np.array(reached, np.int32).reshape(-1, 2).T
        return nodes, at


def parts_of(trie: Trie, begin: Sequence[Beginning], most: int) -> list[list[Beginning]]:
    """Split `begin` into parts, each with at most about `most` nodes of the trie below it."""
    parts: list[list[Beginning]] = []
    size = 0
    for nodes, state in begin:
        sizes = trie.sizes[nodes]
        before = np.cumsum(sizes) - sizes
        cuts = np.flatnonzero(np.diff(before // most)) + 1
        for piece, below in zip(np.split(nodes, cuts), np.split(sizes, cuts), strict=True):
            below = int(below.sum())
            if not parts or size + below > most:
                parts.append([])
                size = 0
            parts[-1].append((piece, state))
            size += below
    return parts


def _joined(begin: list[Beginning], number: Callable[[Any], int]) -> tuple[Nodes, Nodes]:
    """Return the nodes of several lists, with the numbers of their states."""
    if not begin:
        return np.zeros(0, np.int32), np.zeros(0, np.int32)
    at = [np.full(len(nodes), number(state), np.int32) for nodes, state in begin]
    return np.concatenate([nodes for nodes, _ in begin]), np.concatenate(at)


def _worth(trie: Trie, explored: Explored, node: int, state: int) -> Iterator[tuple[int, int]]:
    """Yield the children of one node; if there are many, only those by likely bytes."""
    if trie.child_count(node) <= _SEVERAL:
        return trie.each_child(node)
    return trie.children_by(node, np.flatnonzero(explored.likely(state)).tolist())


def _likely_children(
    trie: Trie, nodes: Nodes, at: Nodes, explored: Explored
) -> tuple[Nodes, Nodes]:
    """Return the children of `nodes` by likely bytes, with the states of their parents.

    `at` holds the state of each node. If the nodes are most of the trie, the search begins with
    the likely bytes instead.
    """
    present = np.flatnonzero(np.bincount(at)).astype(np.int32)
    if len(nodes) * _DENSE < len(trie) * len(present):
        row = np.zeros(int(present[-1]) + 1, np.int32)
        row[present] = np.arange(len(present), dtype=np.int32)
        children, parent = trie.children_of(nodes)
        before = at[parent]
        rows = np.stack([*map(explored.likely, present.tolist())])
        worth = np.flatnonzero(rows[row[before], trie.byte[children]])
        return children[worth], before[worth]
    by_state = []
    for state in present.tolist():
        reached = np.zeros(len(trie), bool)
        reached[nodes[at == state]] = True
        children = np.flatnonzero(explored.likely(state)[trie.byte]).astype(np.int32)
        by_state.append(children[reached[trie.parent[children]]])
    return np.concatenate(by_state), np.repeat(present, [*map(len, by_state)])
