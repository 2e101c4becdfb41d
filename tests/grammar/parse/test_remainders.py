"""Tokens of shortest completions: counted over chains of pieces, and by spelling the whole text."""

import random
from sys import maxsize

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trees import node_of, trees

from dlm.grammar import JsonSchema, Matcher, Unfinished, Vocabulary
from dlm.grammar.masks.bits import tokens_in
from dlm.grammar.parse.compiled import Compiled
from dlm.grammar.parse.network import Network
from dlm.grammar.parse.remainders import NEVER
from dlm.grammar.parse.within import Terminals
from dlm.grammar.rules.nodes import Alternation, Concatenation, Literal, Reference, SpecialToken
from dlm.grammar.rules.rules import Rules

STOP = 1
TREES = trees(st.text("abc", min_size=1, max_size=4), max_leaves=9)
PIECES = st.sets(st.text("abc", min_size=2, max_size=5))


def vocabulary_of(more, singles="abc") -> Vocabulary:
    pieces = [b"", b"", *(letter.encode() for letter in singles), *more]
    return Vocabulary(
        pieces,
        control=[0, STOP],
        stops=[STOP],
        pad=0,
        thought=None,
        encode=lambda text: [pieces.index(letter.encode()) for letter in text],
    )


def compiled(vocabulary, rules) -> Compiled:
    return Compiled(Network(rules), vocabulary, Terminals(vocabulary.trie, len(vocabulary)))


@settings(max_examples=150)
@given(
    tree=TREES,
    pieces=PIECES,
    singles=st.sampled_from(["abc", "abc", "ab", ""]),
    seed=st.integers(0, 99),
)
def test_counts_are_those_of_the_whole_text_wherever_a_text_leads(tree, pieces, singles, seed):
    """Also where the vocabulary does not spell every letter."""
    vocabulary = vocabulary_of([piece.encode() for piece in sorted(pieces)], singles)
    rules, rng = Rules(), random.Random(seed)
    rules.define(Reference("root"), node_of(tree))
    grammar = compiled(vocabulary, rules)
    state = grammar.parser.start
    for _ in range(12):
        spelled = vocabulary.fewest(grammar.parser.completion(state, maxsize))
        assert grammar.remainders.tokens(state) == (NEVER if spelled is None else len(spelled))
        if spelled is not None:
            begun = grammar.begun(state, maxsize)
            assert len(begun) == len(spelled)
            text = b"".join(vocabulary.pieces[token] for token in begun)
            assert text == b"".join(grammar.parser.completion(state, maxsize))
            assert grammar.begun(state, 3) == begun[:3]
        onward = [(low, high) for low, high in grammar.parser.ranges(state)]
        if not onward:
            return
        state = grammar.parser.behind(state, rng.randint(*rng.choice(onward)))
        if state is None or state.cost is None:
            return


def test_control_tokens_count_as_one_and_join_nothing(compiler, vocabulary):
    rules = Rules()
    marked = (Literal("ab"), SpecialToken(frozenset({5})), Literal("ab"))
    rules.define(Reference("root"), Concatenation(marked))
    grammar = compiled(vocabulary, rules)
    each = len(vocabulary.fewest([b"ab"]))
    assert grammar.remainders.tokens(grammar.parser.start) == 2 * each + 1


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "minLength": 20_000},
        {"type": "array", "items": {"type": "integer"}, "minItems": 3000},
        {
            "type": "object",
            "properties": {f"key_{i}": {"type": "string"} for i in range(1000)},
            "required": [f"key_{i}" for i in range(1000)],
        },
    ],
)
def test_a_count_that_is_cut_short_goes_on(compiler, vocabulary, schema):
    grammar, tries = compiler.compile(JsonSchema(schema)), 0
    start = grammar.parser.start
    while True:
        grammar.meter.begin(500)
        try:
            counted = grammar.remainders.tokens(start)
            break
        except Unfinished:
            tries += 1
        finally:
            grammar.meter.begin()
    assert 0 < tries < 60
    assert counted == len(vocabulary.fewest(grammar.parser.completion(start, maxsize)))


def test_next_to_the_end_of_a_budget_every_token_is_allowed_that_fits():
    """Though the vocabulary does not spell every byte, and a thousand words may follow."""
    words = sorted({f"{a}{b}{c}" for a in "abcdefghij" for b in "abcdefghij" for c in "abcdefghij"})
    vocabulary = vocabulary_of([word.encode() for word in words], "")
    rules = Rules()
    rules.define(Reference("root"), node_of((Concatenation, [(Alternation, words)] * 2)))
    matcher = Matcher(compiled(vocabulary, rules))
    assert len(tokens_in(matcher.allowed(3))) == len(words)
    assert matcher.accept(2)
    assert len(tokens_in(matcher.allowed(2))) == len(words)
