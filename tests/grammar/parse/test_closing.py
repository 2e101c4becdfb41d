"""Tokens that are allowed within a budget leave a completion that fits, also if keys are free."""

import json
import random

import pytest
from answers import matcher_answer
from exhaustive import by_default
from maskbench import of_bytes
from toys import toy_vocabulary
from trees import compiled_for

from dlm.grammar import Compiler, JsonSchema, Matcher, Regex
from dlm.grammar.masks import tokens_in


def grammar_of(schema, pieces, whitespace="compact"):
    vocabulary = toy_vocabulary([*pieces, *(bytes([byte]) for byte in range(256))])
    return compiled_for(vocabulary, JsonSchema(schema, whitespace=whitespace).rules(None))


def test_tokens_that_begin_different_keys_are_judged_one_by_one():
    """After the key "b", one token completes the object. After "a", no short key is left."""
    schema = {"type": "object", "additionalProperties": {"const": 0}, "minProperties": 3}
    opened, b, a, closed = b'{"":0,', b'"b":0,', b'"a":0,', b'"a":0}'
    grammar = grammar_of(schema, [opened, b, a, closed])
    token = grammar.vocabulary.pieces.index
    matcher = Matcher(grammar)
    assert matcher.accept(token(opened))
    allowed = tokens_in(matcher.allowed(3)).tolist()
    assert token(b) in allowed
    assert token(a) not in allowed
    assert matcher.accept(token(b))
    assert matcher.accept(token(closed))
    assert tokens_in(matcher.allowed(1)).tolist() == [*grammar.vocabulary.stops]


@pytest.mark.parametrize("pattern", by_default(["^a+$", "^(aaaaa)+$", "^(ab|a)$|^b{9,}$"]))
def test_keys_that_only_grow_are_counted_as_they_are(pattern):
    """Each further key is longer than all before it, so no share of the bytes bounds the rest."""
    schema = {
        "type": "object",
        "propertyNames": {"pattern": pattern},
        "additionalProperties": {"const": 0},
        "minProperties": 5,
    }
    grammar = grammar_of(schema, [b'":0,"', b'":0}'])
    matcher = Matcher(grammar)
    budget = len(matcher.shortest_completion()) + 1
    assert not matcher.closes_within(budget - 2)
    for more in (0, 9):
        matcher_answer(Matcher(grammar), budget + more, random.Random(more).choice)


def test_a_new_key_is_found_among_many_spellings_of_long_ones():
    """Each letter may be an escape, so that a text of 40 letters has 2^40 spellings."""
    schema = {
        "type": "object",
        "propertyNames": {"pattern": "^(aaaaa)+$"},
        "additionalProperties": {"const": 0},
        "minProperties": 8,
    }
    grammar = grammar_of(schema, [])
    text = grammar.vocabulary.text(Matcher(grammar).shortest_completion())
    assert [len(key) for key in json.loads(text)] == [5, 10, 15, 20, 25, 30, 35, 40]


@pytest.mark.parametrize("budget", [None, 1, 9])
def test_stops_are_allowed_exactly_where_the_text_may_end(budget):
    """The mask, the tokens within a budget, `accept` and `complete` agree about them."""
    grammar = grammar_of({"type": "array", "items": {"const": 1}}, [b"[1", b",1"])
    stops = {*grammar.vocabulary.stops}
    texts = {b"": False, b"[": False, b"[1": False, b"[1,1": False, b"[1]": True, b"[]": True}
    for text, ends in texts.items():
        matcher = Matcher(grammar)
        assert matcher.accept_all(grammar.vocabulary.fewest([text])) > 0 or not text
        assert matcher.complete == ends
        if ends or budget != 1:
            allowed = {*tokens_in(matcher.allowed(budget)).tolist()}
            assert stops & allowed == (stops if ends else set())
        assert [matcher.accept(stop) for stop in stops] == [ends] * len(stops)
        assert matcher.ended == ends


def test_a_text_that_a_budget_ended_takes_only_stops():
    grammar = grammar_of({"type": "integer"}, [])
    row = grammar.masks.words(grammar.stops.mask)
    assert tokens_in(row).tolist() == [*grammar.vocabulary.stops]
    assert grammar.vocabulary.stops[0] in grammar.stops.all
    assert grammar.vocabulary.pad not in grammar.stops.all


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        (JsonSchema({"type": "integer"}), "-120"),
        (JsonSchema({"type": "object", "properties": {"a": {"type": "string"}}}), '{"a": "b"} '),
        (Regex("(ab?){1,3}"), "abaab"),
        (Regex("[a-z]{2,4}"), "abcd"),
    ],
)
def test_a_text_may_end_where_nothing_is_left_to_be_read(vocabulary, spec, text):
    compiled = Compiler(vocabulary).compile(spec)
    state = compiled.parser.start
    for byte in text.encode():
        before = state.may_end
        assert before == (state.cost == 0) == state.may_end
        assert bool(compiled.stops.after(state)) == before
        after = compiled.parser.after_byte(state, byte)
        if after is None:
            break
        state = after
    assert state is not compiled.parser.start


@pytest.mark.parametrize(
    "text", ['["', '["some","an', '[{"n": "some"}, {"n": "so', '[["a"], ["b", "']
)
def test_every_token_that_makes_a_distinct_item_new_fits_an_ample_budget(
    compiler, vocabulary, text
):
    """More tokens do than can be tried one by one."""
    spec = JsonSchema({"type": "array", "uniqueItems": True}, additional_properties="schema")
    matcher = Matcher(compiler.compile(spec))
    assert matcher.accept_all(vocabulary.encode(text))
    plain = {t for t in tokens_in(matcher.allowed()).tolist() if b'"' not in vocabulary.pieces[t]}
    assert len(plain) > 1000
    assert plain <= {*tokens_in(matcher.allowed(100)).tolist()}


def test_a_string_that_the_shortest_text_would_repeat_does_not_fit():
    """The shortest text has an item that equals "a", and none that equals "b"."""
    items = [{"type": "string"}, {"const": "a"}]
    schema = {"type": "array", "uniqueItems": True, "prefixItems": items, "minItems": 2}
    matcher = Matcher(Compiler(of_bytes()).compile(JsonSchema(schema)))
    assert matcher.accept_all([*b'["']) == 2
    allowed = tokens_in(matcher.allowed(len(b'b","a"]') + 1)).tolist()
    assert ord("b") in allowed
    assert ord("a") not in allowed
