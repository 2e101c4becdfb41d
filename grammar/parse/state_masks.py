"""The tokens that may follow a parser state, computed at the first query.

Most of these tokens stay within the terminal that is being read, and are shared by all states that
read it. The others leave it: the parser reads their remaining bytes. `Exploration` computes the
shared part of the masks ahead of the texts that need it.
"""

from collections import deque
from collections.abc import Hashable, Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int64, UInt64

from dlm.grammar.limits import LazyDict, Meter
from dlm.grammar.masks import GrammarMasks, Mask, Nodes, Reached, token_words, walk
from dlm.grammar.parse.earley import Parser, State, Thread
from dlm.grammar.parse.network import Network, TerminalEdge
from dlm.grammar.parse.shared_masks import FAR
from dlm.grammar.parse.terminal_masks import Bounds, Terminals, TerminalTokens, Words
from dlm.grammar.vocabulary import Vocabulary

_NEVER = FAR + 1  # bytes: the end is unreachable
_NODES = 20  # trie nodes visited for a unit of work
_MASK = 50  # units of work for a mask
_SIDE_BY_SIDE = 16  # alternatives for the next terminal that are looked up one by one


class Following(NamedTuple):
    """Tokens that may follow a state. Tokens with equal `places` lead to the same situation."""

    tokens: Int64[np.ndarray, " n"]
    costs: Int64[np.ndarray, " n"]  # the fewest bytes to the end after each, at most `FAR`
    places: UInt64[np.ndarray, " n"]

    def groups(
        self, chosen: Bool[np.ndarray, " n"] | None, apart: bool = False
    ) -> Iterator[tuple[Int64[np.ndarray, " m"], int]]:
        """Yield groups of tokens that lead to the same situation, with its cost, sorted by cost.

        `chosen` selects tokens; None: all. If `apart`, each token is a group of its own.
        """
        tokens = self.tokens if chosen is None else self.tokens[chosen]
        costs = self.costs if chosen is None else self.costs[chosen]
        places = self.places if chosen is None else self.places[chosen]
        order = np.lexsort((tokens, costs) if apart else (tokens, places, costs))
        tokens, costs, places = tokens[order], costs[order], places[order]
        new = np.ones(len(tokens), bool)
        if not apart:
            new[1:] = places[1:] != places[:-1]
        cuts = [*np.flatnonzero(new).tolist(), len(tokens)]
        found = [
            (int(costs[begin]), int(tokens[begin]), begin, end) for begin, end in pairwise(cuts)
        ]
        for cost, _, begin, end in sorted(found):  # `places` differ from run to run
            yield tokens[begin:end], cost


def _scattered(numbers: np.ndarray) -> np.ndarray:
    """Return hashes of `numbers` (splitmix64's finaliser). Sums of them identify sets."""
    z = numbers.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


class StateMasks:
    """The masks of one grammar's states."""

    def __init__(
        self,
        parser: Parser,
        vocabulary: Vocabulary,
        terminals: Terminals,
        masks: GrammarMasks,
        meter: Meter,
    ):
        self._parser, self._vocabulary, self._masks, self._meter = parser, vocabulary, masks, meter
        self._terminals = terminals
        scanners = parser.scanners
        self.tokens = LazyDict(lambda terminal: terminals.tokens(scanners[terminal]))

    def mask(self, state: State) -> Mask:
        """Return the row of `state`. States with the same threads share a row."""
        known = self._masks.known.get(state)
        if known is None:
            key = self._key(state)
            known = self._masks.known.get(key)
            if known is None:
                known = self._masks.kept(key, self._words(state))
            self._masks.known[state] = known
            self._meter.add(1)
        return known

    def following(self, state: State) -> tuple[Following, bool]:
        """Return the tokens that may follow, without stops, and whether all of them reach an end.

        Tokens after which the end is unreachable are left out. The last part is not counted as
        work: it is not cached, so a repeated call could never finish it.
        """
        size, all_end = len(self._vocabulary), True
        costs, places = np.full(size, _NEVER, np.int64), np.zeros(size, np.uint64)
        for number, thread in enumerate(state.threads):
            rest = self._parser.after_terminal(thread).cost
            all_end &= rest is not None
            if rest is not None:
                known, bounds = self.tokens[thread.terminal], (thread.needed, thread.remaining)
                nodes, bytes_, at = known.costs(thread.at, bounds, self._meter)
                tokens, owner = self._vocabulary.trie.tokens_at(nodes)
                np.minimum.at(costs, tokens, np.minimum(bytes_[owner] + min(rest, FAR), FAR))
                np.add.at(places, tokens, _scattered(at[owner] + (number << 48)))
        reached, states = self._leaving(state)
        ends = np.array([_NEVER if s.cost is None else min(s.cost, FAR) for s in states] or [0])
        all_end &= all(s.cost is not None for s in states)
        tokens, owner = self._vocabulary.trie.tokens_at(reached.nodes)
        np.minimum.at(costs, tokens, ends[reached.states[owner]])
        np.add.at(places, tokens, _scattered(reached.states[owner].astype(np.int64) + (1 << 62)))
        for token in self._control(state) - {*self._vocabulary.stops}:
            after = self._parser.after(state, token, b"")
            if after is not None and after.cost is not None:
                costs[token] = min(after.cost, FAR)
                places[token] = _scattered(np.array([token + (1 << 61)]))[0]
            all_end &= after is None or after.cost is not None
        tokens = np.flatnonzero(costs < _NEVER)
        return Following(tokens, costs[tokens], places[tokens]), all_end

    def _words(self, state: State) -> Words:
        """Return the tokens that may follow `state`, as packed bits."""
        self._terminals.trim()
        words = np.zeros(-(-len(self._vocabulary) // 32), np.uint32)
        for thread in state.threads:
            known = self.tokens[thread.terminal]
            words |= known.words(thread.at, self._bounds(thread), self._meter)
        reached, _ = walk(self._vocabulary.trie, self, self._after_next(state, words))
        self._meter.add(_MASK + len(reached.nodes) // _NODES)
        leaving = self._vocabulary.trie.tokens_at(reached.nodes)[0]
        if len(leaving):
            words |= token_words(leaving, len(self._vocabulary))
        return words | token_words(self._control(state), len(self._vocabulary))

    def _after_next(self, state: State, words: Words) -> list[tuple[Nodes, State]]:
        """Return trie nodes at which the next terminals end, with the states after them.

        Tokens that stay within the next terminal are added to `words`. They are cached for all
        grammars, since many have the same pairs of terminals.
        """
        begin = []
        for thread in state.threads:
            ends = self.tokens[thread.terminal].ends(thread.at, self._bounds(thread), self._meter)
            if not len(ends):
                continue
            onward = self._parser.after_terminal(thread)
            if len(onward.threads) > _SIDE_BY_SIDE:
                begin.append((ends, onward))
                continue
            bounded = []
            for following in onward.threads:
                if (following.low, following.high) != (0, None):
                    bounded.append(following)
                    continue
                known = self.tokens[following.terminal]
                more, next_ends = known.below(ends, self._meter)
                words |= more
                if len(next_ends):
                    begin.append((next_ends, self._parser.after_terminal(following)))
            if bounded:
                begin.append((ends, self._parser.only(onward, bounded)))
        return begin

    def _leaving(self, state: State) -> tuple[Reached, list[State]]:
        """Return the trie nodes and states reached by tokens that leave the state's terminals."""
        begin = []
        for thread in state.threads:
            known, bounds = self.tokens[thread.terminal], self._bounds(thread)
            ends = known.ends(thread.at, bounds, self._meter)
            if len(ends):
                begin.append((ends, self._parser.after_terminal(thread)))
        return walk(self._vocabulary.trie, self, begin)

    def likely(self, state: State) -> Bool[np.ndarray, " 256"]:
        """Return the bytes that may follow `state` if bounds of length are ignored."""
        bytes_ = np.zeros(256, dtype=bool)
        for thread in state.threads:
            for low, high, _ in self._parser.scanners[thread.terminal].moves(thread.at):
                bytes_[low : high + 1] = True
        return bytes_

    def after(self, state: State, byte: int) -> State | None:
        return self._parser.after_byte(state, byte)

    def _control(self, state: State) -> set[int]:
        """Return the control tokens that rules take, and the stops if the text may end."""
        tokens = self._parser.named(state) if state.items else set()
        for excluded in self._parser.takes_other_tokens(state):
            tokens |= self._vocabulary.control - excluded
        return tokens | {*self._vocabulary.stops} if state.cost == 0 else tokens

    def _bounds(self, thread: Thread) -> Bounds:
        bounds = thread.needed, thread.remaining
        return self.tokens[thread.terminal].clamped(thread.at, bounds, self._meter)

    def _key(self, state: State) -> Hashable:
        """Return a key of everything that the mask depends on."""
        threads = ((t.terminal, t.at, self._bounds(t), t.onward) for t in state.threads)
        return frozenset((*threads, *state.items)), state.cost == 0


_BEGUN = 100  # units of work for a new terminal
_EDGES = 64  # edges visited for a unit of work


class Exploration:
    """A breadth-first walk over the states of all terminals except literals, to fill caches."""

    def __init__(self, network: Network, tokens: LazyDict[TerminalTokens], meter: Meter):
        self._tokens, self._meter = tokens, meter
        self._bounded: dict[int, bool] = {}  # by terminal: an edge bounds its length
        for edge in (edge for edges in network.edges for edge in edges):
            if not isinstance(edge, TerminalEdge):
                continue
            if not isinstance(network.terminals[edge.terminal], bytes):
                bounded = (edge.low, edge.high) != (0, None)
                self._bounded[edge.terminal] = bounded or self._bounded.get(edge.terminal, False)
        self._todo: deque[tuple[int, int | None]] = deque((each, None) for each in self._bounded)
        self._met: set[tuple[int, int]] = set()
        meter.add(sum(map(len, network.edges)) // _EDGES)

    def __bool__(self) -> bool:
        """Whether states are left to explore."""
        return bool(self._todo)

    def advance(self) -> None:
        """Begin a terminal, or explore one state. Raises `Unfinished`: then call it again."""
        terminal, state = self._todo[0]
        if state is None:
            self._meter.add(_BEGUN)
            onward = [self._tokens[terminal].start]
        else:
            onward = self._tokens[terminal].explore(state, self._bounded[terminal], self._meter)
        self._todo.popleft()
        new = {(terminal, to) for to in onward} - self._met
        self._met |= new
        self._todo.extend(sorted(new))
