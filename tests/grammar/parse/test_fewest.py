"""Texts of the fewest tokens, if they are not those of the fewest bytes."""

from itertools import product

import pytest
from answers import needed_tokens
from exhaustive import examples
from hypothesis import given
from hypothesis import strategies as st
from scores import random_scores
from toys import toy_vocabulary

from dlm.grammar import Choice, Compiler, Fixed, Frontier, Grammar, JsonSchema, Regex

L = 8
WORDS = st.lists(
    st.text(st.sampled_from("abcdetrns "), min_size=1, max_size=6), min_size=1, unique=True
)


@examples(60)
@given(options=WORDS, count=st.integers(1, 2))
def test_the_needed_tokens_are_those_of_the_text_of_the_fewest_tokens(
    compiler, vocabulary, options, count
):
    literals = " | ".join(f'"{option}"' for option in options)
    compiled = compiler.compile(Grammar(f"root ::= ({literals}){{{count}}}"))
    texts = ("".join(each).encode() for each in product(options, repeat=count))
    assert needed_tokens(compiled) == 1 + min(len(vocabulary.fewest([text])) for text in texts)


@pytest.fixture(scope="module")
def words():
    """A vocabulary of every lower-case letter and some longer words."""
    letters = (bytes([byte]) for byte in range(97, 123))
    return toy_vocabulary([*letters, b"ought", b"tho", b"ugh"])


@pytest.mark.parametrize(
    ("spec", "needed", "text"),
    [
        (Choice(["ought", "zqj"]), 2, "ought"),
        (Choice(["thoughx", "zqjk"]), 4, "thoughx"),
        (Regex("z{3}(ab|ought)|tho(ugh|zz)(t|zq)"), 4, "thought"),
    ],
)
def test_a_budget_for_the_fewest_tokens_is_enough(words, spec, needed, text):
    """Also if the text of the fewest bytes takes more tokens, for any scores of the model."""
    compiled = Compiler(words).compile(spec)
    assert needed_tokens(compiled) == needed
    for seed in range(20):
        scores = random_scores(len(words), L, seed, scale=9)
        guidance = Frontier(compiled, needed).guide(scores, Fixed(last=True))
        assert words.text(guidance.guess) == text
        assert guidance.stop == needed - 1


def test_a_text_that_the_fewest_bytes_cannot_spell_is_found(words):
    """There is no token for an A, and `ought` has more bytes."""
    compiled = Compiler(words).compile(Choice(["A", "ought"]))
    assert needed_tokens(compiled) == 2
    assert Frontier(compiled, 5)


def test_if_the_search_is_too_long_the_text_of_the_fewest_bytes_counts(
    compiler, vocabulary, monkeypatch
):
    spec = JsonSchema(
        {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
    )
    compiled = Compiler(vocabulary).compile(spec)
    monkeypatch.setattr("dlm.grammar.parse.fewest_tokens._MOST_BYTES", 10)
    assert needed_tokens(compiled) == 1 + len(vocabulary.fewest([b'{"a":""}']))


def test_fewer_tokens_are_searched_for_only_if_the_fewest_bytes_exceed_the_budget(vocabulary):
    spec = JsonSchema({"type": "object", "properties": {"a": {"type": "string"}}})
    compiled = Compiler(vocabulary).compile(spec)
    state = compiled.parser.start
    tokens = len(compiled.closing.completion(state))
    before = compiled.meter.spent
    assert compiled.closing.fits(state, None, tokens)
    assert compiled.meter.spent == before
    assert not compiled.closing.fits(state, None, tokens - 1)
    assert compiled.meter.spent > before
