"""Walks of a vocabulary's trie within one terminal, which all grammars and all bounds share.

A bounded terminal allows the tokens of an unbounded one, without those that are too long. Most
bytes lead to the same state from many states of a terminal, so the walk after such a byte is shared
(`Branch`).

Many terminals of JSON take all texts except a few, for example the keys that a schema does not
name. Once a text differs from the exceptions, any text may follow. The walk from there is done once
(`AnyText`), and other terminals take their part of it by the order of the trie.
"""

from collections.abc import Iterator, Mapping
from functools import cached_property
from itertools import pairwise

import numpy as np
from jaxtyping import Bool, Int32, Int64

from dlm.grammar.masks.trie import Nodes, Trie, ranges
from dlm.grammar.masks.walks import Owners, Reached, WalkTable
from dlm.grammar.parse.scanner import CharacterRanges, LiteralScanner, Scanner

TokensAt = tuple[Int32[np.ndarray, " tokens"], Int32[np.ndarray, " tokens"]]  # with node indices
Bounds = tuple[int, int | None]  # characters that must and that may follow; None: any number
UNBOUNDED: Bounds = 0, None
NOT_EMPTY: Bounds = 1, None
FAR = 1 << 40  # bytes: beyond any budget
_SPARSE = 32  # numbers are sparse if the largest exceeds their count by this factor


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

    def places(self) -> tuple[Reached, list[tuple[int, int]], Int64[np.ndarray, " n"]]:
        """Return what is reached, the places there, and the index of each node's place.

        A place is a state with the number of characters read: 0 if they are not counted.
        """
        places, index = self._places_at(slice(None))
        return self._reached, places, index

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
        places, index = self._places_at(which)
        costs = [cost_within(self.scanner, *place, bounds) for place in places]
        return np.array(costs, np.int64)[index]

    def _places_at(
        self, which: Nodes | slice
    ) -> tuple[list[tuple[int, int]], Int64[np.ndarray, " n"]]:
        """Return the places of the nodes `which`, and the index of each node's place."""
        counts = self._reached.counts
        most = int(counts.max()) + 1 if len(counts) else 1
        at = self._reached.states[which] * most
        if len(counts):
            at += counts[which]
        places, index = _distinct(at)
        return [divmod(place, most) for place in places.tolist()], index


def cost_within(scanner: Scanner | LiteralScanner, state: int, count: int, bounds: Bounds) -> int:
    """Return the fewest bytes to a terminal's end from a state after `count` characters, at most
    `FAR`; -1: it is unreachable."""
    low, high = bounds
    cost = scanner.cost(state, low - count, None if high is None else high - count)
    return -1 if cost is None else min(cost, FAR)


def _distinct(
    numbers: Int32[np.ndarray, " n"],
) -> tuple[Int64[np.ndarray, " distinct"], Int64[np.ndarray, " n"]]:
    """Return the distinct `numbers`, sorted, and the index of each number among them."""
    most = int(numbers.max(initial=0))
    if most > _SPARSE * (_SPARSE + len(numbers)):
        distinct, index = np.unique(numbers, return_inverse=True)
        return distinct.astype(np.int64), index
    distinct = np.flatnonzero(np.bincount(numbers))
    index = np.zeros(most + 1, np.int64)
    index[distinct] = np.arange(len(distinct))
    return distinct, index[numbers]


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
        span, own = slice(begin, end), slice(cuts[i], cuts[i + 1])
        yield Branch(
            scanner,
            Reached(nodes[span], states[span], counts[span]),
            final[ends[i] : ends[i + 1]] - begin,
            (tokens[own], at[own] - begin),
        )


class AnyText:
    """The trie nodes reached by any text of some characters, read from either side of its quote."""

    def __init__(self, scanner: Scanner, trie: Trie):
        """`scanner` must take any number of some characters, in quotes."""
        self.scanner, self._trie = scanner, trie
        table = WalkTable(scanner.moves, scanner.final, scanner.boundary)
        (_, _, self.inside), *_ = scanner.moves(scanner.start)
        self.characters = scanner.repeated(self.inside)
        self._walks = {True: _sorted(table, scanner, scanner.start, trie)}
        self._walks[False] = _sorted(table, scanner, self.inside, trie)

    def reached(self, start: bool) -> Reached:
        """Return all nodes that such text reaches, with its characters up to each.

        `start`: it is read from before the opening quote.
        """
        return self._walks[start][1]

    def below(
        self, scanner: Scanner, state: int, reached: Reached, owner: Owners, start: bool
    ) -> tuple[Reached, Owners] | None:
        """Return all nodes below those of `reached` in `state`, after which such text follows.

        `start`: they were reached from before the opening quote. Returns None if other characters
        than those of such text lead to one of them.
        """
        at = np.flatnonzero(reached.states == state)
        nodes, (places, walked) = reached.nodes[at], self._walks[start]
        node_places = self._trie.places[nodes]
        begin, end = np.searchsorted(places, (node_places, node_places + self._trie.sizes[nodes]))
        if np.any(begin == end):
            return None
        indices, which = ranges((begin + 1).astype(np.int32), (end - begin - 1).astype(np.int32))
        like, counts = np.array(scanner.like(self.scanner, state), np.int32), reached.counts
        if len(counts):
            counts = walked.counts[indices] + (counts[at] - walked.counts[begin])[which]
        return Reached(walked.nodes[indices], like[walked.states[indices]], counts), owner[
            at[which]
        ]


def completed(
    any_text: Mapping[CharacterRanges | None, AnyText],
    scanner: Scanner,
    reached: Reached,
    owner: Owners,
    start: bool,
) -> tuple[Reached, Owners] | None:
    """Return `reached` and `owner`, completed by `AnyText.below` of each state that has one.

    `any_text` maps the characters of any text to it. `start` is that of `AnyText.below`. Returns
    None if one of these has no result.
    """
    parts = [(reached, owner)]
    for state in np.flatnonzero(np.bincount(reached.states)).tolist():
        if (shared := any_text.get(scanner.repeated(state))) is not None:
            below = shared.below(scanner, state, reached, owner, start)
            if below is None:
                return None
            parts.append(below)
    reached_parts, owners = zip(*parts, strict=True)
    nodes, states, counts = (
        np.concatenate([getattr(part, name) for part in reached_parts])
        for name in ("nodes", "states", "counts")
    )
    return Reached(nodes, states, counts), np.concatenate(owners)


def _sorted(
    table: WalkTable, scanner: Scanner, state: int, trie: Trie
) -> tuple[Int32[np.ndarray, " n"], Reached]:
    """Return the nodes reached from a state, sorted by their places in the trie."""
    roots = [
        (node, to)
        for low, high, to in scanner.moves(state)
        for byte, node in trie.first_bytes.items()
        if low <= byte <= high
    ]
    if not roots:
        none = np.zeros(0, np.int32)
        return none, Reached(none, none, none)
    firsts = np.array([scanner.counts(state, to) for _, to in roots], np.int32)
    reached, owner = table.walk(trie, roots, True)
    places = trie.places[reached.nodes]
    order = np.argsort(places)
    counts = (reached.counts + firsts[owner])[order]
    return places[order], Reached(reached.nodes[order], reached.states[order], counts)


class TerminalTransitions:
    """The tokens from one state of a terminal: a branch for each first byte."""

    def __init__(self, branches: list[tuple[Branch, int]]):
        """`branches` holds with each branch the characters that its first byte ends: 0 or 1."""
        self._branches = branches

    @cached_property
    def most(self) -> int:
        """The most characters that any node of the trie needs to the terminal's nearest end."""
        return max((branch.most + before for branch, before in self._branches), default=0)

    def doubtful(self, bounds: Bounds) -> int:
        """Return the number of nodes in branches where some may not reach the end in `bounds`."""
        shifted = self._shifted(bounds)
        return sum(branch.size for branch, limits in shifted if not branch.all_fit(limits))

    def tokens(self, bounds: Bounds) -> Int32[np.ndarray, " tokens"]:
        """Return the tokens after which the end can be reached within `bounds`."""
        return _joined([branch.tokens(limits) for branch, limits in self._shifted(bounds)])

    def ends(self, bounds: Bounds) -> Nodes:
        """Return the nodes at which the terminal may end, and a token may continue after it."""
        return _joined([branch.ends(limits) for branch, limits in self._shifted(bounds)])

    def __iter__(self) -> Iterator[tuple[Branch, int]]:
        """Yield the branches, with the characters that their first bytes end."""
        return iter(self._branches)

    def _shifted(self, bounds: Bounds) -> Iterator[tuple[Branch, Bounds]]:
        """Yield the branches with the bounds that are left after their first byte."""
        low, high = bounds
        if bounds == (0, None):
            return ((branch, bounds) for branch, _ in self._branches)
        return (
            (branch, (low - before, None if high is None else high - before))
            for branch, before in self._branches
        )


def _joined(parts: list[np.ndarray]) -> np.ndarray:
    return np.concatenate(parts) if parts else np.zeros(0, np.int32)
