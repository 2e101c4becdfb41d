"""Tables of sets of tokens as packed bits, in which each set has one row.

The module knows tokens as numbers, and not what a set is the mask of.
"""

from collections import defaultdict
from mmap import ACCESS_COPY, mmap
from typing import Any, NamedTuple, Protocol

import numpy as np
from jaxtyping import Int32, UInt32

from dlm.grammar.masks.bits import NATIVE, add_tokens, token_words
from dlm.grammar.masks.trie import Nodes, Trie
from dlm.grammar.masks.walks import Explored, Machine, Walk

Tokens = Int32[np.ndarray, " tokens"]


class Below(NamedTuple):
    """The tokens that a machine reads below nodes of a trie, as a set."""

    trie: Trie
    machine: Machine
    begin: list[tuple[Nodes, Any]]  # nodes, each with the machine's state there

    def for_native(self) -> tuple[Any, ...]:
        """Return the same as the arguments of a walk in C."""
        return self.trie.native, self.begin, self.machine.states

    def add_to(self, words: UInt32[np.ndarray, " words"]) -> int:
        """Add the tokens to packed bits. Returns the number of nodes reached."""
        reached = Walk(self.trie, Explored(self.machine), self.begin).reached()
        add_tokens(words, [self.trie.tokens_at(reached.nodes)[0]])
        return len(reached.nodes)


class SetRows(Protocol):
    """A table of as many rows as it was made with. Rows that are not in use are zeros."""

    @property
    def count(self) -> int:
        """The number of rows in use, which are the first ones."""
        ...

    @property
    def memory(self) -> Any:
        """The packed bits of all rows, used or not, as a buffer."""
        ...

    def grown(self) -> "SetRows":
        """Return a table of twice as many rows, with the same rows in use."""
        ...

    def row_of(
        self, sets: list[np.ndarray], without: Tokens | None, below: Any
    ) -> tuple[int, int] | None:
        """Return the row of a set, and the number of nodes that were reached for it.

        The set holds the tokens of `sets` (numbers, int32, or packed bits) and `below`, as
        `made_of` makes it, but not those of `without`. A set that has no row takes the next one.
        Returns None, and makes no set, if all rows are in use.
        """
        ...


class NumpyRows:
    """The rows of _rows.c, in numpy."""

    def __init__(self, width: int, most: int):
        """`width`: words of a row; `most`: rows."""
        self.memory = mmap(-1, 4 * width * most, access=ACCESS_COPY)  # of this process alone
        self._words = np.frombuffer(self.memory, np.uint32).reshape(most, width)
        self._by_hash: dict[int, list[int]] = defaultdict(list)  # rows by the hash of their sets
        self.count = 0

    def grown(self) -> "NumpyRows":
        most, width = self._words.shape
        larger = NumpyRows(width, 2 * most)
        larger._words[: self.count] = self._words[: self.count]
        larger._by_hash, larger.count = self._by_hash.copy(), self.count
        return larger

    def row_of(
        self, sets: list[np.ndarray], without: Tokens | None, below: Below | None
    ) -> tuple[int, int] | None:
        most, width = self._words.shape
        if self.count == most:
            return None
        words = np.zeros(width, np.uint32)
        add_tokens(words, sets)
        reached = 0 if below is None else below.add_to(words)
        if without is not None:
            words &= ~token_words(without, 32 * width)
        rows = self._by_hash[hash(words.tobytes())]
        for row in rows:
            if np.array_equal(self._words[row], words):
                return row, reached
        rows.append(self.count)
        self._words[self.count] = words
        self.count += 1
        return rows[-1], reached


def made_of(below: Below | None) -> Any:
    """Return `below` as an argument of `row_of`."""
    return below if below is None or NATIVE is None else below.for_native()


def new_rows(width: int, most: int) -> SetRows:
    """Return an empty table of `most` rows of `width` words: in C if the extension is built."""
    return NumpyRows(width, most) if NATIVE is None else NATIVE.Rows(width, most)
