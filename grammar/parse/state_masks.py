"""The tokens that may follow a parser state, computed at the first query.

Most of these tokens stay within the terminal that is being read. They depend on it alone, and are
shared by all states and grammars that read it (`Terminals`). The others leave it: the parser reads
their remaining bytes.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool

from dlm.grammar.errors import Unfinished
from dlm.grammar.limits import Begun, LazyDict, Meter
from dlm.grammar.masks.bits import NATIVE
from dlm.grammar.masks.rows import Below
from dlm.grammar.masks.table import GrammarMasks, Mask
from dlm.grammar.masks.trie import Nodes
from dlm.grammar.masks.walks import Beginning
from dlm.grammar.parse.branches import UNBOUNDED, Bounds
from dlm.grammar.parse.earley import Parser
from dlm.grammar.parse.following import Following, FollowingSearch
from dlm.grammar.parse.merging import Beginnings, Kernels
from dlm.grammar.parse.states import State, Thread
from dlm.grammar.parse.stops import Stops
from dlm.grammar.parse.terminal_tokens import Terminals
from dlm.grammar.vocabulary.vocabulary import Vocabulary

_NODES = 20 if NATIVE is None else 400  # trie nodes visited for a unit of work
_SMALL = 64  # threads, and nodes at which a walk begins, up to which a row is made at once
_TIMES = 2  # up to which it reads the whole trie at once, from more nodes
_AT_ONCE = 1 << 16  # trie nodes below those at which a step of a walk begins
_BEGUN = 4  # rows, and searches, that are continued by later calls: of 5 MB at 262,144 tokens
_SETS = 64  # sets of a row, beyond which they are joined
_TOKENS = 10_000  # tokens joined for a unit of work
_MASK = 50  # units of work for a mask
_THREADS = 2  # threads read for a unit of work, if their tokens are known
_LIKELY = 8  # threads whose likely bytes are looked up for a unit of work
_SIDE_BY_SIDE = 16  # alternatives for the next terminal that are looked up one by one


@dataclass(slots=True)
class _BegunRow:
    """A row that is being made."""

    threads: list[Thread]  # to be read, the first one last
    sets: list[np.ndarray]  # of its tokens
    beginnings: Beginnings  # of walks to others

    @property
    def nbytes(self) -> int:
        """Approximate memory, without the states. Each array is counted once."""
        sets = {id(tokens): tokens.nbytes for tokens in list(self.sets)}
        return sum(sets.values()) + self.beginnings.nbytes


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
        self._rows = Begun[State, _BegunRow](_BEGUN)
        self._searches = Begun[State, FollowingSearch](_BEGUN)
        self._age = masks.age  # when work that is kept was begun
        self.tokens = LazyDict(lambda terminal: terminals.used(scanners[terminal]))

    @property
    def nbytes(self) -> int:
        """Approximate memory of work that was begun, and the share of each terminal in use."""
        terminals = list(self.tokens.values())  # another thread may add some meanwhile
        own = (terminal for terminal in terminals if not self._terminals.keeps(terminal))
        shares = sum(terminal.nbytes // terminal.users for terminal in own)
        return shares + self._rows.nbytes + self._searches.nbytes

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

        Tokens after which the end is unreachable are left out. Raises `Unfinished`; a second call
        continues.
        """
        search = self._searches.take(state) or FollowingSearch(
            state, self._parser, self.tokens, self._leaving, self, self._vocabulary, self._meter
        )
        try:
            return search.found()
        except Unfinished:
            self._drop_old()
            self._searches.keep(state, search)
            raise

    def _row(self, state: State) -> Mask:
        """Compute the row of the tokens that may follow `state`."""
        self._terminals.trim()
        row = self._rows.take(state) if self._rows else None
        if row is None:
            threads = state.threads
            begin: list[Kernels] = []
            sets: list[np.ndarray] = []
            if len(threads) <= _SMALL:  # the usual case is done at once
                self._read(threads, begin, sets)
                threads = ()
                if self._is_small(begin):
                    of = self.states.for_walk
                    return self._made(state, sets, [(nodes, of(kernel)) for nodes, kernel in begin])
            row = _BegunRow([*reversed(threads)], sets, Beginnings(begin))
        try:
            return self._finished(state, row)
        except Unfinished:
            self._drop_old()
            self._rows.keep(state, row)
            raise

    def _drop_old(self) -> None:
        """Drop work that was begun before masks were trimmed."""
        if self._age != self._masks.age:
            self._age = self._masks.age
            self._rows.clear()
            self._searches.clear()

    def _is_small(self, begin: list[Kernels]) -> bool:
        """Whether a walk below these nodes of the trie takes little enough to be done at once."""
        count = 0
        for nodes, _ in begin:
            count += len(nodes)
        if count <= _SMALL:
            return True
        trie = self._vocabulary.trie
        below = trie.sizes[np.concatenate([nodes for nodes, _ in begin])]
        return below.sum() <= _TIMES * len(trie)

    def _made(self, state: State, sets: list[np.ndarray], begin: list[Beginning]) -> Mask:
        """Return the row of `sets`, of a walk that begins with `begin`, and of control tokens."""
        control = self._stops.after(state)
        if state.items:
            control = control | self._parser.named(state)
        if control:
            sets = [*sets, np.fromiter(control, np.int32)]
        below = Below(self._vocabulary.trie, self, begin) if begin else None
        row, reached = self._masks.row_of(sets, below=below)
        self._meter.add(_MASK + reached // _NODES)
        return row

    def _finished(self, state: State, row: _BegunRow) -> Mask:
        """Return a row that may have been begun. Raises `Unfinished`; a second call continues."""
        trie, meter, threads = self._vocabulary.trie, self._meter, row.threads
        while threads:
            meter.spend(0)
            begin: list[Kernels] = []
            sets: list[np.ndarray] = []
            self._read(threads[-1:], begin, sets)
            row.beginnings.collected += begin
            row.sets += sets
            threads.pop()
            if len(row.sets) > _SETS:
                meter.add(sum(map(len, row.sets)) // _TOKENS)
                row.sets = [self._masks.words_of(row.sets)[0]]
            meter.add(len(threads) % _THREADS == 0)
        parts = row.beginnings.parts(trie, self.states.for_walk, _AT_ONCE, meter)
        while len(parts) > 1:
            meter.spend(0)
            words, reached = self._masks.words_of(row.sets, Below(trie, self, parts[-1]))
            row.sets = [words]
            parts.pop()
            meter.add(reached // _NODES)
        return self._made(state, row.sets, parts[0] if parts else [])

    def _read(
        self, threads: Sequence[Thread], begin: list[Kernels], sets: list[np.ndarray]
    ) -> None:
        """Add the tokens of the threads' terminals to `sets`, and where others go on to `begin`."""
        for thread in threads:
            terminal, at, _, low, high, _ = thread
            bounds = UNBOUNDED if not low and high is None else self._bounds(thread)
            within = self.tokens[terminal].sets(at, bounds, self._meter)
            sets.append(within.tokens)
            if len(within.ends):
                self._read_next(thread, within.ends, begin, sets)

    def _read_next(
        self, thread: Thread, ends: Nodes, begin: list[Kernels], sets: list[np.ndarray]
    ) -> None:
        """Add where the terminals after that of `thread` end to `begin`, with what follows.

        That of `thread` ends at the trie nodes `ends`. Tokens that stay within the next terminal
        are added to `sets`. They are cached for all grammars, since many have the same pairs of
        terminals.
        """
        following = self._parser.after_terminal(thread).threads
        if len(following) > _SIDE_BY_SIDE:
            begin.append((ends, (thread.onward,)))
            return
        bounded: list[Thread] = []
        for after in following:
            terminal, _, _, low, high, _ = after
            if low or high is not None:
                bounded.append(after)
                continue
            below = self.tokens[terminal].below(ends, self._meter)
            sets.append(below.tokens)
            if len(below.ends):
                begin.append((below.ends, (after.onward,)))
        if bounded:
            whole = len(bounded) == len(following)
            begin.append((ends, (thread.onward,) if whole else bounded))

    def _leaving(self, thread: Thread) -> Nodes:
        """Return the trie nodes at which the terminal of `thread` may end."""
        bounds = self._bounds(thread)
        return self.tokens[thread.terminal].sets(thread.at, bounds, self._meter).ends

    def likely(self, state: State) -> Bool[np.ndarray, " 256"]:
        """Return the bytes that may follow `state` if bounds of length are ignored."""
        if NATIVE is not None:  # else the walk of a mask begins anew, and would never be finished
            self._meter.spend(len(state.threads) // _LIKELY)
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
