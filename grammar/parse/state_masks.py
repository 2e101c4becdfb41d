"""The tokens that may follow a state, found when they are first asked for.

Most of them stay within the terminal that is being read. The others leave it: from where they do,
the parser reads them on.

What the terminals of a grammar allow, found ahead of the texts that need it.

Few texts come to a state of the grammar, but all that read a terminal share its states.
"""

from collections import deque
from collections.abc import Hashable, Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int64, UInt64

from dlm.grammar.masks import bits
from dlm.grammar.masks.bits import GrammarMasks, Mask
from dlm.grammar.masks.walk import Nodes, Reached, walk
from dlm.grammar.parse.earley import Parser, State, Thread
from dlm.grammar.parse.limits import LazyDict, Meter
from dlm.grammar.parse.network import Network, TerminalEdge
from dlm.grammar.parse.shared_masks import FAR
from dlm.grammar.parse.terminal_masks import Bounds, Terminals, TerminalTokens, Words, token_words
from dlm.grammar.vocabulary import Vocabulary

_NEVER = FAR + 1  # there is no end
_NODES = 20  # of the trie that a unit of work is spent on
_MASK = 50  # units for a mask
_SIDE_BY_SIDE = 16  # terminals that may come next: of more, bytes are looked at instead


class Following(NamedTuple):
    """Tokens that may follow a state. Those with equal `places` lead to the same situation."""

    tokens: Int64[np.ndarray, " n"]
    costs: Int64[np.ndarray, " n"]  # the fewest bytes to the end after each; `FAR` for more
    places: UInt64[np.ndarray, " n"]

    def groups(
        self, chosen: Bool[np.ndarray, " n"] | None, apart: bool = False
    ) -> Iterator[tuple[Int64[np.ndarray, " m"], int]]:
        """Tokens that lead to the same situation, with its cost, by cost; `apart`: one by one."""
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
        for cost, _, begin, end in sorted(found):  # numbers of places depend on who came first
            yield tokens[begin:end], cost


def _scattered(numbers: np.ndarray) -> np.ndarray:
    """Numbers that are as good as random, the same for the same `numbers`: sums of them tell sets
    apart (the finaliser of splitmix64)."""
    z = numbers.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


class StateMasks:
    """Masks of the states of one grammar."""

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
        """A row of the table, which states that allow the same for the same reasons share."""
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
        """The tokens that may follow, stops apart, with the fewest bytes to the end after each.

        Tokens after which there is no end are left out; and whether there are none of these. Its
        last part is not counted as work, or those who ask again could never go on.
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
            behind = self._parser.after(state, token, b"")
            if behind is not None and behind.cost is not None:
                costs[token] = min(behind.cost, FAR)
                places[token] = _scattered(np.array([token + (1 << 61)]))[0]
            all_end &= behind is None or behind.cost is not None
        tokens = np.flatnonzero(costs < _NEVER)
        return Following(tokens, costs[tokens], places[tokens]), all_end

    def _words(self, state: State) -> Words:
        """What can be cut short comes first, and is not done again."""
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
        for token in self._control(state):
            bits.add(words, token)
        return words

    def _after_next(self, state: State, words: Words) -> list[tuple[Nodes, State]]:
        """The ends of the terminals that are read next, with the states that they lead to.

        Tokens that stay within one of these are added to `words`: many grammars have the same
        terminals after one another, so this is found once for all of them.
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
                more, behind = known.below(ends, self._meter)
                words |= more
                if len(behind):
                    begin.append((behind, self._parser.after_terminal(following)))
            if bounded:
                begin.append((ends, self._parser.only(onward, bounded)))
        return begin

    def _leaving(self, state: State) -> tuple[Reached, list[State]]:
        """Where tokens lead that leave the terminals of the state's threads."""
        begin = []
        for thread in state.threads:
            known, bounds = self.tokens[thread.terminal], self._bounds(thread)
            ends = known.ends(thread.at, bounds, self._meter)
            if len(ends):
                begin.append((ends, self._parser.after_terminal(thread)))
        return walk(self._vocabulary.trie, self, begin)

    def likely(self, state: State) -> Bool[np.ndarray, " 256"]:
        """The bytes that a thread may go on with, its bounds apart."""
        bytes_ = np.zeros(256, dtype=bool)
        for thread in state.threads:
            for low, high, _ in self._parser.scanners[thread.terminal].moves(thread.at):
                bytes_[low : high + 1] = True
        return bytes_

    def after(self, state: State, byte: int) -> State | None:
        return self._parser.after_byte(state, byte)

    def _control(self, state: State) -> set[int]:
        """Stop tokens where the text may end, and the tokens that rules name."""
        tokens = self._parser.named(state) if state.items else set()
        for excluded in self._parser.takes_other_tokens(state):
            tokens |= self._vocabulary.control - excluded
        return tokens | {*self._vocabulary.stops} if state.cost == 0 else tokens

    def _bounds(self, thread: Thread) -> Bounds:
        bounds = thread.needed, thread.remaining
        return self.tokens[thread.terminal].clamped(thread.at, bounds, self._meter)

    def _key(self, state: State) -> Hashable:
        """What the mask depends on."""
        threads = ((t.terminal, t.at, self._bounds(t), t.onward) for t in state.threads)
        return frozenset((*threads, *state.items)), state.cost == 0


_BEGUN = 100  # units for a terminal that is met for the first time
_EDGES = 64  # that are looked at for a unit


class Exploration:
    """Of all terminals side by side, from their beginnings on. Literals need none."""

    def __init__(self, network: Network, tokens: LazyDict[TerminalTokens], meter: Meter):
        self._tokens, self._meter = tokens, meter
        self._bounded: dict[int, bool] = {}  # by terminal: somebody counts its characters
        for edge in (
            edge for edges in network.edges for edge in edges if isinstance(edge, TerminalEdge)
        ):
            if not isinstance(network.terminals[edge.terminal], bytes):
                bounded = (edge.low, edge.high) != (0, None)
                self._bounded[edge.terminal] = bounded or self._bounded.get(edge.terminal, False)
        self._todo: deque[tuple[int, int | None]] = deque((each, None) for each in self._bounded)
        self._met: set[tuple[int, int]] = set()
        meter.add(sum(map(len, network.edges)) // _EDGES)

    def __bool__(self) -> bool:
        """There is more to find."""
        return bool(self._todo)

    def advance(self) -> None:
        """Begin a terminal, or look at one state. What raises `Unfinished` is to be done again."""
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
