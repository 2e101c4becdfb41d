"""The sets of tokens of one grammar, each kept once.

Positions of a canvas share most sets: inside a string, all allow the same tokens. So a position's
mask is a row of the table, or one token.
"""

import math
from collections.abc import Collection, Hashable
from mmap import ACCESS_COPY, mmap

import numpy as np
import torch
import xgrammar as xgr
from jaxtyping import Int32
from torch import Tensor

from dlm.grammar.masks.bits import add_tokens, are_equal, copy_to_zeros, digest, token_words

Mask = int  # a row of the table; or ~token, if only that token is allowed
_ROWS, _KNOWN = 1024, 1 << 16  # rows and keys, beyond which `trim` clears the table


class GrammarMasks:
    """A growing table of masks. A row does not change until `trim`."""

    def __init__(self, vocab_size: int):
        self._vocab_size = vocab_size
        self.known: dict[Hashable, Mask] = {}  # by the caller's keys
        self._rows: dict[int, Mask] = {}  # by the hash of their words
        self.age = 0  # number of times that the table was cleared
        self.count = 0  # rows in use
        self._allocate(2 * _ROWS)
        self._draft = np.zeros_like(self._words[0])

    @property
    def nbytes(self) -> int:
        return self._words[: self.count].nbytes

    def trim(self) -> None:
        """Clear the table if it has too many rows or keys. Call it between two passes."""
        if self.count > _ROWS or len(self.known) > _KNOWN:
            self.clear()

    def clear(self) -> None:
        self._allocate(2 * _ROWS)
        self.count = 0
        self.known.clear()
        self._rows.clear()
        self.age += 1

    def words(self, mask: Mask) -> np.ndarray:
        """Return the allowed tokens as packed bits."""
        return self._words[self.changed(None, [~mask]) if mask < 0 else mask]

    def draft(self) -> np.ndarray:
        """Return a set without tokens, for a caller to make the set that `kept` copies.

        It is the same array at each call.
        """
        self._draft.fill(0)
        return self._draft

    def kept(self, key: Hashable, words: np.ndarray) -> Mask:
        """Return the row of `words`, and store it under `key`."""
        if key not in self.known:
            hashed = digest(words)
            row = self._rows.get(hashed)
            if row is None or not are_equal(self._words[row], words):
                row = self._rows[hashed] = self._new()
                copy_to_zeros(self._words[row], words)
            self.known[key] = row
        return self.known[key]

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
            words = self.draft()
            add_tokens(words, sets)
            if fewer:
                words &= ~token_words(fewer, self._vocab_size)
            return self.kept(key, words)
        return self.known[key]

    def _new(self) -> Mask:
        """Return the number of an unused row."""
        if self.count == len(self._words):
            rows = self._words
            self._allocate(2 * self.count)
            copy_to_zeros(self._words[: self.count], rows)
        self.count += 1
        return self.count - 1

    def _allocate(self, rows: int) -> None:
        """Make the table, of zeros in xgrammar's form. Pages take no memory before a bit is set."""
        shape = xgr.get_bitmask_shape(rows, self._vocab_size)
        size = math.prod(shape) * xgr.bitmask_dtype.itemsize
        memory = mmap(-1, size, access=ACCESS_COPY)  # of this process alone, on every system
        table = torch.frombuffer(memory, dtype=xgr.bitmask_dtype).view(shape)
        self.table: Int32[Tensor, "rows words"] = table
        self._words = table.numpy().view(np.uint32)  # shares memory
