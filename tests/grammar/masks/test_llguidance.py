"""Masks, compared with those of llguidance, which shares no code with dlm.

Along random texts, both allow the same tokens and the same ends at each step.
"""

import random
import re

import numpy as np
import pytest
from answers import matcher_answer
from compared import (
    BEGUN,
    BOOLEAN,
    GRAMMARS,
    GREEDY,
    INTEGER,
    LINKED,
    NULL,
    RAW,
    REGEXES,
    SCHEMAS,
    STRING,
    closed,
    string,
)
from exhaustive import examples
from hypothesis import given
from hypothesis import strategies as st
from llguided import Oracle, of_regex, of_schema
from made_up import REGEXES as MADE_UP
from made_up import languages

from dlm.grammar import Grammar, JsonSchema, Matcher, Regex, masks

BOUNDED = [
    (Regex("(ab|a)(bc|c)*[0-9]{3}"), of_regex("(ab|a)(bc|c)*[0-9]{3}")),
    (Grammar(GRAMMARS[4], "lark"), GRAMMARS[4]),
    *(
        (JsonSchema(schema), of_schema(schema))
        for schema in (closed({"a": STRING, "l": {"type": "array", "items": INTEGER}}), LINKED)
        for schema in ({**schema, "$defs": {"t": LINKED}},)
    ),
]


@pytest.fixture(scope="module")
def oracle(vocabulary):
    return Oracle(vocabulary)


@pytest.fixture(scope="module")
def compare(vocabulary, compiler, oracle):
    """Walk both along a random text, and return the first texts at which they differ."""
    pieces, stop = vocabulary.pieces, vocabulary.stops[0]
    with_text = np.array([bool(piece) for piece in pieces])

    def walk(spec, source, seed, differs="", begun="", steps=24):
        choose, differs = random.Random(seed), re.compile((differs or "(?!)").encode(), re.DOTALL)
        ours, theirs = Matcher(compiler.compile(spec)), oracle.matcher(source)
        text = b""
        waiting = vocabulary.fewest([begun.encode()])[::-1]
        for _ in range(steps):
            mine = masks.unpacked(ours.allowed())[: len(pieces)].astype(bool)
            others = oracle.allowed(theirs)
            ends = bool(mine[stop]), theirs.is_accepting()
            apart = [
                (text + pieces[token], "ours" if mine[token] else "llguidance")
                for token in np.flatnonzero((mine != others) & with_text)
                if not differs.search(text + pieces[token])
            ]
            if ends[0] != ends[1] and not differs.search(text):
                apart.append((text, "the end of " + ("ours" if ends[0] else "llguidance")))
            if apart:
                return apart
            both = np.flatnonzero(mine & others & with_text).tolist()
            if not both:
                break
            token = waiting.pop() if waiting else choose.choice(both)
            if len(text) >= len(begun.encode()) and choose.random() < 0.35:  # else few would end
                nearest = next(iter(ours.shortest_completion() or ()), token)
                token = nearest if nearest in both else token
            assert ours.accept(token)
            assert theirs.consume_token(token)
            text += pieces[token]
        return []

    return walk


@pytest.mark.parametrize("pattern", REGEXES)
def test_a_regex_allows_what_llguidance_allows(compare, pattern):
    for seed in range(2):
        assert compare(Regex(pattern), of_regex(pattern), seed) == []


@examples(60)
@given(MADE_UP, st.integers(0, 2**20))
def test_a_random_regex_allows_what_llguidance_allows(compare, pattern, seed):
    assert compare(Regex(pattern), of_regex(pattern), seed, steps=12) == []


@pytest.mark.parametrize("source", GRAMMARS)
def test_a_lark_grammar_allows_what_llguidance_allows(compare, source):
    for seed in range(4):
        assert compare(Grammar(source, "lark"), source, seed) == []


@pytest.mark.parametrize(("source", "text"), GREEDY)
def test_a_lark_grammar_accepts_texts_that_a_greedy_lexer_refuses(
    compiler, vocabulary, oracle, compare, source, text
):
    ours, theirs = Matcher(compiler.compile(Grammar(source, "lark"))), oracle.matcher(source)
    tokens = vocabulary.fewest([text.encode()])
    assert ours.accept_all([*tokens, vocabulary.stops[0]]) == len(tokens) + 1
    assert theirs.try_consume_tokens(tokens) < len(tokens) or not theirs.is_accepting()
    for seed in range(4):
        apart = compare(Grammar(source, "lark"), source, seed)
        assert [text for text, who in apart if "llguidance" in who] == []


@examples(40)
@given(languages(), st.integers(0, 2**20))
def test_a_random_grammar_allows_all_tokens_that_a_greedy_lexer_allows(compare, language, seed):
    source = language.lark()
    apart = compare(Grammar(source, "lark"), source, seed, steps=12)
    assert [text for text, who in apart if "llguidance" in who] == []


@pytest.mark.parametrize(("schema", "differs"), SCHEMAS)
def test_a_schema_allows_what_llguidance_allows(compare, schema, differs):
    spec = JsonSchema(schema, property_order="schema")  # llguidance knows no other
    for seed in range(3):
        assert compare(spec, of_schema(schema), seed, differs) == []


@pytest.mark.parametrize("begun", BEGUN)
@pytest.mark.parametrize("most", [2, 3, None])
def test_an_escape_allows_what_llguidance_allows(compare, begun, most):
    schema = STRING if most is None else string(maxLength=most)
    for seed in range(3):
        assert compare(JsonSchema(schema), of_schema(schema), seed, RAW, begun) == []


@pytest.mark.parametrize("most", [1, 3])
def test_whitespace_is_bounded_as_llguidance_bounds_it(compare, most):
    schema = closed({"a": {"type": "array", "items": closed({"b": NULL, "c": BOOLEAN})}})
    for seed in range(8):
        assert compare(JsonSchema(schema, max_whitespace=most), of_schema(schema, most), seed) == []


@pytest.mark.parametrize(("spec", "source"), BOUNDED)
def test_an_answer_within_a_budget_is_one_that_llguidance_accepts(
    compiler, vocabulary, oracle, spec, source
):
    choose = random.Random(0)
    for budget in (24, 32, 48, 80):
        *tokens, _stop = matcher_answer(Matcher(compiler.compile(spec)), budget, choose.choice)
        theirs = oracle.matcher(source)
        assert all(map(theirs.consume_token, tokens))
        assert theirs.is_accepting()


@pytest.mark.parametrize(("spec", "source"), BOUNDED)
def test_rollback_leaves_no_trace(compiler, vocabulary, oracle, spec, source):
    choose = random.Random(1)
    ours, theirs = Matcher(compiler.compile(spec)), oracle.matcher(source)
    seen = []  # the masks at each position, without and within a budget
    for _ in range(60):
        allowed = [ours.allowed().tobytes(), ours.allowed(48).tobytes()]
        if ours.position < len(seen):
            assert allowed == seen[ours.position]
        seen[ours.position :] = [allowed]
        mine = masks.unpacked(ours.allowed()).astype(bool)
        assert bool(mine[vocabulary.stops[0]]) == theirs.is_accepting()
        found = [t for t in np.flatnonzero(oracle.allowed(theirs)) if vocabulary.pieces[t]]
        if found and choose.random() < 0.7:
            token = int(choose.choice(found))
            assert ours.accept(token)
            assert theirs.consume_token(token)
        elif ours.position:
            count = choose.randint(1, ours.position)
            ours.rollback(count)
            assert theirs.rollback(count)
            seen = seen[: ours.position + 1]
