"""The tokens that stay within a terminal: they depend on it alone, and are shared by all grammars.

A bounded terminal allows what an unbounded one allows, but for tokens that are too long for what
remains: one walk of the vocabulary serves all counts.
"""

from collections import OrderedDict
from functools import cached_property
from weakref import WeakKeyDictionary, WeakValueDictionary

import numpy as np
from jaxtyping import Bool, Int32, UInt32

from dlm.grammar.masks.bits import packed
from dlm.grammar.masks.walk import Nodes, Reached, Table
from dlm.grammar.parse.literal import LiteralScanner
from dlm.grammar.parse.network import scanner_of
from dlm.grammar.parse.scanner import Scanner
from dlm.grammar.rules.nodes import Terminal
from dlm.grammar.trie import Trie

_FEW = 1024  # nodes whose tokens are set one by one
_REMEMBERED = 256  # sets of tokens a terminal, 32 KiB each at 262,144 tokens

Words = UInt32[np.ndarray, " words"]
Bounds = tuple[int, int | None]  # characters that must follow, and that may; None: any number


class Within:
    """Where tokens lead from one state of a terminal, its bounds apart."""

    def __init__(self, scanner: Scanner | LiteralScanner, reached: Reached, trie: Trie):
        self._scanner, self.reached = scanner, reached
        final = np.flatnonzero(np.array(scanner.final)[reached.states])
        self._ends = final[trie.children[reached.nodes[final]] > 0]

    @cached_property
    def needs(self) -> Nodes:
        """The characters from the walk's beginning to the nearest end, by way of each node."""
        scanner, reached = self._scanner, self.reached
        fewest = np.array([scanner.fewest_characters(s) for s in range(len(scanner))], np.int32)
        return reached.counts + fewest[reached.states]

    @cached_property
    def most(self) -> int:
        return int(self.needs.max(initial=0))

    def fitting(self, bounds: Bounds) -> Bool[np.ndarray, " n"]:
        """Which of the nodes leave a way to the end."""
        low, high = bounds
        fit = np.ones(len(self.needs), bool) if high is None else self.needs <= high
        doubtful = np.flatnonzero(fit & (self.needs < low))  # longer ends are asked for
        if len(doubtful):
            at = self.reached.states[doubtful].astype(np.int64) << 32
            pairs, which = np.unique(at | self.reached.counts[doubtful], return_inverse=True)
            ways = [
                self._cost(pair >> 32, pair & 0xFFFFFFFF, bounds) is not None
                for pair in pairs.tolist()
            ]
            fit[doubtful] = np.array(ways)[which]
        return fit

    def ends(self, bounds: Bounds) -> Nodes:
        """The nodes that go on where the terminal may have ended."""
        low, high = bounds
        if bounds == (0, None):
            return self.reached.nodes[self._ends]
        counts = self.reached.counts[self._ends]
        fit = counts >= low
        return self.reached.nodes[self._ends[fit if high is None else fit & (counts <= high)]]

    def costs(self, bounds: Bounds) -> tuple[Nodes, np.ndarray]:
        """The nodes that leave a way to the end, and the fewest bytes of one from each."""
        at = self.reached.states.astype(np.int64) << 32
        if bounds != (0, None):
            at |= self.reached.counts
        pairs, which = np.unique(at, return_inverse=True)
        found = [self._cost(pair >> 32, pair & 0xFFFFFFFF, bounds) for pair in pairs.tolist()]
        costs = np.array([-1 if cost is None else cost for cost in found], np.int64)[which]
        fit = costs >= 0
        return self.reached.nodes[fit], costs[fit]

    def _cost(self, state: int, count: int, bounds: Bounds) -> int | None:
        low, high = bounds
        return self._scanner.cost(state, low - count, None if high is None else high - count)


class TerminalTokens:
    """What is known of one terminal, over one vocabulary."""

    def __init__(self, scanner: Scanner | LiteralScanner, all: "Terminals", trie: Trie, size: int):
        self._scanner, self._all, self._trie, self._size = scanner, all, trie, size
        self._table = Table(
            lambda s: [(low, high, to, scanner.counts(s, to)) for low, high, to in scanner.moves(s)]
        )
        self._within: dict[tuple[int, bool], Within] = {}
        self._words: OrderedDict[tuple[int, Bounds], Words] = OrderedDict()
        self._ends: dict[tuple[int, Bounds], Nodes] = {}

    def clamped(self, state: int, bounds: Bounds) -> Bounds:
        """Bounds with the same tokens: there is one mask for all of them."""
        if bounds == (0, None) or isinstance(self._scanner, LiteralScanner):
            return 0, None
        return self._scanner.clamped(*bounds, self._at(state, bounds).most)

    def _at(self, state: int, bounds: Bounds) -> Within:
        key = state, bounds != (0, None)
        if key not in self._within:
            if isinstance(self._scanner, LiteralScanner):
                nodes = np.array(self._trie.along(self._scanner.completion(state)), np.int32)
                states = np.arange(state + 1, state + 1 + len(nodes), dtype=np.int32)
                reached = Reached(nodes, states, nodes[:0])
            else:
                reached = self._table.walk(self._trie, *key)
            self._all.walked += len(reached.nodes)
            self._within[key] = Within(self._scanner, reached, self._trie)
        return self._within[key]

    def words(self, state: int, bounds: Bounds) -> Words:
        """The tokens that stay within, as packed bits."""
        key = state, bounds
        if key not in self._words:
            within = self._at(state, bounds)
            nodes = within.reached.nodes
            if bounds != (0, None):
                nodes = nodes[within.fitting(bounds)]
            self._words[key] = token_words(self._trie, nodes, self._size)
            if len(self._words) > _REMEMBERED:
                self._words.popitem(last=False)
        self._words.move_to_end(key)
        return self._words[key]

    def costs(self, state: int, bounds: Bounds) -> tuple[Nodes, np.ndarray]:
        return self._at(state, bounds).costs(bounds)

    def ends(self, state: int, bounds: Bounds) -> Nodes:
        """The nodes of the trie behind which a token goes on outside of the terminal."""
        key = state, bounds
        if key not in self._ends:
            self._ends[key] = self._at(state, bounds).ends(bounds)
        return self._ends[key]


class Terminals:
    """All terminals that grammars over one vocabulary use. Forgotten with the last such grammar."""

    def __init__(self, trie: Trie, size: int):
        self._trie, self._size = trie, size
        self.walked = 0  # nodes of the trie so far
        self._scanners: WeakValueDictionary[Terminal | bytes, Scanner | LiteralScanner]
        self._scanners = WeakValueDictionary()
        self._tokens: WeakKeyDictionary[Scanner | LiteralScanner, TerminalTokens]
        self._tokens = WeakKeyDictionary()

    def scanner(self, terminal: Terminal | bytes) -> Scanner | LiteralScanner:
        scanner = self._scanners.get(terminal)
        if scanner is None:
            scanner = self._scanners[terminal] = scanner_of(terminal)
        return scanner

    def tokens(self, scanner: Scanner | LiteralScanner) -> TerminalTokens:
        known = self._tokens.get(scanner)
        if known is None:
            known = self._tokens[scanner] = TerminalTokens(scanner, self, self._trie, self._size)
        return known


def token_words(trie: Trie, nodes: Int32[np.ndarray, " n"], size: int) -> Words:
    """The tokens that end at `nodes`, as packed bits of `size` tokens."""
    if len(nodes) > _FEW:
        return packed(trie.members(nodes))
    tokens = trie.tokens_at(nodes)[0]
    words = np.zeros(-(-size // 32), np.uint32)
    np.bitwise_or.at(words, tokens >> 5, np.uint32(1) << (tokens & 31).astype(np.uint32))
    return words
