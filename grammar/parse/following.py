"""The tokens that may follow a state, in groups that lead to the same situation.

The search for them is continued where it stopped if work runs out.
"""

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int64, UInt64

from dlm.grammar.limits import LazyDict, Meter
from dlm.grammar.masks.trie import Nodes
from dlm.grammar.masks.walks import Beginning, Explored, Machine, Walk
from dlm.grammar.parse.branches import FAR, UNBOUNDED, Bounds
from dlm.grammar.parse.earley import Parser
from dlm.grammar.parse.merging import Beginnings
from dlm.grammar.parse.place_costs import UNREACHABLE, PlaceCosts, scattered
from dlm.grammar.parse.states import State, Thread
from dlm.grammar.parse.terminal_tokens import TerminalTokens
from dlm.grammar.vocabulary.vocabulary import Vocabulary

_THREAD_BYTES = 300  # of memory, of a thread to be read
_THREADS = 4  # looked at for a unit of work
_AT_ONCE = 1 << 13  # trie nodes below those at which a step begins
_NODES, _TOKENS, _SEEN = 20, 250, 2000  # nodes visited, tokens set or seen, for a unit of work
_LEAVING, _NAMED = 1 << 62, 1 << 61  # added to numbers of places that threads do not have


class Following(NamedTuple):
    """Tokens that may follow a state. Tokens with equal `places` lead to the same situation."""

    tokens: Int64[np.ndarray, " n"]
    costs: Int64[np.ndarray, " n"]  # the fewest bytes to the end after each, at most `FAR`
    places: UInt64[np.ndarray, " n"]

    def groups(
        self, chosen: Bool[np.ndarray, " n"] | None
    ) -> Iterator[tuple[Int64[np.ndarray, " m"], int]]:
        """Yield groups of tokens that lead to the same situation, with its cost, sorted by cost.

        `chosen` selects tokens; None: all.
        """
        tokens = self.tokens if chosen is None else self.tokens[chosen]
        costs = self.costs if chosen is None else self.costs[chosen]
        places = self.places if chosen is None else self.places[chosen]
        order = np.lexsort((tokens, places, costs))
        tokens, costs, places = tokens[order], costs[order], places[order]
        new = np.ones(len(tokens), bool)
        new[1:] = places[1:] != places[:-1]
        cuts = [*np.flatnonzero(new).tolist(), len(tokens)]
        groups = [
            (int(costs[begin]), int(tokens[begin]), begin, end) for begin, end in pairwise(cuts)
        ]
        for cost, _, begin, end in sorted(groups):  # `places` differ from run to run
            yield tokens[begin:end], cost


class FollowingSearch:
    """A search for the tokens that may follow one state, stops excluded.

    Tokens after which the end is unreachable are left out.
    """

    def __init__(
        self,
        state: State,
        parser: Parser,
        terminals: LazyDict[TerminalTokens],
        leaving: Callable[[Thread], Nodes],
        machine: Machine,
        vocabulary: Vocabulary,
        meter: Meter,
    ):
        """`leaving` returns the trie nodes at which the terminal of a thread may end."""
        self._state, self._parser, self._terminals, self._meter = state, parser, terminals, meter
        self._leaving, self._vocabulary = leaving, vocabulary
        self._all_end = True
        self._costs = np.full(len(vocabulary), UNREACHABLE, np.int64)
        self._places = np.zeros(len(vocabulary), np.uint64)
        # Threads to read, by terminal, its state, and whether it has bounds: their numbers, their
        # bounds, and the bytes after the terminal.
        self._threads: dict[tuple[int, int, bool], list[tuple[int, Bounds, int]]] = {}
        self._sorted = 0  # threads that are in there, or were
        self._place_costs: PlaceCosts | None = None  # of the threads that are being read
        self._beginnings = Beginnings([])  # of walks of tokens that leave terminals
        self._left = 0  # threads that are in there
        self._walk: Walk | None = None  # of the last part that is left
        self._explored = Explored(machine)  # by all walks
        self._ends: list[int] = []  # bytes to the end, by the numbers of explored states

    @property
    def nbytes(self) -> int:
        """Approximate memory, without the states."""
        parts = (self._costs, self._places, self._explored, self._place_costs, self._beginnings)
        threads = sum(map(len, list(self._threads.values())))
        return sum(part.nbytes for part in parts if part is not None) + _THREAD_BYTES * threads

    def found(self) -> tuple[Following, bool]:
        """Return the tokens, and whether all that the grammar takes reach an end.

        Raises `Unfinished`; a second call continues the search.
        """
        self._sort_threads()
        while self._threads:
            self._stay(next(reversed(self._threads)))
            self._threads.popitem()
        self._find_beginnings()
        trie, make = self._vocabulary.trie, self._parser.states.of
        parts = self._beginnings.parts(trie, make, _AT_ONCE, self._meter)
        while parts:
            self._meter.spend(0)
            self._leave(parts[-1])
            self._walk = None
            parts.pop()
        costs, places, all_end = self._costs, self._places, self._all_end
        for token in self._parser.named(self._state):
            after = self._parser.after(self._state, token, b"")
            if after is not None and after.cost is not None:
                costs[token] = min(after.cost, FAR)
                places[token] = scattered(np.array([token + _NAMED]))[0]
            all_end &= after is None or after.cost is not None
        self._meter.add(len(costs) // _SEEN)
        tokens = np.flatnonzero(costs < UNREACHABLE)
        return Following(tokens, costs[tokens], places[tokens]), all_end

    def _sort_threads(self) -> None:
        threads = self._state.threads
        while self._sorted < len(threads):
            thread = threads[self._sorted]
            self._meter.spend(0)
            onward = self._parser.after_terminal(thread).cost
            self._all_end &= onward is not None
            if onward is not None:
                bounds = thread.needed, thread.remaining
                key = thread.terminal, thread.at, bounds != UNBOUNDED
                of_terminal = self._threads.setdefault(key, [])
                of_terminal.append((self._sorted, bounds, min(onward, FAR)))
            self._sorted += 1
            self._meter.add(self._sorted % _THREADS == 0)

    def _stay(self, key: tuple[int, int, bool]) -> None:
        """Read the tokens that stay within the terminal of some threads."""
        (terminal, at, _), threads, meter = key, self._threads[key], self._meter
        if self._place_costs is None:
            _, bounds, _ = threads[0]
            self._place_costs = self._terminals[terminal].place_costs(at, bounds, meter)
            meter.add(len(self._place_costs) // _TOKENS)
        while threads:
            number, bounds, onward = threads[-1]
            self._place_costs.add(number, bounds, onward, meter)
            threads.pop()
        nodes, costs, ways = self._place_costs.by_node()
        self._place_costs = None
        tokens, owner = self._vocabulary.trie.tokens_at(nodes)
        np.minimum.at(self._costs, tokens, costs[owner])
        np.add.at(self._places, tokens, ways[owner])
        meter.add(len(nodes) // _TOKENS)

    def _find_beginnings(self) -> None:
        """Find the nodes at which terminals may end, with what follows."""
        for thread in self._state.threads[self._left :]:
            self._meter.spend(0)
            if len(ends := self._leaving(thread)):
                self._beginnings.collected.append((ends, (thread.onward,)))
            self._left += 1
            self._meter.add(self._left % _THREADS == 0)

    def _leave(self, part: list[Beginning]) -> None:
        """Read the tokens that leave the state's terminals, below some of the nodes."""
        trie, costs = self._vocabulary.trie, self._ends
        if self._walk is None:
            self._walk = Walk(trie, self._explored, part)
        reached = self._walk.reached()
        for state in self._explored.states[len(costs) :]:
            self._meter.spend(0)
            costs.append(UNREACHABLE if state.cost is None else min(state.cost, FAR))
            self._all_end &= state.cost is not None
        tokens, owner = trie.tokens_at(reached.nodes)
        at = reached.states[owner].astype(np.int64)
        np.minimum.at(self._costs, tokens, np.array(costs)[at])
        np.add.at(self._places, tokens, scattered(at + _LEAVING))
        self._meter.add(len(reached.nodes) // _NODES)
