"""Sets of tokens as packed bits, one set a row: what a grammar and a mask kernel agree on.

The sets of tokens that a grammar allows here and there, each kept once.

Positions of a canvas share most of them: inside a string all allow the same. So a position names a
row of one table, or the one token that it allows. Knows no grammar and no position.
"""

from collections.abc import Collection, Hashable

import numpy as np
import torch
import xgrammar as xgr
from jaxtyping import Int32
from torch import Tensor


def packed(tokens: np.ndarray) -> np.ndarray:
    """A set by its members, a bool for each token."""
    bits = np.zeros(-(-len(tokens) // 32) * 32, dtype=bool)
    bits[: len(tokens)] = tokens
    return np.packbits(bits, bitorder="little").view(np.uint32)


def unpacked(words: np.ndarray) -> np.ndarray:
    """A byte for each bit."""
    return np.unpackbits(words.view(np.uint8), bitorder="little")


def tokens_in(words: np.ndarray) -> np.ndarray:
    """The numbers of the bits that are set."""
    return np.flatnonzero(unpacked(words).view(np.bool_))  # of bytes it takes ten times as long


def add(words: np.ndarray, token: int) -> None:
    words[token >> 5] |= np.uint32(1 << (token & 31))


def remove(words: np.ndarray, token: int) -> None:
    words[token >> 5] &= np.uint32(0xFFFFFFFF ^ (1 << (token & 31)))


class Bits:
    """Rows of allowed tokens in xgrammar's packed form: bit `v % 32` of word `v // 32`.

    They are not initialised: a row takes no memory before it is written.
    """

    def __init__(self, rows: int, vocab_size: int):
        shape = xgr.get_bitmask_shape(rows, vocab_size)
        self.tensor = torch.empty(shape, dtype=xgr.bitmask_dtype)
        self.rows = self.tensor.numpy().view(np.uint32)  # shares memory

    def add(self, row: int, token: int) -> None:
        add(self.rows[row], token)

    def remove(self, row: int, token: int) -> None:
        remove(self.rows[row], token)


Mask = int  # a row of the table; or ~token, where that is all that is allowed

# before a table is begun anew; it has room for more, since a look is not cut short
_ROWS, _KNOWN = 1024, 1 << 16


class GrammarMasks:
    """A table that grows. A row that is written stays as it is until `trim`."""

    def __init__(self, vocab_size: int):
        self._vocab_size = vocab_size
        self._bits = Bits(2 * _ROWS, vocab_size)
        self.count = 0  # rows that are written
        self.known: dict[Hashable, Mask] = {}  # by what was asked for
        self._rows: dict[int, Mask] = {}  # by the hash of their words
        self.age = 0  # counts how often it was emptied

    @property
    def table(self) -> Int32[Tensor, "rows words"]:
        return self._bits.tensor

    @property
    def nbytes(self) -> int:
        return self._bits.rows[: self.count].nbytes

    def trim(self) -> None:
        """Between two looks: forget all rows if they, or their names, have become too many."""
        if self.count > _ROWS or len(self.known) > _KNOWN:
            self.clear()

    def clear(self) -> None:
        """Forget all rows."""
        self._bits, self.count = Bits(2 * _ROWS, self._vocab_size), 0
        self.known.clear()
        self._rows.clear()
        self.age += 1

    def words(self, mask: Mask) -> np.ndarray:
        """The allowed tokens, as packed bits."""
        return self._bits.rows[self.changed(None, [~mask]) if mask < 0 else mask]

    def kept(self, key: Hashable, words: np.ndarray) -> Mask:
        """The row of `words`, known by `key` from now on."""
        if key not in self.known:
            hashed = hash(words.tobytes())
            row = self._rows.get(hashed)
            if row is None or not np.array_equal(self._bits.rows[row], words):
                row = self._rows[hashed] = self._new()
                self._bits.rows[row] = words
            self.known[key] = row
        return self.known[key]

    def changed(
        self, mask: Mask | None, more: Collection[int] = (), fewer: Collection[int] = ()
    ) -> Mask:
        """The row `mask`, or one of no tokens, with the tokens `more` and without `fewer`."""
        if mask is not None and not more and not fewer:
            return mask
        key = mask, frozenset(more), frozenset(fewer)
        if key not in self.known:
            rows = self._bits.rows
            words = np.zeros_like(rows[0]) if mask is None else rows[mask].copy()
            for token in more:
                add(words, token)
            for token in fewer:
                remove(words, token)
            return self.kept(key, words)
        return self.known[key]

    def _new(self) -> Mask:
        """A row to write to."""
        if self.count == len(self._bits.rows):
            more = Bits(2 * self.count, self._vocab_size)
            more.rows[: self.count] = self._bits.rows
            self._bits = more
        self.count += 1
        return self.count - 1
