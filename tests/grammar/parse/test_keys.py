"""No object holds a key twice, whatever is wanted."""

import json
import random

import pytest
import torch
from exhaustive import examples
from hypothesis import given
from hypothesis import strategies as st
from scores import scores_of

from dlm.grammar import BudgetError, Fixed, Frontier, JsonObject, JsonSchema, Matcher
from dlm.grammar.masks import tokens_in
from dlm.grammar.parse import Keys
from dlm.grammar.vocabulary import QuotedTokens

L = 24
VALUES = st.recursive(
    st.sampled_from([1, "a", '{"', "\\", None]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["a", "b", 'q"', "\\", "é", ""]), inner, max_size=3)
    ),
    max_leaves=8,
)


def twice(text: str) -> bool:
    """Some object of the JSON `text` holds a key twice."""
    found = []

    def pairs(items):
        found.append(len({key for key, _ in items}) < len(items))
        return dict(items)

    json.loads(text, object_pairs_hook=pairs)
    return any(found)


@given(value=VALUES, key=st.sampled_from(["a", "b", 'q"', "\\", "é", ""]), ascii_=st.booleans())
def test_a_key_is_refused_where_it_is_there_already(value, key, ascii_):
    once = json.dumps({"x": value}, ensure_ascii=ascii_)
    assert Keys().after(once.encode()) is not None
    spelled = json.dumps(key, ensure_ascii=ascii_)
    double = f'{{{spelled}: {json.dumps(value)}, "y": [{{{spelled}: 1}}], {json.dumps(key)}: 0}}'
    assert twice(double)
    assert Keys().after(double.encode()) is None
    assert Keys().after(double.rsplit(",", 1)[0].encode()) is not None


PIECES = st.text('ab"{}[]:,\\\\u0061é 1', min_size=1, max_size=6).map(str.encode)


@given(value=VALUES, cut=st.integers(0, 60), pieces=st.lists(PIECES, max_size=40))
def test_tokens_that_end_a_double_key_are_found(value, cut, pieces):
    """All of them, however a text begins."""
    pieces += [b'a"', b'"a"', b'","a"', b'":1,"a"', b'"}, "a"', b'\\u0061"', b'"', b'""', b'q\\""']
    text = json.dumps({"a": value, "b": 1, "": [value], 'q"': value})[:cut]
    keys = Keys().after(text.encode())
    suspects = keys.suspects(QuotedTokens(pieces))
    for token, piece in enumerate(pieces):
        try:
            double = keys.after(piece) is None
        except ValueError:  # what a grammar of JSON would not let pass
            continue
        assert token in suspects or not double, piece


def obsessed(vocabulary, text):
    tokens = (vocabulary.encode(text) * L)[:L]
    logits = torch.zeros(L, len(vocabulary))
    logits[range(L), tokens] = 50.0
    return scores_of(logits, tokens)


NUMBERS = {"type": "object", "additionalProperties": {"type": "integer"}}
WANTED = ['"":0,', '"a": 1, ', '{"a": {"a": 1}, "a', '"b":true,"b"', '"', "ab", '"2024-01-01":1,']
WANTED += ['{"USD": 1, "USD": 2, "US', '"--":1,"--":1', '"ab":1,"ab"', '","']
SPECS = {
    "object": JsonObject(),
    "open": JsonSchema({"properties": {"a": True}, "additionalProperties": {"type": "integer"}}),
    "patterns": JsonSchema(
        {"patternProperties": {"^[ab]+$": {"type": "boolean"}}, "additionalProperties": False}
    ),
    "three": JsonSchema({"additionalProperties": {"type": "integer"}, "minProperties": 3}),
    "two": JsonSchema({"additionalProperties": {"type": "null"}, "minProperties": 1}),
    "dates": JsonSchema(NUMBERS | {"propertyNames": {"format": "date"}}),
    "codes": JsonSchema(NUMBERS | {"propertyNames": {"pattern": "^[A-Z]{3}$"}}),
    "short": JsonSchema(NUMBERS | {"propertyNames": {"maxLength": 2}, "minProperties": 2}),
    "lines": JsonSchema(NUMBERS | {"propertyNames": {"pattern": "^-+$"}, "minProperties": 2}),
}


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
@examples(20)
@given(
    text=st.sampled_from(WANTED),
    budget=st.integers(24, 96),
)
def test_a_model_that_repeats_itself_ends_with_keys_that_differ(
    compiler, vocabulary, spec, text, budget
):
    frontier, said = Frontier(compiler.compile(spec), budget), []
    begun = vocabulary.encode("{")
    while not said or said[-1] not in vocabulary.stops:
        scores = obsessed(vocabulary, text)
        if not said:
            scores.argmax[: len(begun)] = begun
        guidance = frontier.guide(scores, Fixed(last=True))
        tokens = guidance.guess[: guidance.stop + 1]
        frontier.commit(tokens)
        said += tokens
    assert len(said) <= budget
    assert not twice(vocabulary.text(said))
    assert spec.value(vocabulary.text(said)) is not None


TWENTY = {"patternProperties": {"^[a-t]$": {"const": 1}}, "additionalProperties": False}


@pytest.mark.parametrize(
    "schema",
    [
        NUMBERS | {"propertyNames": {"pattern": "^[A-Z]{1,2}$"}, "minProperties": 3},
        NUMBERS | {"propertyNames": {"format": "date"}},
        {"type": "object"} | TWENTY,
        {"type": "array", "items": {"type": "object", "minProperties": 2} | TWENTY},
    ],
)
def test_whatever_is_taken_of_what_may_come_there_is_a_key_for_it(compiler, vocabulary, schema):
    grammar, spec = compiler.compile(JsonSchema(schema)), JsonSchema(schema)
    for seed in range(3):
        rng, matcher, said = random.Random(seed), Matcher(grammar), []
        while not matcher.ended:
            tokens = tokens_in(matcher.allowed(400 - len(said))).tolist()
            wanted = [
                t for t in tokens if t not in vocabulary.stops and b"}" not in vocabulary.pieces[t]
            ]
            token = rng.choice(wanted or tokens)
            assert matcher.accept(token)
            said.append(token)
        text = vocabulary.text(said)
        assert not twice(text)
        spec.value(text)


def test_masks_hold_no_token_that_ends_a_double_key(compiler, vocabulary):
    matcher = Matcher(compiler.compile(JsonObject()))
    tokens = vocabulary.encode('{"ab": 1, "ab')
    assert matcher.accept_all(tokens) == len(tokens)
    words = matcher.allowed()
    for token, piece in enumerate(vocabulary.pieces):
        allowed = bool(words[token >> 5] >> (token & 31) & 1)
        if piece and allowed:
            assert not piece.startswith(b'"')
            assert matcher.accept(token)
            matcher.rollback(1)
    completion = matcher.shortest_completion()
    assert completion is not None
    assert not twice(vocabulary.text([*tokens, *completion]))


ALIKE = {name: {"type": "string"} for name in ("k", "kk", "kkName", "kkNameOf", "kkNameOfAll")}


@examples(60)
@given(seed=st.integers(0, 2**32), more=st.integers(0, 30))
def test_keys_that_begin_alike_fit_the_tightest_budget(compiler, vocabulary, seed, more):
    """Where one is a beginning of the next one, it is no double of it."""
    spec = JsonSchema({"type": "object", "properties": ALIKE, "required": [*ALIKE][1:]})
    compiled = compiler.compile(spec)
    with pytest.raises(BudgetError) as no:
        Frontier(compiled, 1)
    budget, rng, said = no.value.needed + more, torch.Generator().manual_seed(seed), []
    frontier = Frontier(compiled, budget)
    while not said or said[-1] not in vocabulary.stops:
        pinned: tuple[int, ...] = ()
        for _ in range(4):  # each pass pins what the last one repaired
            logits = 4 * torch.randn(L, len(vocabulary), generator=rng)
            guidance = frontier.guide(scores_of(logits), Fixed(pinned=pinned, last=True))
            repaired = (guidance.suspect or 0) if guidance.repaired else 0
            pinned = tuple(guidance.guess[: max(len(pinned), repaired)])
        tokens = guidance.guess[: guidance.stop + 1]
        frontier.commit(tokens)
        said += tokens
    assert len(said) <= budget
    assert spec.value(vocabulary.text(said)) is not None
