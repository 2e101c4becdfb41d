"""The tokenizer as grammars see it."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

import dlm.models
from dlm.grammar import GrammarError, Vocabulary

TINY = Path(dlm.models.__file__).parent / "tiny"


def test_control_tokens_have_no_text(vocabulary):
    for name in ("<turn|>", "<|channel>", "<eos>", '<|"|>', "<pad>"):
        token = vocabulary.encode(name)
        assert len(token) == 1
        assert vocabulary.text(token) == ""
        assert token[0] in vocabulary.control


@given(st.text())
def test_text_is_what_was_encoded(vocabulary, text):
    for name in ("<", "|", "▁"):  # control tokens by name, and the tokenizer's own space sign
        text = text.replace(name, "")
    assert vocabulary.text(vocabulary.encode(text)) == text


def test_bytes_that_are_no_utf8_are_replaced(vocabulary):
    hwair = vocabulary.encode("𐍈")  # a letter of Gothic, which no tokenizer of ours has seen
    assert len(hwair) == 4
    assert vocabulary.text(hwair[:3]) == "\ufffd"


def test_canonical_tokens_continue_what_is_there(vocabulary):
    before = vocabulary.encode('{"')
    assert vocabulary.canonical(before, 'invoice_id"') == vocabulary.encode("invoice_id")


def test_canonical_leaves_out_a_piece_that_could_merge_with_what_follows(vocabulary):
    assert vocabulary.canonical(vocabulary.encode('{"'), "total") == []
    assert vocabulary.canonical([], "true") == []


def test_canonical_is_empty_where_the_boundary_would_merge(vocabulary):
    """`"` and `, ` are one token together: behind a lone quote no tokens are certain."""
    quote = vocabulary.encode('"')
    assert vocabulary.encode('",') != quote + vocabulary.encode(",")
    assert vocabulary.canonical([*vocabulary.encode("ab"), *quote], ", ab") == []


def test_a_longer_context_than_four_tokens_changes_nothing(vocabulary):
    before = vocabulary.encode('{"name": "Olga Lopez", "')
    assert vocabulary.canonical(before, 'total"') == vocabulary.canonical(before[-4:], 'total"')


@pytest.mark.parametrize(("stops", "pad"), [([9], 0), ([1], 9), ([-1], 0)])
def test_stops_and_padding_have_to_be_tokens(stops, pad):
    with pytest.raises(GrammarError, match="is outside of 3 tokens"):
        Vocabulary(
            [b"", b"", b"a"], control=[], stops=stops, pad=pad, thought=None, encode=lambda t: []
        )


@pytest.mark.parametrize("size", [1500, 1536, 1600])
def test_a_model_may_have_fewer_or_more_logits_than_the_tokenizer_has_tokens(vocabulary, size):
    """Gemma's own tokenizer has one token more than its model."""
    tokenizer = AutoTokenizer.from_pretrained(TINY)
    other = Vocabulary.from_tokenizer(tokenizer, size, [1, 106], pad=0)
    assert len(other) == size
    shared = min(size, len(vocabulary))
    assert other.pieces[:shared] == vocabulary.pieces[:shared]
    assert all(token < size for token in other.control)
