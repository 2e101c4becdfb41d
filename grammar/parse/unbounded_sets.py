"""The tokens of one terminal without bounds of length, state by state.

Most bytes lead to the same state from many states. So the tokens of a state begin as those of the
most similar state that is known, and only tokens whose first byte leads elsewhere are read.
"""

from collections import deque
from collections.abc import Callable, Iterable

import numpy as np
from jaxtyping import Bool, Int32

from dlm.grammar.limits import Meter
from dlm.grammar.masks.bits import token_words
from dlm.grammar.masks.trie import Nodes, Trie
from dlm.grammar.masks.walks import NODES_READ, Reach, TokenSet, WalkTable
from dlm.grammar.parse.scanner import Move

_COMPARED = 8  # known states that a new one is compared with: the newest
_COPIED = 10  # units of work to begin as another state
_FILTERED = 10_000  # trie nodes that are taken over for a unit of work
_AT_ONCE = 1 << 16  # trie nodes that a step looks at; more only if one byte begins more
_NOWHERE = -1
Row = Int32[np.ndarray, "256"]  # the next state by byte
_NO_MOVES = np.full(256, _NOWHERE, np.int32)
Similar = tuple[TokenSet, Iterable[Move]]  # a token set with the moves that it was read by


class _PartialSet:
    """A state whose tokens are being read: what is reached, and children of the root to read."""

    def __init__(self, reach: Reach, waiting: list[Nodes]):
        self.reach, self.waiting = reach, waiting


class UnboundedSets:
    """The token sets of the states of a terminal, read by its table of moves."""

    def __init__(self, trie: Trie, size: int):
        """`size` is the number of tokens of the vocabulary."""
        self._trie, self._size = trie, size
        self._newest: deque[tuple[TokenSet, Row]] = deque(maxlen=_COMPARED)
        self._begun: dict[int, _PartialSet] = {}

    def token_set(
        self,
        state: int,
        moves: Iterable[Move],
        table: WalkTable,
        similar: Callable[[], Similar | None],
        meter: Meter,
    ) -> TokenSet:
        """Read the trie from `state`, in steps whose results are kept if work runs out.

        `similar` may return a token set of another terminal, with its moves in states of this one.
        """
        row = _row(moves)
        reading = self._begun.pop(state, None)  # no other thread may read on meanwhile
        if reading is None:
            meter.spend(1)
            other = similar()
            reading = self._begin(row, other and (other[0], _row(other[1])), meter)
        try:
            while reading.waiting:
                meter.spend(1)
                before = reading.reach.nodes
                table.read(self._trie, reading.waiting.pop(), state, reading.reach)
                meter.add((reading.reach.nodes - before) // NODES_READ)
        except BaseException:
            self._begun[state] = reading
            raise
        token_set = reading.reach.token_set()
        self._newest.appendleft((token_set, row))
        return token_set

    def _begin(self, row: Row, other: tuple[TokenSet, Row] | None, meter: Meter) -> _PartialSet:
        nodes, sizes = self._trie.first_nodes, self._trie.first_sizes
        similar = [*self._newest] if other is None else [other, *self._newest]
        rows = np.array([_NO_MOVES, *(similar_row for _, similar_row in similar)])
        differs = (rows != row) & (nodes >= 0)  # by row, the first one of no tokens
        nearest = int(np.argmin(differs @ sizes))
        reach = Reach(np.zeros(-(-self._size // 32), np.uint32))
        if nearest:
            base, _ = similar[nearest - 1]
            meter.add(_COPIED + len(base.ends) // _FILTERED)
            reach = self._reached_by(base, differs[nearest])
        read = nodes[differs[nearest] & (row != _NOWHERE)]
        steps = np.cumsum(self._trie.sizes[read]) // _AT_ONCE
        cuts = np.flatnonzero(np.diff(steps)) + 1
        parts = np.split(read, cuts) if len(cuts) else [read]
        return _PartialSet(reach, [part for part in parts if len(part)])

    def _reached_by(self, base: TokenSet, without: Bool[np.ndarray, "256"]) -> Reach:
        """Return what `base` reaches by other first bytes than those in `without`."""
        trie, packed = self._trie, base.tokens.dtype == np.uint32
        words = base.tokens.copy() if packed else token_words(base.tokens, self._size)
        if without.any():
            places = trie.places[trie.first_nodes[without]]
            below = [trie.preorder.tokens_below(place) for place in places.tolist()]
            words &= ~token_words(np.concatenate(below), self._size)
        reach = Reach(words)
        reach.ends.append(base.ends[~without[trie.first_byte[base.ends]]])
        return reach


def _row(moves: Iterable[Move]) -> Row:
    row = _NO_MOVES.copy()
    for low, high, to in moves:
        row[low : high + 1] = to
    return row
