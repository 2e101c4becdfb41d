"""Vocabularies: the bytes of tokens, control tokens, and canonical tokens."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

import dlm.models
from dlm.grammar import GrammarError, Vocabulary
from dlm.grammar.vocabulary import common_prefix

TINY = Path(dlm.models.__file__).parent / "tiny"


def test_control_tokens_have_no_text(vocabulary):
    for name in ("<turn|>", "<|channel>", "<eos>", '<|"|>', "<pad>"):
        token = vocabulary.encode(name)
        assert len(token) == 1
        assert vocabulary.text(token) == ""
        assert token[0] in vocabulary.control


@given(st.text())
def test_the_text_of_encoded_tokens_is_the_original_text(vocabulary, text):
    for name in ("<", "|", "▁"):  # control tokens by name, and the tokenizer's own space sign
        text = text.replace(name, "")
    assert vocabulary.text(vocabulary.encode(text)) == text


def test_bytes_that_are_not_utf8_are_replaced(vocabulary):
    hwair = vocabulary.encode("𐍈")  # a letter of Gothic, which is no token of its own
    assert len(hwair) == 4
    assert vocabulary.text(hwair[:3]) == "\ufffd"


def test_canonical_tokens_continue_the_tokens_before_them(vocabulary):
    before = vocabulary.encode('{"')
    assert vocabulary.canonical(before, 'invoice_id"') == vocabulary.encode("invoice_id")


def test_a_piece_that_could_merge_with_the_next_one_is_not_canonical(vocabulary):
    assert vocabulary.canonical(vocabulary.encode('{"'), "total") == []
    assert vocabulary.canonical([], "true") == []


def test_no_tokens_are_canonical_if_they_could_merge_with_the_token_before(vocabulary):
    """`"` and `, ` are one token together: after a lone quote no tokens are certain."""
    quote = vocabulary.encode('"')
    assert vocabulary.encode('",') != quote + vocabulary.encode(",")
    assert vocabulary.canonical([*vocabulary.encode("ab"), *quote], ", ab") == []


def test_canonical_tokens_depend_on_at_most_four_tokens_before_them(vocabulary):
    before = vocabulary.encode('{"name": "Olga Lopez", "')
    assert vocabulary.canonical(before, 'total"') == vocabulary.canonical(before[-4:], 'total"')


@pytest.mark.parametrize(("stops", "pad"), [([9], 0), ([1], 9), ([-1], 0)])
def test_stops_and_padding_must_be_tokens_of_the_vocabulary(stops, pad):
    with pytest.raises(GrammarError, match="is outside of 3 tokens"):
        Vocabulary(
            [b"", b"", b"a"], control=[], stops=stops, pad=pad, thought=None, encode=lambda t: []
        )


@pytest.mark.parametrize(("size", "added"), [(1536, 1), (1536, 64), (1600, 0), (1700, 0)])
def test_a_model_may_have_a_few_logits_more_or_fewer_than_the_tokenizer_has_tokens(
    vocabulary, size, added
):
    """Gemma's own tokenizer has one token more than its model."""
    tokenizer = AutoTokenizer.from_pretrained(TINY)
    tokenizer.add_tokens([f"<extra {i}>" for i in range(added)])
    other = Vocabulary.from_tokenizer(tokenizer, size, [1, 106], pad=0)
    assert len(other) == size
    shared = min(size, len(vocabulary))
    assert other.pieces[:shared] == vocabulary.pieces[:shared]
    assert all(token < size for token in other.control)
    text = other.text_words
    without = [t for t in range(1536, size) if text[t // 32] >> t % 32 & 1]
    assert not without  # an id without a piece has no text that a grammar could allow


def test_a_tokenizer_of_another_model_is_refused_with_counts():
    tokenizer = AutoTokenizer.from_pretrained(TINY)
    with pytest.raises(GrammarError, match=r"36 of its 1,536 pieces have ids outside of .* 1,500"):
        Vocabulary.from_tokenizer(tokenizer, 1500, [1, 106], pad=0)
    with pytest.raises(GrammarError, match="no piece for 1,464 of the model's 3,000 tokens"):
        Vocabulary.from_tokenizer(tokenizer, 3000, [1, 106], pad=0)
    tokenizer.add_tokens([f"<extra {i}>" for i in range(65)])
    with pytest.raises(GrammarError, match=r"65 of its 1,601 pieces .* at most 64"):
        Vocabulary.from_tokenizer(tokenizer, 1536, [1, 106], pad=0)


@given(st.lists(st.integers(0, 2)), st.lists(st.integers(0, 2)), st.integers(0, 40))
def test_a_common_prefix_ends_where_tokens_begin_to_differ(tokens, other, same):
    tokens, other = [7] * same + tokens, [7] * same + other
    count = common_prefix(tokens, other)

    assert tokens[:count] == other[:count]
    assert tokens[count : count + 1] != other[count : count + 1] or count == len(tokens)
    assert common_prefix(tuple(tokens), other) == count
