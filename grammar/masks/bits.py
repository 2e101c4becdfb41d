"""Sets of tokens as packed bits, one set a row: what a grammar and a mask kernel agree on."""

import numpy as np
import torch
import xgrammar as xgr


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
