"""Where the tokens lead that begin with one byte, within a terminal."""

from collections.abc import Iterator
from functools import cached_property
from itertools import pairwise

import numpy as np
from jaxtyping import Bool, Int32, Int64

from dlm.grammar.masks.walk import Nodes, Owners, Reached
from dlm.grammar.parse.literal import LiteralScanner
from dlm.grammar.parse.scanner import Scanner
from dlm.grammar.trie import Trie

TokensAt = tuple[Int32[np.ndarray, " tokens"], Int32[np.ndarray, " tokens"]]  # which of the nodes
Bounds = tuple[int, int | None]  # characters that must follow, and that may; None: any number
FAR = 1 << 40  # bytes: beyond any budget


class Branch:
    """Where tokens lead that begin with one byte, behind which the terminal is in one state.

    Characters are counted behind that byte.
    """

    def __init__(
        self,
        scanner: Scanner | LiteralScanner,
        reached: Reached,
        ends: Int64[np.ndarray, " ends"],
        tokens: TokensAt,
    ):
        """`scanner` numbers the states. `ends` are those of the nodes where the terminal may have
        ended, and tokens go on."""
        self.scanner, self._reached, self._ends, self._tokens = scanner, reached, ends, tokens

    @property
    def size(self) -> int:
        """Nodes of the trie."""
        return len(self._reached.nodes)

    @cached_property
    def most(self) -> int:
        """Characters to the nearest end by way of the node that is the farthest from one."""
        return int(self._needs.max())

    def tokens(self, bounds: Bounds) -> Int32[np.ndarray, " tokens"]:
        """Those that leave a way to the end."""
        tokens, at = self._tokens
        return tokens if self.all_fit(bounds) else tokens[self._fitting(bounds)[at]]

    def all_fit(self, bounds: Bounds) -> bool:
        """All nodes leave a way to the end."""
        low, high = bounds
        if low <= 0 and high is None:
            return True
        return low <= self._least and (high is None or self.most <= high)

    def ends(self, bounds: Bounds) -> Nodes:
        """The nodes that go on where the terminal may have ended."""
        nodes, (low, high) = self._reached.nodes[self._ends], bounds
        if low <= 0 and high is None:
            return nodes
        counts = self._reached.counts[self._ends]
        fit = counts >= low
        return nodes[fit if high is None else fit & (counts <= high)]

    def costs(
        self, bounds: Bounds, first: int
    ) -> tuple[Nodes, Int64[np.ndarray, " n"], Int64[np.ndarray, " n"]]:
        """The nodes that leave a way to the end, the fewest bytes of one, and where each is.

        Nodes in the same state of the terminal, after as many characters, are at the same place;
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
        """Characters to the nearest end, by way of each node."""
        scanner, reached = self.scanner, self._reached
        fewest = np.array(scanner.fewest_characters(), np.int32)
        return (reached.counts if len(reached.counts) else 0) + fewest[reached.states]

    @cached_property
    def _least(self) -> int:
        return int(self._needs.min())

    def _fitting(self, bounds: Bounds) -> Bool[np.ndarray, " n"]:
        """Which of the nodes leave a way to the end."""
        low, high = bounds
        needs = self._needs
        fit = np.ones(len(needs), bool) if high is None else needs <= high
        doubtful = np.flatnonzero(fit & (needs < low))  # longer ends are asked for
        if len(doubtful):
            fit[doubtful] = self._costs(doubtful, bounds) >= 0
        return fit

    def _costs(self, which: Int64[np.ndarray, " n"], bounds: Bounds) -> Int64[np.ndarray, " n"]:
        """The fewest bytes to the end from some of the nodes; -1: there is no way."""
        (low, high), counts = bounds, self._reached.counts
        most = int(counts.max()) + 1 if len(counts) else 1
        at = self._reached.states[which] * most  # few numbers: states and counts are small
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
    """A branch for each of the `count` roots of a walk, which most reach little: what all need is
    found at once."""
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
