"""Probabilities of labels on a canvas, against sums over all of their spellings."""

import numpy as np
import pytest
import torch
from full_rows import FullRows
from hypothesis import given
from hypothesis import strategies as st
from spellings import probability

from dlm.decisions.running import FirstTokens, Labels
from dlm.grammar import GrammarError, Vocabulary

PIECES = [b"", b"", b"a", b"b", b"c", b"ab", b"bc", b"abc", b"a", "é".encode(), b"\xc3", b"\xa9"]
STOPS = [1, 13]
VOCABULARY = Vocabulary(
    [*PIECES, b"ca", b"x"], control=[13], stops=STOPS, pad=0, thought=None, encode=list
)
V = len(VOCABULARY)


def parts(labels, logits):
    """Return log-probabilities of `labels` on the first 1, 2, 3, ... positions of a canvas."""
    sizes = labels.tokens, labels.classes, labels.count, labels.length
    return list(labels.forward(FullRows(logits).class_sums(*sizes)))


@given(
    labels=st.lists(st.text("abcé", min_size=1, max_size=5), min_size=1, max_size=6, unique=True),
    L=st.integers(1, 6),
    seed=st.integers(0, 2**32),
)
def test_a_label_has_the_probability_of_all_its_spellings_and_a_stop(labels, L, seed):
    logits = torch.tensor(3 * np.random.default_rng(seed).normal(size=(L, V)))
    p = logits.softmax(-1).numpy()
    found = parts(Labels(labels, VOCABULARY), logits)[-1]
    expected = [probability(each.encode(), VOCABULARY.pieces, p, STOPS) for each in labels]
    np.testing.assert_allclose(np.exp(found), expected, rtol=1e-9, atol=1e-300)


def test_a_label_that_no_tokens_spell_is_refused_by_name():
    with pytest.raises(GrammarError, match="'abd' cannot be spelled"):
        Labels(["ab", "abd"], VOCABULARY)


def test_labels_that_share_parts_are_distinguished():
    """The label "ab" is the beginning of "abc", and "bc" its end."""
    logits = torch.full((4, V), -50.0)
    logits[0, 5], logits[1, 4], logits[2, 1] = 50.0, 50.0, 50.0
    found = parts(Labels(["ab", "bc", "abc"], VOCABULARY), logits)[-1]
    assert found.argmax() == 2
    assert found[2] == pytest.approx(0, abs=1e-6)


def test_sums_over_the_first_positions_are_those_of_a_shorter_canvas():
    logits = torch.tensor(3 * np.random.default_rng(1).normal(size=(6, V)))
    labels = Labels(["ab", "abc", "cab"], VOCABULARY)
    assert labels.length == 4
    found = parts(labels, logits)
    assert len(found) == 4
    for end, each in enumerate(found, start=1):
        np.testing.assert_array_equal(each, parts(labels, logits[:end])[-1])


def test_first_tokens_are_compared_at_the_first_position():
    logits = torch.tensor(3 * np.random.default_rng(2).normal(size=(3, V)))
    (found,) = parts(FirstTokens([4, 2]), logits)
    np.testing.assert_allclose(found, logits.log_softmax(-1)[0, [4, 2]].numpy())
