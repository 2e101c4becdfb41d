"""Sets of tokens as packed bits, the format that grammars and mask kernels share."""

from collections.abc import Collection, Sequence

import numpy as np
from jaxtyping import Int32, UInt32

from dlm.grammar.native import load

NATIVE, MADE_BY = load()  # the extension in C, or None; and what masks are made by
_FEW_TOKENS = 1024  # tokens that are set one by one
_FEW_WORDS = 64  # words up to which their bits are listed, not packed
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
    bits = np.flatnonzero(unpacked(words[at]).view(np.bool_))
    return (at[bits >> 5] << 5) + (bits & 31)


def as_numbers_if_few(words: np.ndarray) -> np.ndarray:
    """Return the numbers of the bits that are set (int32) if they are few, else `words` itself."""
    if NATIVE is not None:
        numbers = NATIVE.numbers_if_few(words, _FEW_WORDS)
        return words if numbers is None else np.frombuffer(numbers, np.int32)
    few = np.count_nonzero(words) <= _FEW_WORDS
    return tokens_in(words).astype(np.int32) if few else words


def add_tokens(words: np.ndarray, sets: Sequence[np.ndarray]) -> None:
    """Add sets of tokens to packed bits: numbers (int32), or packed bits themselves."""
    if NATIVE is not None:
        NATIVE.add_sets(words, [*sets])
        return
    numbers = [tokens for tokens in sets if tokens.dtype != np.uint32]
    for tokens in sets:
        if tokens.dtype == np.uint32:
            words |= tokens
    if numbers:
        _set_bits(words, np.concatenate(numbers), 32 * len(words))


def token_words(tokens: Collection[int] | np.ndarray, size: int) -> UInt32[np.ndarray, " words"]:
    """Return the packed bits of a set, given as its tokens out of `size`."""
    words = np.zeros(-(-size // 32), np.uint32)
    numbers = tokens if isinstance(tokens, np.ndarray) else [*tokens]
    add_tokens(words, [np.asarray(numbers, np.int32)])
    return words


def without_tokens(
    tokens: np.ndarray, removed: np.ndarray, size: int
) -> Int32[np.ndarray, " tokens"] | UInt32[np.ndarray, " words"]:
    """Return a set of tokens out of `size` without the numbers `removed`: as numbers if it is few.

    The set is given as numbers (int32), or as packed bits.
    """
    words = tokens.copy() if tokens.dtype == np.uint32 else token_words(tokens, size)
    words &= ~token_words(removed, size)
    return as_numbers_if_few(words)


def _set_bits(words: UInt32[np.ndarray, " words"], numbers: np.ndarray, size: int) -> None:
    """Set the bits of `numbers`, which are below `size`."""
    if len(numbers) > _FEW_TOKENS:
        members = np.zeros(size, dtype=bool)
        members[numbers] = True
        words |= packed(members)
    else:
        np.bitwise_or.at(words, numbers >> 5, np.uint32(1) << (numbers & 31).astype(np.uint32))
