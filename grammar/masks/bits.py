"""Sets of tokens as packed bits, the format that grammars and mask kernels share.

`GrammarMasks` is a grammar's table of such sets, each kept once. Positions of a canvas share most
sets: inside a string, all allow the same tokens. So a position's mask is a row of the table, or one
token. The module knows no grammar and no position.
"""

from collections.abc import Collection, Hashable

import numpy as np
import torch
import xgrammar as xgr
from jaxtyping import Int32
from torch import Tensor

_SPARSE = 8  # if at most one of as many words holds a bit, only these are unpacked


def packed(tokens: np.ndarray) -> np.ndarray:
    """Return the packed bits of a set, given as a bool for each token."""
    bits = np.zeros(-(-len(tokens) // 32) * 32, dtype=bool)
    bits[: len(tokens)] = tokens
    return np.packbits(bits, bitorder="little").view(np.uint32)


def unpacked(words: np.ndarray) -> np.ndarray:
    """Return a byte for each bit."""
    return np.unpackbits(words.view(np.uint8), bitorder="little")


def tokens_in(words: np.ndarray) -> np.ndarray:
    """Return the numbers of the bits that are set, ascending."""
    at = np.flatnonzero(words != 0)  # comparing first takes a fourth of the time
    if len(at) * _SPARSE > len(words):
        return np.flatnonzero(unpacked(words).view(np.bool_))  # ten times as fast as for bytes
    found = np.flatnonzero(unpacked(words[at]).view(np.bool_))
    return (at[found >> 5] << 5) + (found & 31)


def add(words: np.ndarray, token: int) -> None:
    words[token >> 5] |= np.uint32(1 << (token & 31))


def remove(words: np.ndarray, token: int) -> None:
    words[token >> 5] &= np.uint32(0xFFFFFFFF ^ (1 << (token & 31)))


class Bits:
    """Rows of allowed tokens in xgrammar's packed form: bit `v % 32` of word `v // 32`.

    They are not initialised, so a row takes no memory before it is written.
    """

    def __init__(self, rows: int, vocab_size: int):
        shape = xgr.get_bitmask_shape(rows, vocab_size)
        self.tensor = torch.empty(shape, dtype=xgr.bitmask_dtype)
        self.rows = self.tensor.numpy().view(np.uint32)  # shares memory

    def add(self, row: int, token: int) -> None:
        add(self.rows[row], token)

    def remove(self, row: int, token: int) -> None:
        remove(self.rows[row], token)


Mask = int  # a row of the table; or ~token, if only that token is allowed

_ROWS, _KNOWN = 1024, 1 << 16  # rows and keys, beyond which `trim` clears the table


class GrammarMasks:
    """A growing table of masks. A row does not change until `trim`."""

    def __init__(self, vocab_size: int):
        self._vocab_size = vocab_size
        self._bits = Bits(2 * _ROWS, vocab_size)
        self.count = 0  # rows in use
        self.known: dict[Hashable, Mask] = {}  # by the caller's keys
        self._rows: dict[int, Mask] = {}  # by the hash of their words
        self.age = 0  # number of times that the table was cleared

    @property
    def table(self) -> Int32[Tensor, "rows words"]:
        return self._bits.tensor

    @property
    def nbytes(self) -> int:
        return self._bits.rows[: self.count].nbytes

    def trim(self) -> None:
        """Clear the table if it has too many rows or keys. Call it between two passes."""
        if self.count > _ROWS or len(self.known) > _KNOWN:
            self.clear()

    def clear(self) -> None:
        self._bits, self.count = Bits(2 * _ROWS, self._vocab_size), 0
        self.known.clear()
        self._rows.clear()
        self.age += 1

    def words(self, mask: Mask) -> np.ndarray:
        """Return the allowed tokens as packed bits."""
        return self._bits.rows[self.changed(None, [~mask]) if mask < 0 else mask]

    def kept(self, key: Hashable, words: np.ndarray) -> Mask:
        """Return the row of `words`, and store it under `key`."""
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
        """Return the row `mask` with the tokens `more`, without `fewer`; None: the empty row."""
        held = None if mask is None or not fewer else self.words(mask)
        if held is not None:  # most tokens that are taken out are not in the row
            fewer = [token for token in fewer if held[token >> 5] >> (token & 31) & 1]
        if mask is not None and not more and not fewer:
            return mask
        key = mask, frozenset(more), frozenset(fewer)
        if key not in self.known:
            rows = self._bits.rows
            words = np.zeros_like(rows[0]) if mask is None else self.words(mask).copy()
            for token in more:
                add(words, token)
            for token in fewer:
                remove(words, token)
            return self.kept(key, words)
        return self.known[key]

    def _new(self) -> Mask:
        """Return the number of an unused row."""
        if self.count == len(self._bits.rows):
            more = Bits(2 * self.count, self._vocab_size)
            more.rows[: self.count] = self._bits.rows
            self._bits = more
        self.count += 1
        return self.count - 1
