"""Tokens of shortest completions: counted over chains of pieces, and by spelling the whole text."""

import random
from copy import copy
from sys import maxsize

import pytest
from exhaustive import examples
from hypothesis import given
from hypothesis import strategies as st
from trees import compiled_for, node_of, trees

from dlm.grammar import Compiler, JsonSchema, Matcher, Unfinished, Vocabulary
from dlm.grammar.masks import Trie, tokens_in
from dlm.grammar.parse import NEVER
from dlm.grammar.regex import Alternation, Concatenation, Literal, Reference, SpecialToken
from dlm.grammar.rules import Rules

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


@examples(150)
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
    grammar = compiled_for(vocabulary, rules)
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
        state = grammar.parser.after_byte(state, rng.randint(*rng.choice(onward)))
        if state is None or state.cost is None:
            return


def test_control_tokens_count_as_one_and_join_nothing(compiler, vocabulary):
    rules = Rules()
    marked = (Literal("ab"), SpecialToken(frozenset({5})), Literal("ab"))
    rules.define(Reference("root"), Concatenation(marked))
    grammar = compiled_for(vocabulary, rules)
    each = len(vocabulary.fewest([b"ab"]))
    assert grammar.remainders.tokens(grammar.parser.start) == 2 * each + 1


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "minLength": 100_000},
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
        try:
            with grammar.meter.limited(500):
                counted = grammar.remainders.tokens(start)
            break
        except Unfinished:
            tries += 1
    assert 0 < tries < 60
    assert counted == len(vocabulary.fewest(grammar.parser.completion(start, maxsize)))


@examples(60)
@given(
    parts=st.lists(
        st.tuples(st.text("abc", min_size=1, max_size=5), st.integers(1, 90)),
        min_size=1,
        max_size=3,
    ),
    pieces=PIECES,
    singles=st.sampled_from(["abc", "abc", "ab"]),
)
def test_counts_of_repeated_texts_are_those_of_the_whole_text(parts, pieces, singles):
    """Equal pieces of a text are counted once, which makes no difference."""
    text = "".join(part * times for part, times in parts)
    vocabulary = vocabulary_of([piece.encode() for piece in sorted(pieces)], singles)
    check_counts(vocabulary, text.encode(), range(0, len(text), 7))


@pytest.mark.parametrize(
    "text", ["a" * 5000, " " * 5000, "ab,\n" * 1500, "\u00e9" * 2000 + "x" * 99]
)
def test_counts_of_repeated_texts_are_those_of_a_real_vocabulary(vocabulary, text):
    raw = text.encode()
    check_counts(vocabulary, raw, [0, 1, 2, 63, 64, 65, len(raw) // 2, len(raw) - 1])


def check_counts(vocabulary, text: bytes, places) -> None:
    """Compare counts and tokens from some places of a text on with those of the whole rest."""
    rules = Rules()
    rules.define(Reference("root"), Literal(text.decode()))
    grammar, places = compiled_for(vocabulary, rules), set(places)
    state = grammar.parser.start
    for place, byte in enumerate(text):
        if place in places:
            spelled = vocabulary.fewest([text[place:]])
            assert grammar.remainders.tokens(state) == (NEVER if spelled is None else len(spelled))
            if spelled is not None:
                begun = grammar.begun(state, maxsize)
                assert len(begun) == len(spelled)
                assert b"".join(vocabulary.pieces[token] for token in begun) == text[place:]
        state = grammar.parser.after_byte(state, byte)


class CountingTrie(Trie):
    """Counts the nodes that are visited."""

    visited = 0

    def along(self, text, start=0):
        for node in super().along(text, start):
            self.visited += 1
            yield node

    def each_child(self, node):
        children = list(super().each_child(node))
        self.visited += len(children)
        return iter(children)


def looks(grammar, units, ask) -> tuple[int, list[int]]:
    """Return the last result of `ask`, and how many nodes each look has visited for it."""
    trie, visited = grammar.vocabulary.trie, []
    while True:
        before = trie.visited
        try:
            with grammar.meter.limited(units):
                return ask(), [*visited, trie.visited - before]
        except Unfinished:
            visited.append(trie.visited - before)
            assert len(visited) < 100


@pytest.mark.parametrize("text", ["a" * 150_000, "abbaacab" * 20_000])
def test_a_long_text_of_equal_pieces_is_counted_with_little_work(text):
    """Tokens are long, so that a token may end at each of many bytes; each look is bounded."""
    pieces = [b"a" * size for size in range(2, 49)] + [b"abba", b"acab", b"abbaacababbaacab"]
    vocabulary = vocabulary_of(pieces)
    vocabulary.trie = CountingTrie(vocabulary.pieces)
    rules = Rules()
    rules.define(Reference("root"), Literal(text))
    grammar = compiled_for(vocabulary, rules)
    tokens, visited = looks(grammar, 500, lambda: grammar.remainders.tokens(grammar.parser.start))
    assert tokens == -(-len(text) // (48 if text[1] == "a" else 16))
    assert max(visited) < 500 * 20  # nodes for a unit
    assert sum(visited) < 2 * len(text)


def test_a_long_text_without_equal_pieces_is_counted_in_parts():
    """Asking again goes on: no part is counted twice."""
    rng = random.Random(0)
    text = "".join(rng.choices("abc", k=20_000))
    vocabulary = vocabulary_of([b"a" * size for size in range(2, 49)] + [b"ab", b"bc", b"cca"])
    vocabulary.trie = CountingTrie(vocabulary.pieces)
    rules = Rules()
    rules.define(Reference("root"), Literal(text))
    grammar = compiled_for(vocabulary, rules)
    whole = len(vocabulary.fewest([text.encode()]))
    once = sum(1 for start in range(len(text)) for _ in vocabulary.trie.along(text.encode(), start))
    tokens, visited = looks(grammar, 500, lambda: grammar.remainders.tokens(grammar.parser.start))
    assert tokens == whole
    assert len(visited) > 3
    assert max(visited) < 500 * 20
    assert sum(visited) == once


def test_a_search_for_fewer_tokens_is_cut_in_parts_and_goes_on(vocabulary):
    """The grammar is open, so that the search reads as much as it ever does."""
    spec = JsonSchema(
        {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
    )
    counting = copy(vocabulary)
    counting.trie = CountingTrie(vocabulary.pieces)
    compiler = Compiler(counting)
    grammar, other = compiler.compile(spec), Compiler(vocabulary).compile(spec)
    needed, visited = looks(grammar, 500, lambda: grammar.least(grammar.parser.start))
    assert needed == other.least(other.parser.start)
    assert len(visited) > 3
    assert max(visited) < 500 * 20


def test_next_to_the_end_of_a_budget_every_token_is_allowed_that_fits():
    """Though the vocabulary does not spell every byte, and a thousand words may follow."""
    words = sorted({f"{a}{b}{c}" for a in "abcdefghij" for b in "abcdefghij" for c in "abcdefghij"})
    vocabulary = vocabulary_of([word.encode() for word in words], "")
    rules = Rules()
    rules.define(Reference("root"), node_of((Concatenation, [(Alternation, words)] * 2)))
    matcher = Matcher(compiled_for(vocabulary, rules))
    assert len(tokens_in(matcher.allowed(3))) == len(words)
    assert matcher.accept(2)
    assert len(tokens_in(matcher.allowed(2))) == len(words)
