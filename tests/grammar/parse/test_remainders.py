"""Numbers of tokens of shortest completions, compared with those of the whole text."""

import random
from copy import copy
from sys import maxsize

import pytest
from answers import resumed
from exhaustive import examples
from hypothesis import given
from hypothesis import strategies as st
from toys import toy_vocabulary
from trees import compiled_for, node_of, trees

from dlm.grammar import Compiler, JsonSchema, Matcher, Unfinished, Vocabulary
from dlm.grammar.masks import Trie, tokens_in
from dlm.grammar.parse import NEVER
from dlm.grammar.regex import Alternation, Concatenation, Literal, Reference, SpecialToken
from dlm.grammar.rules import Rules

TREES = trees(st.text("abc", min_size=1, max_size=4), max_leaves=9)
PIECES = st.sets(st.text("abc", min_size=2, max_size=5))


def vocabulary_of(more, singles="abc") -> Vocabulary:
    return toy_vocabulary([*(letter.encode() for letter in singles), *more])


def compiled_literal(vocabulary, text):
    rules = Rules()
    rules.define(Reference("root"), Literal(text))
    return compiled_for(vocabulary, rules)


@examples(150)
@given(
    tree=TREES,
    pieces=PIECES,
    singles=st.sampled_from(["abc", "abc", "ab", ""]),
    seed=st.integers(0, 99),
)
def test_the_tokens_of_a_completion_are_those_of_its_whole_text(tree, pieces, singles, seed):
    """Also if the vocabulary does not spell every letter."""
    vocabulary = vocabulary_of([piece.encode() for piece in sorted(pieces)], singles)
    rules, rng = Rules(), random.Random(seed)
    rules.define(Reference("root"), node_of(tree))
    grammar = compiled_for(vocabulary, rules)
    state = grammar.parser.start
    for _ in range(12):
        begun = check_completion(grammar, state)
        if begun is not None:
            assert grammar.closing.begun(state, 3) == begun[:3]
        onward = [(low, high) for low, high in grammar.parser.ranges(state)]
        if not onward:
            return
        state = grammar.parser.after_byte(state, rng.randint(*rng.choice(onward)))
        if state is None or state.cost is None:
            return


def test_a_control_token_counts_as_one_and_merges_with_no_text(compiler, vocabulary):
    rules = Rules()
    marked = (Literal("ab"), SpecialToken(frozenset({5})), Literal("ab"))
    rules.define(Reference("root"), Concatenation(marked))
    grammar = compiled_for(vocabulary, rules)
    each = len(vocabulary.fewest([b"ab"]))
    assert grammar.closing.remainders.tokens(grammar.parser.start) == 2 * each + 1


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "minLength": 100_000},
        {"type": "array", "items": {"type": "integer"}, "minItems": 3000},
        {
            "type": "object",
            "properties": {f"key_{i}": {"type": "string"} for i in range(300)},
            "required": [f"key_{i}" for i in range(300)],
        },
    ],
)
def test_a_count_that_exceeds_its_work_can_be_resumed(compiler, vocabulary, schema):
    grammar = compiler.compile(JsonSchema(schema))
    start = grammar.parser.start

    def count():
        with grammar.meter.limited(500):
            return grammar.closing.remainders.tokens(start)

    counted, calls = resumed(count)
    assert 1 < calls <= 60
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
def test_the_tokens_of_repeated_texts_are_those_of_the_whole_text(parts, pieces, singles):
    text = "".join(part * times for part, times in parts)
    vocabulary = vocabulary_of([piece.encode() for piece in sorted(pieces)], singles)
    check_counts(vocabulary, text.encode(), range(0, len(text), 7))


@pytest.mark.parametrize(
    "text", ["a" * 5000, " " * 5000, "ab,\n" * 1500, "\u00e9" * 2000 + "x" * 99]
)
def test_the_tokens_of_repeated_texts_are_exact_in_a_real_vocabulary(vocabulary, text):
    raw = text.encode()
    check_counts(vocabulary, raw, [0, 1, 2, 63, 64, 65, len(raw) // 2, len(raw) - 1])


def check_counts(vocabulary, text: bytes, positions) -> None:
    """Compare counts and tokens at some positions of a text with those of the whole rest."""
    grammar, positions = compiled_literal(vocabulary, text.decode()), set(positions)
    state = grammar.parser.start
    for position, byte in enumerate(text):
        if position in positions:
            check_completion(grammar, state, text[position:])
        state = grammar.parser.after_byte(state, byte)


def check_completion(grammar, state, text=None):
    """Compare the shortest completion at a state with `text`, and return its tokens, if any."""
    completion = grammar.parser.completion(state, maxsize) if text is None else [text]
    spelled = grammar.vocabulary.fewest(completion)
    assert grammar.closing.remainders.tokens(state) == (NEVER if spelled is None else len(spelled))
    if spelled is None:
        return None
    begun = grammar.closing.begun(state, maxsize)
    assert len(begun) == len(spelled)
    assert b"".join(grammar.vocabulary.pieces[token] for token in begun) == b"".join(completion)
    return begun


class CountingTrie(Trie):
    """A trie that counts the nodes that are visited."""

    visited = 0

    def along(self, text, start=0):
        for node in super().along(text, start):
            self.visited += 1
            yield node

    def each_child(self, node):
        children = list(super().each_child(node))
        self.visited += len(children)
        return iter(children)


def in_parts(grammar, units, compute) -> tuple[int, list[int]]:
    """Return the result of `compute`, and the nodes that each of its calls has visited."""
    trie, visited = grammar.vocabulary.trie, []
    while True:
        before = trie.visited
        try:
            with grammar.meter.limited(units):
                return compute(), [*visited, trie.visited - before]
        except Unfinished:
            visited.append(trie.visited - before)
            assert len(visited) < 100


@pytest.mark.parametrize("text", ["a" * 150_000, "abbaacab" * 20_000])
def test_a_long_text_of_equal_pieces_is_counted_with_little_work(text):
    """Tokens are long, so that a token may end at each of many bytes; each call is bounded."""
    pieces = [b"a" * size for size in range(2, 49)] + [b"abba", b"acab", b"abbaacababbaacab"]
    vocabulary = vocabulary_of(pieces)
    vocabulary.trie = CountingTrie(vocabulary.pieces)
    grammar = compiled_literal(vocabulary, text)
    tokens, visited = in_parts(
        grammar, 500, lambda: grammar.closing.remainders.tokens(grammar.parser.start)
    )
    assert tokens == -(-len(text) // (48 if text[1] == "a" else 16))
    assert max(visited) < 500 * 20  # nodes for each unit of work
    assert sum(visited) < 2 * len(text)


def test_a_long_text_without_equal_pieces_is_counted_in_parts():
    """A call resumes the last one: no part is counted twice."""
    rng = random.Random(0)
    text = "".join(rng.choices("abc", k=20_000))
    vocabulary = vocabulary_of([b"a" * size for size in range(2, 49)] + [b"ab", b"bc", b"cca"])
    vocabulary.trie = CountingTrie(vocabulary.pieces)
    grammar = compiled_literal(vocabulary, text)
    whole = len(vocabulary.fewest([text.encode()]))
    once = sum(1 for start in range(len(text)) for _ in vocabulary.trie.along(text.encode(), start))
    tokens, visited = in_parts(
        grammar, 500, lambda: grammar.closing.remainders.tokens(grammar.parser.start)
    )
    assert tokens == whole
    assert len(visited) > 3
    assert max(visited) < 500 * 20
    assert sum(visited) == once


def test_a_search_for_fewer_tokens_is_computed_in_parts(vocabulary):
    """The object is open, so that the search reaches its limit."""
    spec = JsonSchema(
        {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
    )
    counting = copy(vocabulary)
    counting.trie = CountingTrie(vocabulary.pieces)
    compiler = Compiler(counting)
    grammar, other = compiler.compile(spec), Compiler(vocabulary).compile(spec)
    needed, visited = in_parts(grammar, 500, lambda: grammar.closing.least(grammar.parser.start))
    assert needed == other.closing.least(other.parser.start)
    assert len(visited) > 3
    assert max(visited) < 500 * 20


def test_near_the_end_of_a_budget_every_token_that_fits_is_allowed():
    """Also if the vocabulary does not spell every byte, and a thousand words may follow."""
    words = sorted({f"{a}{b}{c}" for a in "abcdefghij" for b in "abcdefghij" for c in "abcdefghij"})
    vocabulary = vocabulary_of([word.encode() for word in words], "")
    rules = Rules()
    rules.define(Reference("root"), node_of((Concatenation, [(Alternation, words)] * 2)))
    matcher = Matcher(compiled_for(vocabulary, rules))
    assert len(tokens_in(matcher.allowed(3))) == len(words)
    assert matcher.accept(2)
    assert len(tokens_in(matcher.allowed(2))) == len(words)


def test_a_long_text_that_is_spelled_again_counts_as_work():
    grammar = compiled_literal(vocabulary_of([]), "abc" * 4000)
    remainders, state = grammar.closing.remainders, grammar.parser.start
    state = grammar.parser.after_text(state, b"a")
    remainders.of(state)
    before = grammar.meter.spent
    remainders.of(state)
    assert grammar.meter.spent - before > 100
