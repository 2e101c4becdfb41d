"""Calls told of while they are made: whatever the pieces, the same calls as in the whole."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from native_calls import answer_tokens

from dlm.chat import Chat
from dlm.engine import BUILT_IN
from dlm.grammar import ToolCall, Vocabulary
from dlm.grammar.schema.dialect import is_bare
from dlm.openai.answers import CallStream

CHAT = Chat.load(BUILT_IN)
VOCABULARY = Vocabulary.from_tokenizer(CHAT.tokenizer, 1536, (1, 106, 50), 0)
TEXT = st.text(st.sampled_from('ab é日{}[],:"\\\n\t<|>') | st.characters(codec="utf-8"), max_size=8)
ODD = st.text(st.sampled_from('a :,{}[]-1.e"é') | st.characters(codec="utf-8"), max_size=6)
KEYS = st.sampled_from(["a", "b_1", "$ref", "xml:lang", "a:1", "t:tru", "n:-"]) | ODD.filter(
    is_bare
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**6), 10**6) | st.sampled_from([0.5, -1.25]) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=6,
)
CALLS = st.builds(
    ToolCall,
    st.sampled_from(["find", "set_alarm.v2", "a-b"]),
    st.dictionaries(KEYS, VALUES, max_size=3),
)


def read(tokens, cuts):
    """The calls that pieces of `tokens` tell of, as a client puts them together."""
    stream, calls = CallStream(VOCABULARY), []
    ends = sorted({min(cut, len(tokens)) for cut in cuts} | {len(tokens)})
    start = 0
    for end in ends:
        for delta in stream.feed(tokens[start:end]):
            if delta.name is not None:
                assert (delta.index, delta.arguments) == (len(calls), "")  # the name comes first
                calls.append([delta.name, ""])
            else:
                assert delta.index == len(calls) - 1
                calls[-1][1] += delta.arguments
        start = end
    return calls


@given(
    parts=st.lists(CALLS | TEXT.filter(bool), max_size=4),
    cuts=st.lists(st.integers(0, 80), max_size=6),
)
def test_pieces_put_together_are_the_arguments_of_the_whole(parts, cuts):
    tokens = answer_tokens(VOCABULARY, *parts)
    expected = [
        [call.name, json.dumps(call.arguments, ensure_ascii=False)]
        for call in parts
        if isinstance(call, ToolCall)
    ]
    assert read(tokens, cuts) == expected


def test_arguments_are_told_as_they_come_and_not_only_at_the_end():
    call = ToolCall("find", {"a": "one two", "b_1": [1, 2]})
    tokens = answer_tokens(VOCABULARY, call)
    said = ["".join(a for _, a in read(tokens[:end], [])) for end in range(len(tokens))]
    assert len(set(said)) > 6
    assert all(later.startswith(earlier) for earlier, later in pairwise(said))


def test_a_vocabulary_without_calls_has_none_to_tell():
    plain = Vocabulary(
        [b"a", b"", b""], control=[1, 2], stops=[1], pad=2, thought=None, encode=list
    )
    with pytest.raises(ValueError, match="no tokens of tool calls"):
        CallStream(plain)


@pytest.mark.parametrize("digits", [62, 63, 64, 65, 3000])
def test_a_long_number_is_told_before_its_end(digits):
    tokens = answer_tokens(VOCABULARY, ToolCall("find", {"a": int("7" * digits)}))
    assert read(tokens, []) == [["find", f'{{"a": {"7" * digits}}}']]
    assert ("7" * min(digits, 63) in read(tokens[:-2], [])[0][1]) == (digits >= 63)
