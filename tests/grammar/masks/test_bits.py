"""Sets of tokens as packed bits, in C and in numpy."""

from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlm.grammar.masks import (
    add_tokens,
    are_equal,
    as_numbers_if_few,
    copy_to_zeros,
    digest,
    token_words,
    tokens_in,
)
from dlm.grammar.native import load

NATIVE, MADE_BY = load()
needs_c = pytest.mark.skipif(NATIVE is None, reason=MADE_BY)


@needs_c
@given(st.lists(st.lists(st.integers(0, 99), max_size=9), max_size=4), st.booleans())
def test_sets_are_joined_alike_in_c_and_in_numpy(sets, dense):
    made = [token_words(some, 100) if dense else np.array(some, np.int32) for some in sets]
    for native in (NATIVE, None):
        with patch("dlm.grammar.masks.bits.NATIVE", native):
            words = np.zeros(4, np.uint32)
            add_tokens(words, [*made, np.array([3], np.int32)])
            assert tokens_in(words).tolist() == sorted({3}.union(*sets))
            assert digest(words) == digest(words.copy())
            for other in np.eye(4, dtype=np.uint32):
                assert digest(words) != digest(words ^ other)
                assert not are_equal(words, words ^ other)
            assert are_equal(words, words.copy())


@needs_c
@pytest.mark.parametrize(
    "tokens",
    [np.array([128], np.int32), np.array([-1], np.int32), np.zeros(3, np.uint32), np.zeros(4)],
)
def test_a_set_beyond_the_vocabulary_is_refused_in_c(tokens):
    words = np.zeros(4, np.uint32)
    with pytest.raises(ValueError, match="must be packed bits, or tokens of the vocabulary"):
        NATIVE.add_sets(words, [tokens])
    if tokens.itemsize != 4:
        assert not words.any()


@needs_c
def test_digests_differ_wherever_a_bit_differs_in_c():
    words = np.zeros(100, np.uint32)
    bits = [np.bitwise_xor(words, np.uint32(1 << 31) * (np.arange(100) == i)) for i in range(100)]
    assert len({NATIVE.digest(some.astype(np.uint32)) for some in [words, *bits]}) == 101


@pytest.mark.parametrize("native", [pytest.param(NATIVE, marks=needs_c), None], ids=["C", "numpy"])
@given(st.sets(st.integers(0, 5000), max_size=4), st.integers(0, 3))
def test_a_set_is_copied_to_zeros(native, places, shift):
    words = np.zeros(5001, np.uint32)
    words[[*places]] = 1 << 31
    zeros = np.zeros(5001 + shift, np.uint32)[shift:]
    with patch("dlm.grammar.masks.bits.NATIVE", native):
        copy_to_zeros(zeros, words)
    assert np.array_equal(zeros, words)


@pytest.mark.parametrize("native", [pytest.param(NATIVE, marks=needs_c), None], ids=["C", "numpy"])
@given(st.integers(0, 70), st.integers(0, 100), st.integers(0, 31), st.booleans())
def test_a_set_of_few_words_is_listed(native, used, begin, bit, both):
    words = np.zeros(172, np.uint32)
    words[begin : begin + used] = 1 << bit | (both << 31)
    with patch("dlm.grammar.masks.bits.NATIVE", native):
        tokens = as_numbers_if_few(words)
    if used > 64:
        assert tokens is words
    else:
        assert tokens.dtype == np.int32
        assert tokens.tolist() == tokens_in(words).tolist()


@needs_c
@pytest.mark.parametrize("bits", [bytes(6), memoryview(bytes(9))[1:]])
def test_packed_bits_that_are_no_whole_words_are_not_listed_in_c(bits):
    with pytest.raises(ValueError, match="must be whole words"):
        NATIVE.numbers_if_few(bits, 9)


@needs_c
def test_a_copy_leaves_pages_alone_that_stay_zeros():
    pages = np.full(4 * 1024, 7, np.uint32)  # sevens show what is not written
    words = np.zeros(4 * 1024, np.uint32)
    words[2000] = 1
    NATIVE.copy_to_zeros(pages, words)
    written = np.flatnonzero(pages != 7)
    assert len(written) == 1024
    assert written[0] <= 2000 <= written[-1]
    assert (pages.ctypes.data + 4 * written[0]) % 4096 == 0
    with pytest.raises(ValueError, match="must have the same number of words"):
        NATIVE.copy_to_zeros(pages, words[1:])
