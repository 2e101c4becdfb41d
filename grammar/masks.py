"""Sets of tokens: packed bits, a trie of a vocabulary, and walks that look up many tokens at once.

Packed bits are the format that grammars and mask kernels share. `GrammarMasks` is a grammar's table
of such sets, each kept once. Positions of a canvas share most sets: inside a string, all allow the
same tokens. So a position's mask is a row of the table, or one token.

A walk reads the trie level by level in arrays. A machine returns the state after a byte. The module
knows tokens as numbers, and neither terminals nor rules.
"""

from bisect import bisect_left
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
import xgrammar as xgr
from jaxtyping import Bool, Int16, Int32, UInt8, UInt32
from torch import Tensor

_FEW_TOKENS = 1024  # tokens that are set one by one
_SPARSE = 8  # if at most one of as many words holds a bit, only these are unpacked


def packed(tokens: np.ndarray) -> np.ndarray:
    """Return the packed bits of a set, given as a bool for each token."""
    bits = np.zeros(-(-len(tokens) // 32) * 32, dtype=bool)
    bits[: len(tokens)] = tokens
    return np.packbits(bits, bitorder="little").view(np.uint32)


def unpacked(words: np.ndarray) -> np.ndarray:
    """Return a byte for each bit."""
    return np.unpackbits(words.view(np.uint8), bitorder="little")


def tokens_in(words: np.ndarray) -> np.ndarray:
    """Return the numbers of the bits that are set, ascending."""
    at = np.flatnonzero(words != 0)  # comparing first takes a fourth of the time
    if len(at) * _SPARSE > len(words):
        return np.flatnonzero(unpacked(words).view(np.bool_))  # ten times as fast as for bytes
    found = np.flatnonzero(unpacked(words[at]).view(np.bool_))
    return (at[found >> 5] << 5) + (found & 31)


def token_words(tokens: Collection[int] | np.ndarray, size: int) -> UInt32[np.ndarray, " words"]:
    """Return the packed bits of a set, given as its tokens out of `size`."""
    numbers = tokens if isinstance(tokens, np.ndarray) else np.array([*tokens], np.int32)
    if len(numbers) > _FEW_TOKENS:
        members = np.zeros(size, dtype=bool)
        members[numbers] = True
        return packed(members)
    words = np.zeros(-(-size // 32), np.uint32)
    np.bitwise_or.at(words, numbers >> 5, np.uint32(1) << (numbers & 31).astype(np.uint32))
    return words


Mask = int  # a row of the table; or ~token, if only that token is allowed

_ROWS, _KNOWN = 1024, 1 << 16  # rows and keys, beyond which `trim` clears the table


class GrammarMasks:
    """A growing table of masks. A row does not change until `trim`."""

    def __init__(self, vocab_size: int):
        self._vocab_size = vocab_size
        self.known: dict[Hashable, Mask] = {}  # by the caller's keys
        self._rows: dict[int, Mask] = {}  # by the hash of their words
        self.age = 0  # number of times that the table was cleared
        self.count = 0  # rows in use
        self._allocate(2 * _ROWS)

    @property
    def nbytes(self) -> int:
        return self._words[: self.count].nbytes

    def trim(self) -> None:
        """Clear the table if it has too many rows or keys. Call it between two passes."""
        if self.count > _ROWS or len(self.known) > _KNOWN:
            self.clear()

    def clear(self) -> None:
        self._allocate(2 * _ROWS)
        self.count = 0
        self.known.clear()
        self._rows.clear()
        self.age += 1

    def words(self, mask: Mask) -> np.ndarray:
        """Return the allowed tokens as packed bits."""
        return self._words[self.changed(None, [~mask]) if mask < 0 else mask]

    def kept(self, key: Hashable, words: np.ndarray) -> Mask:
        """Return the row of `words`, and store it under `key`."""
        if key not in self.known:
            hashed = hash(words.tobytes())
            row = self._rows.get(hashed)
            if row is None or not np.array_equal(self._words[row], words):
                row = self._rows[hashed] = self._new()
                self._words[row] = words
            self.known[key] = row
        return self.known[key]

    def changed(
        self, mask: Mask | None, more: Collection[int] = (), fewer: Collection[int] = ()
    ) -> Mask:
        """Return the row `mask` with the tokens `more`, without `fewer`; None: the empty row."""
        held = None if mask is None or not fewer else self.words(mask)
        if held is not None:  # most tokens that are taken out are not in the row
            fewer = [token for token in fewer if held[token >> 5] >> (token & 31) & 1]
        if mask is not None and not more and not fewer:
            return mask
        key = mask, frozenset(more), frozenset(fewer)
        if key not in self.known:
            words = token_words(more, self._vocab_size)
            words = words if mask is None else self.words(mask) | words
            return self.kept(key, words & ~token_words(fewer, self._vocab_size))
        return self.known[key]

    def _new(self) -> Mask:
        """Return the number of an unused row."""
        if self.count == len(self._words):
            held = self._words
            self._allocate(2 * self.count)
            self._words[: self.count] = held
        self.count += 1
        return self.count - 1

    def _allocate(self, rows: int) -> None:
        """Make the table, in xgrammar's form. Rows take no memory before they are written."""
        shape = xgr.get_bitmask_shape(rows, self._vocab_size)
        self.table: Int32[Tensor, "rows words"] = torch.empty(shape, dtype=xgr.bitmask_dtype)
        self._words = self.table.numpy().view(np.uint32)  # shares memory


class Trie:
    """A trie of tokens by their bytes. Node 0 is the root, the empty text."""

    def __init__(self, pieces: Sequence[bytes]):
        """`pieces[i]` holds the bytes of token `i`; tokens without bytes are left out."""
        tokens = np.array([i for i, piece in enumerate(pieces) if piece], dtype=np.int32)
        raw = np.array([pieces[i] for i in tokens] or [b""])
        sizes = np.array([len(pieces[i]) for i in tokens] or [0], dtype=np.int32)
        order = np.lexsort((sizes, raw))
        tokens, sizes = tokens[order[: len(tokens)]], sizes[order]
        table = raw[order].view(np.uint8).reshape(len(order), -1)

        self.levels = [0, 1]  # the first node of each depth, then the number of nodes
        values, parents = [np.zeros(1, np.uint8)], [np.zeros(1, np.int32)]
        node_of = np.zeros(len(order), dtype=np.int32)  # by piece: its node at the current depth
        count = 1
        for depth in range(int(sizes.max())):
            rows = np.flatnonzero(sizes > depth)
            byte, parent = table[rows, depth], node_of[rows]
            new = np.ones(len(rows), dtype=bool)
            new[1:] = (byte[1:] != byte[:-1]) | (parent[1:] != parent[:-1])
            node_of[rows] = count + np.cumsum(new) - 1
            values.append(byte[new])
            parents.append(parent[new])
            count += len(values[-1])
            self.levels.append(count)
        self.byte: UInt8[np.ndarray, " nodes"] = np.concatenate(values)
        self.parent: Int32[np.ndarray, " nodes"] = np.concatenate(parents)
        children = np.bincount(self.parent[1:], minlength=count)
        self.children: Int32[np.ndarray, " nodes"] = children.astype(np.int32)  # how many
        self.first: Int32[np.ndarray, " nodes"] = (1 + np.cumsum(children) - children).astype(
            np.int32
        )
        by_node = np.argsort(node_of[: len(tokens)], kind="stable")
        self.tokens: Int32[np.ndarray, " tokens"] = tokens[by_node]  # sorted by node
        held = np.bincount(node_of[: len(tokens)], minlength=count)
        self.token_first: Int32[np.ndarray, " nodes"] = (np.cumsum(held) - held).astype(np.int32)
        self.token_count: Int32[np.ndarray, " nodes"] = held.astype(np.int32)
        self._first, self._children = self.first.data, self.children.data
        self._bytes = self.byte.tobytes()
        self.first_bytes = dict(self.each_child(0))  # the root's children, by byte

    @cached_property
    def sizes(self) -> Int32[np.ndarray, " nodes"]:
        """The number of nodes below each node, itself included."""
        sizes = np.ones(len(self), np.int32)
        for begin, end in zip(self.levels[-2:0:-1], self.levels[:1:-1], strict=True):
            np.add.at(sizes, self.parent[begin:end], sizes[begin:end])
        return sizes

    @cached_property
    def places(self) -> Int32[np.ndarray, " nodes"]:
        """The place of each node in preorder, where all nodes below a node come right after it."""
        places = np.zeros(len(self), np.int32)
        for begin, end in pairwise(self.levels[1:]):
            sizes = self.sizes[begin:end]
            before = np.cumsum(sizes) - sizes
            parent = self.parent[begin:end]
            first = np.maximum.accumulate(np.where(np.diff(parent, prepend=-1) != 0, before, 0))
            places[begin:end] = places[parent] + 1 + before - first
        return places

    def __len__(self) -> int:
        """Return the number of nodes."""
        return len(self.byte)

    def children_of(
        self, nodes: Int32[np.ndarray, " n"]
    ) -> tuple[Int32[np.ndarray, " m"], Int32[np.ndarray, " m"]]:
        """Return all children of `nodes`, and for each the index of its parent in `nodes`."""
        return ranges(self.first[nodes], self.children[nodes])

    def each_child(self, node: int) -> Iterator[tuple[int, int]]:
        """Yield bytes and numbers of one node's children, which is quicker for a few nodes."""
        first = self._first[node]
        end = first + self._children[node]
        return zip(self._bytes[first:end], range(first, end), strict=True)

    def child_count(self, node: int) -> int:
        return self._children[node]

    def children_by(self, node: int, bytes_: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Yield those children of one node whose byte is in `bytes_`."""
        first = self._first[node]
        end = first + self._children[node]
        for byte in bytes_:
            child = self._bytes.find(byte, first, end)
            if child >= 0:
                yield byte, child

    def along(self, text: bytes, start: int = 0) -> Iterator[int]:
        """Yield the nodes that spell `text[start:]`, byte by byte, up to its first unknown byte."""
        node = 0
        for place in range(start, len(text)):
            first = self._first[node]
            node = self._bytes.find(text[place], first, first + self._children[node])
            if node < 0:
                return
            yield node

    def tokens_at(
        self, nodes: Int32[np.ndarray, " n"]
    ) -> tuple[Int32[np.ndarray, " m"], Int32[np.ndarray, " m"]]:
        """Return the tokens that end at `nodes`, and for each the index of its node."""
        held = np.flatnonzero(self.token_count[nodes]).astype(np.int32)
        places, owner = ranges(self.token_first[nodes[held]], self.token_count[nodes[held]])
        return self.tokens[places], held[owner]


def ranges(
    first: Int32[np.ndarray, " n"], count: Int32[np.ndarray, " n"]
) -> tuple[Int32[np.ndarray, " m"], Int32[np.ndarray, " m"]]:
    """Return the numbers `first[i]` to `first[i] + count[i] - 1` for each `i`, and their `i`."""
    owner = np.repeat(np.arange(len(first), dtype=np.int32), count)
    begin = np.cumsum(count) - count
    return np.arange(len(owner), dtype=np.int32) + (first - begin).astype(np.int32)[owner], owner


Nodes = Int32[np.ndarray, " _"]
Owners = Int16[np.ndarray, " _"]  # for each node, the index of the root it is reached from
_NOWHERE = -1
_DENSE = 4  # from 1/4 of a level on, all of its nodes are computed
_FEW = 100  # nodes up to which a level is read one by one
_TABLE_BYTES = 1500  # of memory of a table without moves
_SEVERAL = 24  # children of a node, beyond which only likely bytes are looked up


@dataclass(frozen=True, slots=True)
class Reached:
    """The trie nodes that a walk reaches, with the states there."""

    nodes: Nodes
    states: Nodes
    counts: Nodes  # counted moves up to each node; empty if moves are not counted


class WalkTable:
    """A machine of numbered states, whose moves are tabulated at their first use.

    Bytes that all states so far treat alike share a column: an automaton of thousands of words has
    a column for each letter, not for each byte.
    """

    def __init__(self, moves: Callable[[int], list[tuple[int, int, int, bool]]]):
        """`moves(state)` returns first and last byte, next state, and whether the move counts."""
        self._moves = moves
        self._column = np.zeros(256, np.uint8)  # by byte
        self._begins = [0]  # the first byte of each run of bytes with one column, sorted
        self._to = np.full((16, 1), _NOWHERE, dtype=np.int32)
        self._counts = np.zeros((16, 1), dtype=np.bool_)
        self._written: set[int] = set()

    @property
    def nbytes(self) -> int:
        return _TABLE_BYTES + self._to.nbytes + self._counts.nbytes

    def walk(
        self, trie: Trie, roots: Sequence[tuple[int, int]], counting: bool
    ) -> tuple[Reached, Owners]:
        """Return the nodes reached from `roots`, these included, and the root of each.

        `roots` holds children of the trie's root, each with the state there.
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
            else:  # most of a level: the whole next level is computed
                children, byte = np.arange(end, last, dtype=np.int32), trie.byte[end:last]
                place = np.full(end - begin, len(nodes), np.int32)
                place[nodes - begin] = np.arange(len(nodes), dtype=np.int32)
                parent = place[trie.parent[end:last] - begin]
                states = np.append(states, np.int32(len(self._to) - 1))  # for nodes not reached
            moves = self._places(states[parent], byte)
            to = self._to.ravel().take(moves)
            kept = np.flatnonzero(to != _NOWHERE)
            if counting:
                counts = counts[parent[kept]] + self._counts.ravel().take(moves[kept])
            nodes, states, owner = children[kept], to[kept], owner[parent[kept]]
            found.append((nodes, states, counts if counting else nodes[:0], owner))
        nodes, states, counts, owner = map(np.concatenate, zip(*found, strict=True))
        return Reached(nodes, states, counts), owner

    def walk_below(self, trie: Trie, nodes: Nodes, state: int) -> Reached:
        """Return the nodes reached below `nodes`, which may have any depth and are in `state`."""
        states = np.full(len(nodes), state, np.int32)
        found = [(nodes[:0], states[:0])]
        while len(nodes):
            self._write(np.flatnonzero(np.bincount(states)).tolist())
            children, parent = trie.children_of(nodes)
            to = self._to.ravel().take(self._places(states[parent], trie.byte[children]))
            kept = np.flatnonzero(to != _NOWHERE)
            nodes, states = children[kept], to[kept]
            found.append((nodes, states))
        nodes, states = (np.concatenate(each) for each in zip(*found, strict=True))
        return Reached(nodes, states, nodes[:0])

    def _places(self, states: Nodes, bytes_: UInt8[np.ndarray, " _"]) -> np.ndarray:
        """Return the indices of moves in the flat tables."""
        return states * np.int64(self._to.shape[1]) + self._column[bytes_]

    def _write(self, states: list[int]) -> None:
        for state in states:
            if state in self._written:
                continue
            moves = self._moves(state)
            self._grow(max([state, *(to for _, _, to, _ in moves)]))
            for low, high, to, counts in moves:
                self._part(low)
                self._part(high + 1)
                columns = self._column[low : high + 1]
                self._to[state, columns] = to
                self._counts[state, columns] = counts
            self._written.add(state)

    def _part(self, byte: int) -> None:
        """Let the bytes from `byte` on have another column than those before it."""
        place = bisect_left(self._begins, byte)
        if byte > 0xFF or self._begins[place : place + 1] == [byte]:
            return
        end = self._begins[place] if place < len(self._begins) else 256
        new, old = len(self._begins), self._column[byte]
        if new == self._to.shape[1]:
            self._to = np.concatenate([self._to, np.full_like(self._to, _NOWHERE)], axis=1)
            self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)], axis=1)
        self._to[:, new], self._counts[:, new] = self._to[:, old], self._counts[:, old]
        self._column[byte:end] = new
        self._begins.insert(place, byte)

    def _grow(self, state: int) -> None:
        while state >= len(self._to) - 1:  # the last row has no moves
            self._to = np.concatenate([self._to, np.full_like(self._to, _NOWHERE)])
            self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])


@runtime_checkable
class Machine(Protocol):
    """A machine with any number of states, which are objects."""

    def likely(self, state: Any) -> Bool[np.ndarray, " 256"]:
        """Return a superset of the bytes for which `after` is not None."""
        ...

    def after(self, state: Any, byte: int) -> Any | None: ...


def walk(trie: Trie, machine: Machine, begin: list[tuple[Nodes, Any]]) -> tuple[Reached, list[Any]]:
    """Return the nodes reached below `begin`, and the states by their numbers.

    `begin` holds lists of nodes, each with the machine's state there.
    """
    states: list[Any] = []
    numbers: dict[Any, int] = {}

    def number(state: Any) -> int:
        if state not in numbers:
            numbers[state] = len(states)
            states.append(state)
        return numbers[state]

    few: list[tuple[int, int]] = []  # nodes and states, from levels that are read one by one
    found = [(np.zeros(0, np.int32), np.zeros(0, np.int32))]
    level: list[tuple[int, int]] = []
    nodes, at = _joined(begin, number)
    while len(nodes):
        if len(nodes) > _FEW:
            likely = np.stack([machine.likely(state) for state in states])
            children, before = _likely_children(trie, nodes, at, likely)
            moves, which = np.unique(before << 8 | trie.byte[children], return_inverse=True)
            onward = [machine.after(states[move >> 8], move & 255) for move in moves.tolist()]
            to = np.array([_NOWHERE if s is None else number(s) for s in onward], np.int32)[which]
            kept = np.flatnonzero(to != _NOWHERE)
            nodes, at = children[kept], to[kept]
            found.append((nodes, at))
            continue
        level = [*zip(nodes.tolist(), at.tolist(), strict=True)]
        while level and len(level) <= _FEW:
            level = [
                (child, number(after))
                for node, which in level
                for byte, child in _worth(trie, machine, node, states[which])
                if (after := machine.after(states[which], byte)) is not None
            ]
            few += level
        nodes, at = np.array(level, np.int32).reshape(-1, 2).T
    nodes, at = np.array(few, np.int32).reshape(-1, 2).T
    found.append((nodes, at))
    nodes, at = (np.concatenate(each) for each in zip(*found, strict=True))
    return Reached(nodes, at, nodes[:0]), states


def _joined(begin: list[tuple[Nodes, Any]], number: Callable[[Any], int]) -> tuple[Nodes, Nodes]:
    """Return the nodes of several lists, with the numbers of their states."""
    if not begin:
        return np.zeros(0, np.int32), np.zeros(0, np.int32)
    at = [np.full(len(each), number(state), np.int32) for each, state in begin]
    return np.concatenate([each for each, _ in begin]), np.concatenate(at)


def _worth(trie: Trie, machine: Machine, node: int, state: Any) -> Iterator[tuple[int, int]]:
    """Yield the children of one node; if there are many, only those by likely bytes."""
    if trie.child_count(node) <= _SEVERAL:
        return trie.each_child(node)
    return trie.children_by(node, np.flatnonzero(machine.likely(state)).tolist())


def _likely_children(
    trie: Trie, nodes: Nodes, at: Nodes, likely: Bool[np.ndarray, "states 256"]
) -> tuple[Nodes, Nodes]:
    """Return the children of `nodes` by likely bytes, with the states of their parents.

    `at` holds the state of each node. If the nodes are most of the trie, the search begins with
    the likely bytes instead.
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
