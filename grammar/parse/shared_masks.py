"""Tokens of a terminal by their first byte (`Branch`), and unfinished JSON values (`Partial`).

JSON values are equal whatever the order of keys and the spelling of numbers and strings. The part
about values knows no grammar.
"""

import json
import re
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from jaxtyping import Bool, Int32, Int64

from dlm.grammar.masks import Nodes, Owners, Reached, Trie
from dlm.grammar.parse.scanner import LiteralScanner, Scanner

TokensAt = tuple[Int32[np.ndarray, " tokens"], Int32[np.ndarray, " tokens"]]  # with node indices
Bounds = tuple[int, int | None]  # characters that must and that may follow; None: any number
FAR = 1 << 40  # bytes: beyond any budget


class Branch:
    """The tokens that begin with one byte, read within a terminal from the state after that byte.

    Characters are counted from after that byte.
    """

    def __init__(
        self,
        scanner: Scanner | LiteralScanner,
        reached: Reached,
        ends: Int64[np.ndarray, " ends"],
        tokens: TokensAt,
    ):
        """`scanner` numbers the states. `ends` holds indices of the nodes at which the terminal
        may end and a token may continue."""
        self.scanner, self._reached, self._ends, self._tokens = scanner, reached, ends, tokens

    @property
    def size(self) -> int:
        """The number of trie nodes."""
        return len(self._reached.nodes)

    @cached_property
    def most(self) -> int:
        """The most characters that any node needs to its nearest end."""
        return int(self._needs.max())

    def tokens(self, bounds: Bounds) -> Int32[np.ndarray, " tokens"]:
        """Return the tokens after which the end can be reached within `bounds`."""
        tokens, at = self._tokens
        return tokens if self.all_fit(bounds) else tokens[self._fitting(bounds)[at]]

    def all_fit(self, bounds: Bounds) -> bool:
        """Whether the end can be reached from all nodes. False may mean that it is not known."""
        low, high = bounds
        if low <= 0 and high is None:
            return True
        return low <= self._least and (high is None or self.most <= high)

    def ends(self, bounds: Bounds) -> Nodes:
        """Return the nodes at which the terminal may end, and a token may continue after it."""
        nodes, (low, high) = self._reached.nodes[self._ends], bounds
        if low <= 0 and high is None:
            return nodes
        counts = self._reached.counts[self._ends]
        fit = counts >= low
        return nodes[fit if high is None else fit & (counts <= high)]

    def costs(
        self, bounds: Bounds, first: int
    ) -> tuple[Nodes, Int64[np.ndarray, " n"], Int64[np.ndarray, " n"]]:
        """Return the nodes that can reach the end, the fewest bytes to it, and their places.

        Nodes have equal places if they are in the same state after equally many characters.
        `first` is the number of characters before the branch.
        """
        costs = self._costs(np.arange(self.size), bounds)
        fit = costs >= 0
        places = self._reached.states[fit].astype(np.int64) << 24
        if len(self._reached.counts):
            places += self._reached.counts[fit] + first
        return self._reached.nodes[fit], costs[fit], places

    @cached_property
    def _needs(self) -> Nodes:
        """Characters to the nearest end of a text that passes each node."""
        scanner, reached = self.scanner, self._reached
        fewest = np.array(scanner.fewest_characters(), np.int32)
        return (reached.counts if len(reached.counts) else 0) + fewest[reached.states]

    @cached_property
    def _least(self) -> int:
        return int(self._needs.min())

    def _fitting(self, bounds: Bounds) -> Bool[np.ndarray, " n"]:
        """Return for each node whether the end can be reached within `bounds`."""
        low, high = bounds
        needs = self._needs
        fit = np.ones(len(needs), bool) if high is None else needs <= high
        doubtful = np.flatnonzero(fit & (needs < low))  # a longer text is required
        if len(doubtful):
            fit[doubtful] = self._costs(doubtful, bounds) >= 0
        return fit

    def _costs(self, which: Int64[np.ndarray, " n"], bounds: Bounds) -> Int64[np.ndarray, " n"]:
        """Return the fewest bytes to the end from the nodes `which`; -1: it is unreachable."""
        (low, high), counts = bounds, self._reached.counts
        most = int(counts.max()) + 1 if len(counts) else 1
        at = self._reached.states[which] * most  # small numbers: `bincount` is cheap
        if len(counts):
            at += counts[which]
        found = np.flatnonzero(np.bincount(at))
        costs = np.zeros(found[-1] + 1 if len(found) else 0, np.int64)
        for place in found.tolist():
            state, count = divmod(place, most)
            rest = None if high is None else high - count
            cost = self.scanner.cost(state, low - count, rest)
            costs[place] = -1 if cost is None else min(cost, FAR)
        return costs[at]


def branches(
    scanner: Scanner | LiteralScanner, reached: Reached, owner: Owners, count: int, trie: Trie
) -> Iterator[Branch]:
    """Yield a branch for each of the `count` roots of a walk.

    Most branches are small, so the arrays are computed for all of them together.
    """
    order = np.argsort(owner, kind="stable")
    nodes, states = reached.nodes[order], reached.states[order]
    counts = reached.counts[order] if len(reached.counts) else reached.counts
    tokens, at = trie.tokens_at(nodes)
    final = np.flatnonzero(np.array(scanner.final)[states] & (trie.children[nodes] > 0))
    begins = np.cumsum([0, *np.bincount(owner, minlength=count)])
    cuts, ends = np.searchsorted(at, begins).tolist(), np.searchsorted(final, begins).tolist()
    for i, (begin, end) in enumerate(pairwise(begins.tolist())):
        here, own = slice(begin, end), slice(cuts[i], cuts[i + 1])
        yield Branch(
            scanner,
            Reached(nodes[here], states[here], counts[here]),
            final[ends[i] : ends[i + 1]] - begin,
            (tokens[own], at[own] - begin),
        )


_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[-+.eE0-9]+|true|false|null|[\[\]{},:]', re.DOTALL)
_NUMBER = b"0123456789-"


def hashable(item: Any) -> Hashable:
    """Return a hashable value, equal for equal JSON values only. Numbers have to be `Decimal`."""
    match item:
        case Decimal():
            sign, digits, exponent = item.as_tuple()
            plain = "".join(map(str, digits)).rstrip("0")
            zeros = len(digits) - len(plain)
            return ("number", sign, plain, int(exponent) + zeros) if plain.strip("0") else "zero"
        case list():
            return ("array", *map(hashable, item))
        case dict():
            return ("object", frozenset((key, hashable(each)) for key, each in item.items()))
        case str():
            return ("string", item)
    return ("literal", item)


@dataclass
class _Open:
    """An array or an object that is not closed yet."""

    kind: str
    children: list[Any] = field(default_factory=list)  # values; pairs of key and value
    key: str | None = None  # the key whose value is next, or is begun
    ended: bool = False  # a child has ended: a comma or the end is next


class Partial:
    """The beginning of an array or an object, without white space."""

    def __init__(self, text: bytes):
        self._open: list[_Open] = []
        self._tail = b""  # the string, number or literal that has begun
        at = 0
        while at < len(text):
            found = _TOKEN.match(text, at)
            number = found is not None and text[at] in _NUMBER
            if found is None or (number and found.end() == len(text)):
                self._tail = text[at:]
                return
            self._read(found[0])
            at = found.end()

    def may_become(self, value: Hashable) -> bool:
        """Whether the text may be completed to equal `value`, which `hashable` returned."""
        try:
            return next(self._continuations(0, value), None) is not None
        except RecursionError:  # Python can not hold the value
            return False

    def continuations(self, value: Hashable) -> list[bytes]:
        """Return continuations of the text to `value`, each up to the end of one JSON token."""
        try:
            return [*self._continuations(0, value)]
        except RecursionError:
            return []

    def _read(self, token: bytes) -> None:
        top = self._open[-1] if self._open else _Open("array")
        match token:
            case b"[" | b"{":
                self._open.append(_Open("array" if token == b"[" else "object"))
            case b"]" | b"}":
                children = self._open.pop().children
                closed = (top.kind, *children) if token == b"]" else (top.kind, frozenset(children))
                self._add(closed)
            case b",":
                top.ended = False
            case b":":
                pass
            case _ if token[:1] == b'"' and top.kind == "object" and top.key is None:
                top.key = json.loads(token)
            case _:
                self._add(_read(token))

    def _add(self, value: Hashable) -> None:
        if self._open:
            top = self._open[-1]
            top.children.append((top.key, value) if top.kind == "object" else value)
            top.key, top.ended = None, True

    def _continuations(self, depth: int, value: Hashable) -> Iterator[bytes]:
        if depth == len(self._open):
            yield from _rests(self._tail, value)
            return
        here = self._open[depth]
        if not isinstance(value, tuple) or value[0] != here.kind:
            return
        done = len(here.children)
        if here.kind == "array":
            items = value[1:]
            if items[:done] != tuple(here.children):
                return
            if here.ended:
                yield b"]" if len(items) == done else b","
            elif done < len(items):
                yield from self._continuations(depth + 1, items[done])
            elif not items and depth + 1 == len(self._open) and not self._tail:
                yield b"]"
            return
        pairs: Any = value[1]
        if not all(pair in pairs for pair in here.children):
            return
        if here.ended:
            yield b"}" if len(pairs) == done else b","
            return
        if not pairs and here.key is None and not self._tail:
            yield b"}"
        for key, inner in pairs:
            if here.key is None and (key, inner) not in here.children:
                yield from _rests(self._tail, ("string", key))
            elif here.key == key:
                yield from self._continuations(depth + 1, inner)


def _read(token: bytes) -> Hashable:
    """Return the value of a string, a number or a literal; `token` itself if Python has none."""
    try:
        return hashable(json.loads(token, parse_float=Decimal, parse_int=Decimal))
    except (ArithmeticError, ValueError):
        return token


def _rests(tail: bytes, value: Hashable) -> Iterator[bytes]:
    """Yield the rests of a token of `value` that begins with `tail`."""
    kind, *more = value if isinstance(value, tuple) else ("number",)
    if kind == "string" and tail[:1] in (b"", b'"'):
        text = json.dumps(more[0], ensure_ascii=False).encode(errors="surrogatepass")
        if text.startswith(tail):
            yield text[len(tail) :]
        elif b"\\" in tail:  # another spelling of it
            yield b""
    elif kind == "number" and (not tail or tail[0] in _NUMBER):
        yield b""
    elif kind == "literal":
        text = json.dumps(more[0]).encode()
        if text.startswith(tail):
            yield text[len(tail) :]
    elif not tail and kind in ("array", "object"):
        yield b"[" if kind == "array" else b"{"
