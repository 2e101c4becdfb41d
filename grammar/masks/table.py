"""The sets of tokens of one grammar, each kept once.

Positions of a canvas share most sets: inside a string, all allow the same tokens. So a position's
mask is a row of the table, or one token.
"""

from collections.abc import Collection, Hashable, Sequence

import numpy as np
import torch
import xgrammar as xgr
from jaxtyping import Int32
from torch import Tensor

from dlm.grammar.masks.rows import Below, SetRows, made_of, new_rows

Mask = int  # a row of the table; or ~token, if only that token is allowed
_ROWS, _KNOWN = 1024, 1 << 16  # rows and keys, beyond which `trim` clears the table
_KEY_BYTES = 200  # approximate memory of a key


class GrammarMasks:
    """A growing table of masks. A row does not change until `trim`."""

    def __init__(self, vocab_size: int):
        _, self._width = xgr.get_bitmask_shape(1, vocab_size)
        self.known: dict[Hashable, Mask] = {}  # by the caller's keys
        self.age = 0  # number of times that the table was cleared
        self._use(new_rows(self._width, 2 * _ROWS))

    @property
    def count(self) -> int:
        """The number of rows in use."""
        return self._rows.count

    @property
    def table(self) -> Int32[Tensor, "rows words"]:
        """The rows, used or not, in xgrammar's form."""
        if self._table is None:
            bits = torch.frombuffer(self._rows.memory, dtype=xgr.bitmask_dtype)
            self._table = bits.view(-1, self._width)
        return self._table

    @property
    def nbytes(self) -> int:
        return self._words[: self.count].nbytes + _KEY_BYTES * len(self.known)

    def trim(self) -> None:
        """Clear the table if it has too many rows or keys. Call it between two passes."""
        if self.count > _ROWS or len(self.known) > _KNOWN:
            self.clear()

    def clear(self) -> None:
        self._use(new_rows(self._width, 2 * _ROWS))
        self.known.clear()
        self.age += 1

    def words(self, mask: Mask) -> np.ndarray:
        """Return the allowed tokens as packed bits."""
        return self._words[self.changed(None, [~mask]) if mask < 0 else mask]

    def kept(self, key: Hashable, words: np.ndarray) -> Mask:
        """Return the row of the packed bits `words`, and store it under `key`."""
        if key not in self.known:
            self.known[key], _ = self.row_of([words])
        return self.known[key]

    def row_of(
        self,
        sets: Sequence[np.ndarray],
        without: Collection[int] = (),
        below: Below | None = None,
    ) -> tuple[Mask, int]:
        """Return the row of a set, and the number of trie nodes that were reached to make it.

        The set has the tokens of `sets` (numbers, int32, or packed bits) and of `below`, but not
        those of `without`.
        """
        removed = np.fromiter(without, np.int32) if without else None
        made = self._rows.row_of([*sets], removed, made_of(below))
        while made is None:
            self._use(self._rows.grown())
            made = self._rows.row_of([*sets], removed, made_of(below))
        return made

    def words_of(
        self, sets: Sequence[np.ndarray], below: Below | None = None
    ) -> tuple[np.ndarray, int]:
        """Return what `row_of` does, but as packed bits, and without a row for them."""
        rows = new_rows(self._width, 1)
        made = rows.row_of([*sets], None, made_of(below))
        return np.frombuffer(rows.memory, np.uint32).copy(), made[1] if made else 0

    def changed(
        self, mask: Mask | None, more: Collection[int] = (), fewer: Collection[int] = ()
    ) -> Mask:
        """Return the row `mask` with the tokens `more`, without `fewer`; None: the empty row."""
        row = None if mask is None or not fewer else self.words(mask)
        if row is not None:  # most tokens that are taken out are not in the row
            fewer = [token for token in fewer if row[token >> 5] >> (token & 31) & 1]
        if mask is not None and not more and not fewer:
            return mask
        key = mask, frozenset(more), frozenset(fewer)
        if key not in self.known:
            sets = [np.array([*more], np.int32)] + ([] if mask is None else [self.words(mask)])
            self.known[key], _ = self.row_of(sets, fewer)
        return self.known[key]

    def _use(self, rows: SetRows) -> None:
        self._rows, self._table = rows, None
        # A row of packed bits is a view of the same memory.
        self._words = np.frombuffer(rows.memory, np.uint32).reshape(-1, self._width)
