"""A trie of the tokens of a vocabulary, by their bytes."""

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int32, UInt8

from dlm.grammar.masks.bits import NATIVE

_FEW = 32  # nodes up to which children are looked up one by one


class Preorder(NamedTuple):
    """The nodes of a trie by their places in preorder."""

    byte: UInt8[np.ndarray, " nodes"]
    size: Int32[np.ndarray, " nodes"]
    depth: Int32[np.ndarray, " nodes"]
    first: Int32[np.ndarray, " nodes_and_end"]  # the index in `tokens` of each node's first token
    tokens: Int32[np.ndarray, " tokens"]
    node: Int32[np.ndarray, " nodes"]

    def tokens_below(self, place: int) -> Int32[np.ndarray, " _"]:
        """Return the tokens of the node at `place` and of all nodes below it."""
        return self.tokens[self.first[place] : self.first[place + self.size[place]]]


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
        counts = np.bincount(node_of[: len(tokens)], minlength=count)
        self.token_first: Int32[np.ndarray, " nodes"] = (np.cumsum(counts) - counts).astype(
            np.int32
        )
        self.token_count: Int32[np.ndarray, " nodes"] = counts.astype(np.int32)
        self._first, self._children = self.first.data, self.children.data
        self._tokens = self.tokens.data
        self._token_first, self._token_count = self.token_first.data, self.token_count.data
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

    @cached_property
    def first_nodes(self) -> Int32[np.ndarray, "256"]:
        """The root's child by each byte; -1: it has none."""
        return np.array([self.first_bytes.get(byte, -1) for byte in range(256)], np.int32)

    @cached_property
    def first_sizes(self) -> Int32[np.ndarray, "256"]:
        """The number of nodes that begin with each byte."""
        return np.where(self.first_nodes < 0, 0, self.sizes[self.first_nodes])

    @cached_property
    def first_byte(self) -> UInt8[np.ndarray, " nodes"]:
        """The first byte of each node's text; 0 for the root, which has none."""
        first = self.byte.copy()
        for begin, end in pairwise(self.levels[2:]):
            first[begin:end] = first[self.parent[begin:end]]
        return first

    @cached_property
    def preorder(self) -> Preorder:
        """The nodes in the order of their places."""
        node = np.argsort(self.places).astype(np.int32)
        depth = np.repeat(np.arange(len(self.levels) - 1, dtype=np.int32), np.diff(self.levels))
        places, _ = ranges(self.token_first[node], self.token_count[node])
        first = np.concatenate([[0], np.cumsum(self.token_count[node])]).astype(np.int32)
        tokens = self.tokens[places]
        return Preorder(self.byte[node], self.sizes[node], depth[node], first, tokens, node)

    @cached_property
    def native(self) -> Any:
        """The trie for the functions of the extension, with its arrays checked."""
        arrays = self.byte, self.first, self.children, self.token_first, self.token_count
        return NATIVE.Trie(*arrays, self.tokens, len(self.levels))

    def prepare(self) -> None:
        """Compute now what is computed at its first use: 2 ms of a mask at 600,000 nodes."""
        names = [
            "preorder",
            "first_sizes",
            "first_byte",
            *(["native"] if NATIVE is not None else []),
        ]
        for name in names:
            getattr(self, name)

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

    def child(self, node: int, byte: int) -> int:
        """Return the child of one node by one byte; -1: it has none."""
        first = self._first[node]
        return self._bytes.find(byte, first, first + self._children[node])

    def children_by(self, node: int, bytes_: Iterable[int]) -> Iterator[tuple[int, int]]:
        """Yield those children of one node whose byte is in `bytes_`."""
        for byte in bytes_:
            if (child := self.child(node, byte)) >= 0:
                yield byte, child

    def children_along(self, nodes: Int32[np.ndarray, " n"], byte: int) -> Int32[np.ndarray, " m"]:
        """Return the children of `nodes` by one byte."""
        if len(nodes) > _FEW:
            children, _ = self.children_of(nodes)
            return children[self.byte[children] == byte]
        each_child = (self.child(node, byte) for node in nodes.tolist())
        return np.array([child for child in each_child if child >= 0], np.int32)

    def along(self, text: bytes, start: int = 0, node: int = 0) -> Iterator[int]:
        """Yield the nodes that spell `text[start:]` below `node`, up to its first unknown byte."""
        for place in range(start, len(text)):
            if (node := self.child(node, text[place])) < 0:
                return
            yield node

    def are_apart(self, nodes: Int32[np.ndarray, " n"]) -> bool:
        """Return whether no node of `nodes` is below another."""
        if len(nodes) < 2:
            return True
        begin = np.sort(self.places[nodes])
        return not np.any(begin[1:] < (begin + self.sizes[self.preorder.node[begin]])[:-1])

    def spelled(self, node: int, spelling: Sequence[bytes]) -> list[int]:
        """Return the nodes below `node` whose bytes are, one after the other, in `spelling`."""
        nodes, find, first, children = [node], self._bytes.find, self._first, self._children
        for bytes_ in spelling:
            nodes = [
                child
                for parent in nodes
                for byte in bytes_
                if (child := find(byte, first[parent], first[parent] + children[parent])) >= 0
            ]
            if not nodes:
                break
        return nodes

    def tokens_of(self, nodes: Sequence[int]) -> Int32[np.ndarray, " m"]:
        """Return the tokens that end at `nodes`, which is quicker for a few nodes."""
        first, count, tokens = self._token_first, self._token_count, self._tokens
        spans = (tokens[first[node] : first[node] + count[node]] for node in nodes)
        return np.array([token for span in spans for token in span], np.int32)

    def tokens_at(
        self, nodes: Int32[np.ndarray, " n"]
    ) -> tuple[Int32[np.ndarray, " m"], Int32[np.ndarray, " m"]]:
        """Return the tokens that end at `nodes`, and for each the index of its node."""
        ends = np.flatnonzero(self.token_count[nodes]).astype(np.int32)
        places, owner = ranges(self.token_first[nodes[ends]], self.token_count[nodes[ends]])
        return self.tokens[places], ends[owner]


def ranges(
    first: Int32[np.ndarray, " n"], count: Int32[np.ndarray, " n"]
) -> tuple[Int32[np.ndarray, " m"], Int32[np.ndarray, " m"]]:
    """Return the numbers `first[i]` to `first[i] + count[i] - 1` for each `i`, and their `i`."""
    owner = np.repeat(np.arange(len(first), dtype=np.int32), count)
    begin = np.cumsum(count) - count
    return np.arange(len(owner), dtype=np.int32) + (first - begin).astype(np.int32)[owner], owner


Nodes = Int32[np.ndarray, " _"]
