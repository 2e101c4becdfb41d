"""Grammars that have been walked through before any request uses them."""

import json
from sys import maxsize

import pytest
import torch
from exhaustive import by_default, examples
from hypothesis import given
from hypothesis import strategies as st
from masked import rows_of
from scores import scores_of

from dlm.grammar import (
    Choice,
    Compiler,
    Frontier,
    Grammar,
    JsonObject,
    JsonSchema,
    Regex,
    Tools,
)
from dlm.grammar.canvas import Warmup

L, BUDGET = 48, 200
PIECE = 1000  # units: one state or one mask, over this vocabulary
READINGS = 10_000 + PIECE  # likewise, where the grammar is so ambiguous that it is given up
ORDER = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "price": {"type": "number"},
        "state": {"enum": ["new", "paid", "sent"]},
        "to": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "zip": {"type": "string"}},
            "required": ["city", "zip"],
        },
    },
    "required": ["name", "price", "to"],
}
BOX = {"type": "object", "properties": {"size": {"type": "integer"}, "of": {"type": "string"}}}
SPECS = {
    "a schema": JsonSchema(ORDER),
    "a choice": Choice(["in", "inner", "out"]),
    "a regex": Regex(r"(ab|a)*c?[0-9a-f]{4,60}"),
    "recursion": Grammar('root ::= "a" root "b" | "c" | root "+" root'),
    "words": Grammar('start: WORD (" " WORD | "\\n" WORD)* "."\nWORD: /[a-zé]+/', syntax="lark"),
    "calls": Tools([{"type": "function", "function": {"name": "pack", "parameters": BOX}}]),
    "no ordinary characters": Regex(r"[\u0434-\u0438]{2,3}\u3042?\\?"),
    "any object": JsonObject(),
}
SMALL = {  # a warm-up cut into its smallest parts takes long
    "an object": JsonSchema(BOX),
    "an array": JsonSchema({"items": BOX}),
    **{name: spec for name, spec in SPECS.items() if name not in ("a schema", "any object")},
}


EACH = pytest.mark.parametrize("spec", by_default([*SPECS.values()], len(SPECS) - 1), ids=SPECS)


@pytest.fixture(scope="module")
def warm(vocabulary):
    """A compiler all of whose grammars are warmed up."""
    compiler, warmed = Compiler(vocabulary), {}

    def compile_(spec):
        if id(spec) not in warmed:
            compiled = warmed[id(spec)] = compiler.compile(spec)
            Warmup(compiled).go_on(maxsize)
        return warmed[id(spec)]

    return compile_


def wanting(vocabulary, text):
    """Scores of a model that wants `text`, and to stop behind it."""
    wanted = [*vocabulary.encode(text), vocabulary.stops[1]]
    return scores_of(torch.zeros(len(wanted), len(vocabulary)), wanted)


@EACH
@examples(10)
@given(seed=st.integers(0, 2**32), budget=st.sampled_from([60, BUDGET]))
def test_a_warmup_changes_nothing(compiler, warm, vocabulary, spec, seed, budget):
    logits = 3 * torch.randn(L, len(vocabulary), generator=torch.Generator().manual_seed(seed))
    scores = scores_of(logits)
    one, two = (Frontier(by(spec), budget).guide(scores) for by in (compiler.compile, warm))
    assert (one.guess, one.suspect, one.stop) == (two.guess, two.suspect, two.stop)
    assert (one.repaired, one.choice, one.mass) == (two.repaired, two.choice, two.mass)
    assert torch.equal(rows_of(one), rows_of(two))


def test_an_ordinary_answer_meets_nothing_new(vocabulary):
    value = {
        "name": "Eve",
        "price": 10.5,
        "state": "paid",
        "to": {"city": "Rome", "zip": "00118"},
    }
    made = []
    for work in (0, maxsize):
        compiled = Compiler(vocabulary).compile(JsonSchema(ORDER))
        Warmup(compiled).go_on(work)
        for indent in (None, 2):
            scores, before = (
                wanting(vocabulary, json.dumps(value, indent=indent)),
                compiled.masks.count,
            )
            guidance = Frontier(compiled, BUDGET).guide(scores)
            assert not guidance.repaired
            made.append(compiled.masks.count - before)
    assert made[0] > 10
    assert max(made[2:]) <= 3  # an enum's value is one of many


@EACH
def test_what_is_learnt_is_bounded_and_kept(warm, vocabulary, spec):
    compiled = warm(spec)
    masks, states = compiled.masks.count, len(compiled.parser)
    assert 0 < masks <= 768
    assert states <= 8192
    Frontier(compiled, BUDGET).guide(wanting(vocabulary, "?"))
    assert compiled.masks.age == 0


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("work", by_default([100, 1]))
def test_a_warmup_that_is_cut_short_anywhere_learns_the_same(vocabulary, name, work, monkeypatch):
    """Each part does what it is asked for, and at most one piece more."""
    monkeypatch.setattr(
        "dlm.grammar.canvas.compiler._MOST_WORK", maxsize
    )  # what is cut short is begun again
    whole, parts = (Compiler(vocabulary).compile(SMALL[name]) for _ in range(2))
    piece = READINGS if name == "recursion" else PIECE
    Warmup(whole).go_on(maxsize)
    warmup, asked = Warmup(parts), 0
    while not warmup.done:
        before = parts.meter.spent
        warmup.go_on(work)
        asked += 1
        assert parts.meter.spent <= before + work + piece
        assert asked < 200_000
    assert asked > 1
    assert len(parts.parser) == len(whole.parser)
    assert parts.masks.count == whole.masks.count
    assert len(parts.masks.known) == len(whole.masks.known)


def test_made_up_texts_go_back_from_where_they_lead_nowhere_new(vocabulary):
    """Behind a letter and a dot, nothing is new: what ends the string was another way before it."""
    letters = {"type": "string", "pattern": r"^([a-z][.])*@x$"}
    properties = {"a": letters, "b": letters, "of": {"enum": ["tin", "wood"]}}
    spec = JsonSchema({"type": "object", "properties": properties, "required": [*properties]})
    compiled = Compiler(vocabulary).compile(spec)
    Warmup(compiled).go_on(maxsize)
    before = compiled.masks.count
    value = json.dumps({"a": "j.h.@x", "b": "@x", "of": "tin"})
    assert not Frontier(compiled, BUDGET).guide(wanting(vocabulary, value)).repaired
    assert compiled.masks.count == before


def test_objects_are_made_up_where_any_value_may_stand(vocabulary):
    spec = JsonSchema({"type": "object", "properties": {"x": {}, "y": {}}})
    compiled = Compiler(vocabulary).compile(spec)
    Warmup(compiled).go_on(maxsize)
    before = len(compiled.parser)
    value = json.dumps({"x": {"b": "c", "d": "e"}, "y": {"a": "b"}})
    assert not Frontier(compiled, BUDGET).guide(wanting(vocabulary, value)).repaired
    assert len(compiled.parser) - before <= 5  # 17 without them


def test_left_recursion_is_warmed_up_a_little_at_a_time(vocabulary):
    """States grow with the text: without a look at the work, it took ten seconds at once."""
    grammar = 'root ::= root "a" | root "b" | "c" root? "d"?'
    compiled = Compiler(vocabulary).compile(Grammar(grammar))
    warmup, before = Warmup(compiled), compiled.meter.spent
    warmup.go_on(2000)
    assert not warmup.done
    assert compiled.meter.spent - before <= 2000 + PIECE
