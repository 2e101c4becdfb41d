"""Texts of the fewest tokens: by trying, and what a budget between bytes and tokens is good for."""

from itertools import product

import pytest
import torch
from exhaustive import examples
from hypothesis import given
from hypothesis import strategies as st
from scores import scores_of

from dlm.grammar import (
    BudgetError,
    Choice,
    Compiler,
    Fixed,
    Frontier,
    Grammar,
    JsonSchema,
    Regex,
    Vocabulary,
)

L = 8
WORDS = st.lists(
    st.text(st.sampled_from("abcdetrns "), min_size=1, max_size=6), min_size=1, unique=True
)


def needed_for(compiled):
    try:
        Frontier(compiled, 1)
    except BudgetError as error:
        return error.needed
    return 1


@examples(60)
@given(options=WORDS, count=st.integers(1, 2))
def test_no_text_takes_fewer_tokens_than_are_said_to_be_needed(
    compiler, vocabulary, options, count
):
    literals = " | ".join(f'"{option}"' for option in options)
    compiled = compiler.compile(Grammar(f"root ::= ({literals}){{{count}}}"))
    texts = ("".join(each).encode() for each in product(options, repeat=count))
    assert needed_for(compiled) == 1 + min(len(vocabulary.fewest([text])) for text in texts)


@pytest.fixture(scope="module")
def words():
    """Every lower-case letter is a token, and so are some long words."""
    pieces = [b"", b"", *(bytes([byte]) for byte in range(97, 123)), b"ought", b"tho", b"ugh"]

    def encode(text):
        return [pieces.index(letter.encode()) for letter in text]

    return Vocabulary(pieces, control=[0, 1], stops=[1], pad=0, thought=None, encode=encode)


@pytest.mark.parametrize(
    ("spec", "needed", "text"),
    [
        (Choice(["ought", "zqj"]), 2, "ought"),
        (Choice(["thoughx", "zqjk"]), 4, "thoughx"),
        (Regex("z{3}(ab|ought)|tho(ugh|zz)(t|zq)"), 4, "thought"),
    ],
)
def test_a_budget_for_the_fewest_tokens_is_enough(words, spec, needed, text):
    """Whatever the model wants, and though fewer bytes would take more tokens."""
    compiled = Compiler(words).compile(spec)
    assert needed_for(compiled) == needed
    for seed in range(20):
        logits = 9 * torch.randn(L, len(words), generator=torch.Generator().manual_seed(seed))
        frontier = Frontier(compiled, needed)
        guidance = frontier.guide(scores_of(logits), Fixed(last=True))
        assert words.text(guidance.guess) == text
        assert guidance.stop == needed - 1


def test_a_text_that_the_fewest_bytes_cannot_spell_is_found(words):
    """There is no token for an A, and `ought` has more bytes."""
    compiled = Compiler(words).compile(Choice(["A", "ought"]))
    assert needed_for(compiled) == 2
    assert Frontier(compiled, 5)


def test_where_there_is_too_much_to_look_at_the_fewest_bytes_count(
    compiler, vocabulary, monkeypatch
):
    spec = JsonSchema(
        {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
    )
    compiled = Compiler(vocabulary).compile(spec)
    monkeypatch.setattr("dlm.grammar.parse.remainders._MOST_BYTES", 10)
    assert needed_for(compiled) == 1 + len(vocabulary.fewest([b'{"a":""}']))


def test_fewer_tokens_are_searched_for_only_if_the_fewest_bytes_take_too_many(vocabulary):
    spec = JsonSchema({"type": "object", "properties": {"a": {"type": "string"}}})
    compiled = Compiler(vocabulary).compile(spec)
    state = compiled.parser.start
    tokens = len(compiled.shortest_completion(state))
    before = compiled.meter.spent
    assert compiled.closes_within(state, None, tokens)
    assert compiled.meter.spent == before
    assert not compiled.closes_within(state, None, tokens - 1)
    assert compiled.meter.spent > before
