"""Automata of words: in C and in Python."""

import tracemalloc
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from in_c import both, keeps_no_reference, needs_c

from dlm.grammar.limits import TooMuchEffortError, at_most
from dlm.grammar.regex.words import NATIVE, edges_of_words

EVERY = ((0, 0xD7FF), (0xE000, 0x10FFFF))
MADE = "dlm.grammar.regex.words.NATIVE"
LETTERS = st.sampled_from("abcdeé`A\x00\ud7ff\ud800\ue000\uffff\U0010ffff")


@needs_c
@given(st.lists(st.text(LETTERS, max_size=5), max_size=12), st.booleans())
def test_automata_of_words_are_the_same_in_c(words, others):
    in_c = edges_of_words(words, others)
    with patch(MADE, None):
        assert in_c == edges_of_words(words, others)


@needs_c
@pytest.mark.parametrize("others", [False, True])
def test_automata_of_many_words_are_the_same_in_c(others):
    words = [f"{number * 7919:x}" for number in range(3_000)]
    in_c = edges_of_words(words, others)
    with patch(MADE, None):
        assert in_c == edges_of_words(words, others)


@both
def test_no_words_and_the_empty_word(native):
    with patch(MADE, native):
        assert edges_of_words([]) == (((),), frozenset())
        assert edges_of_words([""]) == (((),), frozenset({0}))
        anything = tuple((*part, 0) for part in EVERY)
        assert edges_of_words([], others=True) == ((anything,), frozenset({0}))
        after = tuple((*part, 1) for part in EVERY)
        assert edges_of_words([""], others=True) == ((after, after), frozenset({1}))


@both
def test_words_take_steps_for_characters_that_none_shares_with_the_one_before(native):
    with patch(MADE, native):
        with at_most(6):
            edges_of_words(["abcd", "abef"])
        with at_most(5), pytest.raises(TooMuchEffortError):
            edges_of_words(["abcd", "abef"])


@both
def test_a_word_beyond_the_limit_takes_no_memory(native):
    word = "ab" * 50_000
    with patch(MADE, native), at_most(9_999):
        tracemalloc.start()
        try:
            with pytest.raises(TooMuchEffortError):
                edges_of_words([word])
            assert tracemalloc.get_traced_memory()[1] < 10 * len(word)
        finally:
            tracemalloc.stop()


@needs_c
def test_states_of_no_word_share_a_hash_that_is_known_beforehand():
    points, factor = np.arange(0x100, 0xD000, dtype=np.uint64), np.uint64(0x9E3779B97F4A7C15)
    chosen = ""
    for state in range(3_000):  # a hash without the address would be the same for all
        hashes = (np.uint64(2) ^ points ^ np.uint64(state << 32)) * factor
        hashes ^= hashes >> np.uint64(29)
        hashes ^= hashes >> np.uint64(32)
        chosen = chr(points[(hashes & np.uint64(0x1FFF)).argmin()]) + chosen

    steps: list[int] = []
    edges, _ = NATIVE.automaton_of_words([chosen], False, steps.append)
    assert len(edges) == 1 + len(chosen)
    assert sum(steps) == len(chosen)  # states that share a hash would be counted


@needs_c
def test_what_is_no_list_of_texts_is_refused():
    for arguments in ((), (("a",), True, int), (["a"], True), (["a", b"b"], True, int)):
        with pytest.raises(TypeError):
            NATIVE.automaton_of_words(*arguments)


@needs_c
def test_words_in_another_order_do_no_harm():
    steps: list[int] = []
    edges, final = NATIVE.automaton_of_words(["b", "ab", "b", "a"], False, steps.append)
    assert len(edges) > max(final)
    assert steps == [1, 2, 1, 1]


@needs_c
def test_no_reference_is_kept():
    words = ["first", "second", "s\U0010ffff"]
    refused = words, True, None  # what cannot be called

    def call() -> None:
        NATIVE.automaton_of_words(words, True, int)
        with pytest.raises(TypeError):
            NATIVE.automaton_of_words(*refused)

    assert keeps_no_reference(call, lambda: words)
