"""Warm-ups: grammars that are walked through before a request uses them."""

import json
from sys import maxsize

import pytest
import torch
from exhaustive import by_default, examples
from hypothesis import given
from hypothesis import strategies as st
from masked import outcome
from scores import random_scores, scores_of

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
READINGS = 10_000 + PIECE  # the same for a grammar so ambiguous that it is given up
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
    **{name: spec for name, spec in SPECS.items() if name not in ("a schema", "any object")},
    "an object": JsonSchema(BOX),
    "an array": JsonSchema({"items": BOX}),
    "nesting": Grammar('root ::= "a" root "b" | "c" | root "+" "a"'),
}
BY_DEFAULT = [name for name in SMALL if name != "recursion"]
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


def sure_of(vocabulary, text):
    """Scores of a model whose best tokens are `text` and then a stop."""
    wanted = [*vocabulary.encode(text), vocabulary.stops[1]]
    return scores_of(torch.zeros(len(wanted), len(vocabulary)), wanted)


@EACH
@examples(10)
@given(seed=st.integers(0, 2**32), budget=st.sampled_from([60, BUDGET]))
def test_a_warmup_changes_nothing(compiler, warm, vocabulary, spec, seed, budget):
    scores = random_scores(len(vocabulary), L, seed, scale=3)
    one, two = (Frontier(by(spec), budget).guide(scores) for by in (compiler.compile, warm))
    assert outcome(one) == outcome(two)


def test_after_a_warmup_an_ordinary_answer_needs_hardly_any_new_mask(vocabulary):
    address = {"city": "Rome", "zip": "00118"}
    value = {"name": "Eve", "price": 10.5, "state": "paid", "to": address}
    made = []
    for work in (0, maxsize):
        compiled = Compiler(vocabulary).compile(JsonSchema(ORDER))
        Warmup(compiled).go_on(work)
        for indent in (None, 2):
            scores = sure_of(vocabulary, json.dumps(value, indent=indent))
            before = compiled.masks.count
            guidance = Frontier(compiled, BUDGET).guide(scores)
            assert not guidance.repaired
            made.append(compiled.masks.count - before)
    assert made[0] > 10
    assert max(made[2:]) <= 3  # an enum's value is one of many


@EACH
def test_a_warmup_makes_a_bounded_number_of_masks_and_states_which_are_kept(warm, vocabulary, spec):
    compiled = warm(spec)
    masks, states = compiled.masks.count, len(compiled.parser.states)
    assert 0 < masks <= 768
    assert states <= 8192
    Frontier(compiled, BUDGET).guide(sure_of(vocabulary, "?"))
    assert compiled.masks.age == 0


@pytest.mark.parametrize("name", by_default([*BY_DEFAULT, "recursion"], len(BY_DEFAULT)))
@pytest.mark.parametrize("work", by_default([100, 1]))
def test_a_warmup_in_parts_computes_the_same_states_and_masks(vocabulary, name, work, monkeypatch):
    """Each part exceeds its limit of work by at most one piece."""
    monkeypatch.setattr("dlm.grammar.canvas.warmup._MOST_WORK", maxsize)
    whole, parts = (Compiler(vocabulary).compile(SMALL[name]) for _ in range(2))
    piece = READINGS if name == "recursion" else PIECE
    Warmup(whole).go_on(maxsize)
    warmup, parts_done = Warmup(parts), 0
    while not warmup.done:
        before = parts.meter.spent
        warmup.go_on(work)
        parts_done += 1
        assert parts.meter.spent <= before + work + piece
        assert parts_done < 200_000
    assert parts_done > 1
    assert len(parts.parser.states) == len(whole.parser.states)
    assert parts.masks.count == whole.masks.count
    assert len(parts.masks.known) == len(whole.masks.known)


def test_a_walk_that_reaches_known_states_goes_back_and_takes_another_branch(vocabulary):
    """After a letter and a dot no state is new, and the string's end is on another branch."""
    letters = {"type": "string", "pattern": r"^([a-z][.])*@x$"}
    properties = {"a": letters, "b": letters, "of": {"enum": ["tin", "wood"]}}
    spec = JsonSchema({"type": "object", "properties": properties, "required": [*properties]})
    compiled = Compiler(vocabulary).compile(spec)
    Warmup(compiled).go_on(maxsize)
    before = compiled.masks.count
    value = json.dumps({"a": "j.h.@x", "b": "@x", "of": "tin"})
    assert not Frontier(compiled, BUDGET).guide(sure_of(vocabulary, value)).repaired
    assert compiled.masks.count == before


def test_a_warmup_walks_through_objects_where_any_value_is_allowed(vocabulary):
    spec = JsonSchema({"type": "object", "properties": {"x": {}, "y": {}}})
    compiled = Compiler(vocabulary).compile(spec)
    Warmup(compiled).go_on(maxsize)
    before = len(compiled.parser.states)
    value = json.dumps({"x": {"b": "c", "d": "e"}, "y": {"a": "b"}})
    assert not Frontier(compiled, BUDGET).guide(sure_of(vocabulary, value)).repaired
    assert len(compiled.parser.states) - before <= 5  # 17 without them


def test_a_warmup_of_left_recursion_stops_at_its_limit_of_work(vocabulary):
    """States grow with the text: without the limit, one call took ten seconds."""
    grammar = 'root ::= root "a" | root "b" | "c" root? "d"?'
    compiled = Compiler(vocabulary).compile(Grammar(grammar))
    warmup, before = Warmup(compiled), compiled.meter.spent
    warmup.go_on(2000)
    assert not warmup.done
    assert compiled.meter.spent - before <= 2000 + PIECE
