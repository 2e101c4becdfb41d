"""The sets of tokens that a grammar allows here and there, each kept once.

Positions of a canvas share most of them: inside a string all allow the same. So a position names a
row of one table, or the one token that it allows. Knows no grammar and no position.
"""

from collections.abc import Collection, Hashable

import numpy as np
from jaxtyping import Int32
from torch import Tensor

from dlm.grammar.masks.bits import Bits

Mask = int  # a row of the table; or ~token, where that is all that is allowed

_ROWS = 1024  # before a table is begun anew; it has room for more, since a look is not cut short


class Masks:
    """A table that grows. A row that is written stays as it is until `trim`."""

    def __init__(self, vocab_size: int):
        self._vocab_size = vocab_size
        self._bits = Bits(2 * _ROWS, vocab_size)
        self.count = 0  # rows that are written
        self.known: dict[Hashable, Mask] = {}  # by what was asked for
        self.age = 0  # counts how often it was emptied

    @property
    def table(self) -> Int32[Tensor, "rows words"]:
        return self._bits.tensor

    @property
    def nbytes(self) -> int:
        return self._bits.rows[: self.count].nbytes

    def trim(self) -> None:
        """Between two looks: forget all rows if they have become too many."""
        if self.count > _ROWS:
            self.clear()

    def clear(self) -> None:
        """Forget all rows."""
        self._bits, self.count = Bits(2 * _ROWS, self._vocab_size), 0
        self.known.clear()
        self.age += 1

    def new(self) -> tuple[Bits, Mask]:
        """A row to write to, and its number."""
        if self.count == len(self._bits.rows):
            more = Bits(2 * self.count, self._vocab_size)
            more.rows[: self.count] = self._bits.rows
            self._bits = more
        self.count += 1
        return self._bits, self.count - 1

    def words(self, mask: Mask) -> np.ndarray:
        """The allowed tokens, as packed bits."""
        return self._bits.rows[self.changed(None, [~mask]) if mask < 0 else mask]

    def kept(self, key: Hashable, words: np.ndarray) -> Mask:
        """A row for `words`, known by `key`."""
        if key not in self.known:
            bits, self.known[key] = self.new()
            bits.rows[self.known[key]] = words
        return self.known[key]

    def changed(
        self, mask: Mask | None, add: Collection[int] = (), remove: Collection[int] = ()
    ) -> Mask:
        """The row `mask`, or one of no tokens, with some more or fewer."""
        if mask is not None and not add and not remove:
            return mask
        key = mask, frozenset(add), frozenset(remove)
        if key not in self.known:
            bits, row = self.new()
            bits.rows[row] = 0 if mask is None else bits.rows[mask]
            for token in add:
                bits.add(row, token)
            for token in remove:
                bits.remove(row, token)
            self.known[key] = row
        return self.known[key]
