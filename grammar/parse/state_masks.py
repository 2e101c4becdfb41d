"""The tokens that may follow a parser state, computed at the first query.

Most of these tokens stay within the terminal that is being read. They depend on it alone, and are
shared by all states and grammars that read it (`Terminals`). The others leave it: the parser reads
their remaining bytes.
"""

from collections.abc import Hashable
from typing import Any

import numpy as np
from jaxtyping import Bool

from dlm.grammar.limits import LazyDict, Meter
from dlm.grammar.masks.rows import Below
from dlm.grammar.masks.table import GrammarMasks, Mask
from dlm.grammar.masks.trie import Nodes
from dlm.grammar.masks.walks import Reached, walk
from dlm.grammar.parse.branches import FAR, UNBOUNDED, Bounds
from dlm.grammar.parse.earley import Parser
from dlm.grammar.parse.following import UNREACHABLE, Following, scattered
from dlm.grammar.parse.states import State, Thread
from dlm.grammar.parse.stops import Stops
from dlm.grammar.parse.terminal_tokens import Terminals
from dlm.grammar.vocabulary.vocabulary import Vocabulary

_NODES = 20  # trie nodes visited for a unit of work
_MASK = 50  # units of work for a mask
_SIDE_BY_SIDE = 16  # alternatives for the next terminal that are looked up one by one


class StateMasks:
    """The masks of one grammar's states. It is the `Machine` of their walks."""

    def __init__(
        self,
        parser: Parser,
        vocabulary: Vocabulary,
        terminals: Terminals,
        masks: GrammarMasks,
        stops: Stops,
        meter: Meter,
    ):
        self._parser, self._vocabulary, self._masks, self._meter = parser, vocabulary, masks, meter
        self._terminals, self._stops = terminals, stops
        scanners, self.states = parser.scanners, parser.states
        self.tokens = LazyDict(lambda terminal: terminals.used(scanners[terminal]))

    @property
    def nbytes(self) -> int:
        """Approximate memory of the terminals that the grammar has used: its share of each."""
        terminals = list(self.tokens.values())  # another thread may add some meanwhile
        own = (terminal for terminal in terminals if not self._terminals.keeps(terminal))
        return sum(terminal.nbytes // terminal.users for terminal in own)

    def __del__(self) -> None:
        """Leave the terminals to the grammars that share them."""
        for terminal in self.tokens.values():
            terminal.users -= 1

    def mask(self, state: State) -> Mask:
        """Return the row of the tokens that may follow `state`, and of the stops if the text may
        end there. States with the same threads share a row."""
        row = self._masks.known.get(state)
        if row is None:
            key = self._key(state)
            row = self._masks.known.get(key)
            if row is None:
                row = self._masks.known[key] = self._row(state)
            self._masks.known[state] = row
            self._meter.add(1)
        return row

    def following(self, state: State) -> tuple[Following, bool]:
        """Return the tokens that may follow, without stops, and whether all of them reach an end.

        Tokens after which the end is unreachable are left out. The last part is not counted as
        work: it is not cached, so a repeated call could never finish it.
        """
        size, all_end = len(self._vocabulary), True
        costs, places = np.full(size, UNREACHABLE, np.int64), np.zeros(size, np.uint64)
        for number, thread in enumerate(state.threads):
            onward = self._parser.after_terminal(thread).cost
            all_end &= onward is not None
            if onward is not None:
                terminal, bounds = self.tokens[thread.terminal], (thread.needed, thread.remaining)
                nodes, bytes_, at = terminal.costs(thread.at, bounds, self._meter)
                tokens, owner = self._vocabulary.trie.tokens_at(nodes)
                np.minimum.at(costs, tokens, np.minimum(bytes_[owner] + min(onward, FAR), FAR))
                np.add.at(places, tokens, scattered(at[owner] + (number << 48)))
        reached, states = self._leaving(state)
        ends = np.array(
            [UNREACHABLE if s.cost is None else min(s.cost, FAR) for s in states] or [0]
        )
        all_end &= all(s.cost is not None for s in states)
        tokens, owner = self._vocabulary.trie.tokens_at(reached.nodes)
        np.minimum.at(costs, tokens, ends[reached.states[owner]])
        np.add.at(places, tokens, scattered(reached.states[owner].astype(np.int64) + (1 << 62)))
        for token in self._parser.named(state):
            after = self._parser.after(state, token, b"")
            if after is not None and after.cost is not None:
                costs[token] = min(after.cost, FAR)
                places[token] = scattered(np.array([token + (1 << 61)]))[0]
            all_end &= after is None or after.cost is not None
        tokens = np.flatnonzero(costs < UNREACHABLE)
        return Following(tokens, costs[tokens], places[tokens]), all_end

    def _row(self, state: State) -> Mask:
        """Compute the row of the tokens that may follow `state`."""
        self._terminals.trim()
        begin, parts = [], []
        for thread in state.threads:
            terminal, at, _, low, high, _ = thread
            bounds = UNBOUNDED if not low and high is None else self._bounds(thread)
            within = self.tokens[terminal].sets(at, bounds, self._meter)
            parts.append(within.tokens)
            if len(within.ends):
                begin += self._after_next(self._parser.after_terminal(thread), within.ends, parts)
        control = self._stops.after(state)
        if state.items:
            control = control | self._parser.named(state)
        if control:
            parts.append(np.fromiter(control, np.int32))
        below = Below(self._vocabulary.trie, self, begin) if begin else None
        row, reached = self._masks.row_of(parts, below=below)
        self._meter.add(_MASK + reached // _NODES)
        return row

    def _after_next(
        self, onward: State, ends: Nodes, parts: list[np.ndarray]
    ) -> list[tuple[Nodes, Any]]:
        """Return trie nodes at which the terminals after `onward` end, with the states after them
        as `Below` takes them.

        `onward` is the state at the nodes `ends`. Tokens that stay within the next terminal are
        added to `parts`. They are cached for all grammars, since many have the same pairs of
        terminals.
        """
        if len(onward.threads) > _SIDE_BY_SIDE:
            return [(ends, onward)]
        begin, bounded = [], []
        for following in onward.threads:
            terminal, _, _, low, high, _ = following
            if low or high is not None:
                bounded.append(following)
                continue
            below = self.tokens[terminal].below(ends, self._meter)
            parts.append(below.tokens)
            if len(below.ends):
                begin.append((below.ends, self._parser.walk_after(following)))
        if bounded:
            begin.append((ends, self._parser.only(onward, bounded)))
        return begin

    def _leaving(self, state: State) -> tuple[Reached, list[State]]:
        """Return the trie nodes and states reached by tokens that leave the state's terminals."""
        begin = []
        for thread in state.threads:
            terminal, bounds = self.tokens[thread.terminal], self._bounds(thread)
            ends = terminal.sets(thread.at, bounds, self._meter).ends
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

    def _bounds(self, thread: Thread) -> Bounds:
        if thread.low == 0 and thread.high is None:
            return UNBOUNDED
        bounds = thread.needed, thread.remaining
        return self.tokens[thread.terminal].clamped(thread.at, bounds, self._meter)

    def _key(self, state: State) -> Hashable:
        """Return a key of everything that the mask depends on.

        States that differ in the characters read are likely to have the same. Others are their own
        keys, which is quicker; their masks share a row too if the tokens are equal.
        """
        for _, _, _, low, high, _ in state.threads:
            if low or high is not None:
                break
        else:
            return state
        threads = ((t.terminal, t.at, self._bounds(t), t.onward) for t in state.threads)
        return frozenset((*threads, *state.items)), state.may_end
