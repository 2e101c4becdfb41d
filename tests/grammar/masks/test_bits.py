"""Sets of tokens as packed bits, in C and in numpy."""

from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from in_c import both, needs_c

from dlm.grammar.masks import (
    add_tokens,
    as_numbers_if_few,
    token_words,
    tokens_in,
)
from dlm.grammar.masks.bits import NATIVE


@needs_c
@given(st.lists(st.lists(st.integers(0, 99), max_size=9), max_size=4), st.booleans())
def test_sets_are_joined_alike_in_c_and_in_numpy(sets, dense):
    made = [token_words(some, 100) if dense else np.array(some, np.int32) for some in sets]
    for native in (NATIVE, None):
        with patch("dlm.grammar.masks.bits.NATIVE", native):
            words = np.zeros(4, np.uint32)
            add_tokens(words, [*made, np.array([3], np.int32)])
            assert tokens_in(words).tolist() == sorted({3}.union(*sets))


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


@both
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
