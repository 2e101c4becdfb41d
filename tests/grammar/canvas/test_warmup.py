"""Grammars that have been walked through before any request uses them."""

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from masked import rows_of

from dlm.grammar import (
    Choice,
    Compiler,
    DeadEndError,
    Frontier,
    Grammar,
    JsonObject,
    JsonSchema,
    Regex,
    Tools,
)
from dlm.grammar.canvas import warmup as rehearsal
from dlm.logits import Logits

L, BUDGET = 48, 200
ORDER = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "count": {"type": "integer"},
        "price": {"type": "number"},
        "state": {"enum": ["new", "paid", "sent"]},
        "tags": {"type": "array", "items": {"type": "string"}},
        "to": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "zip": {"type": "string"}},
            "required": ["city", "zip"],
        },
        "done": {"type": "boolean"},
    },
    "required": ["name", "price", "to", "done"],
}
BOX = {"type": "object", "properties": {"size": {"type": "integer"}, "of": {"type": "string"}}}
SPECS = {
    "a schema": JsonSchema(ORDER),
    "any object": JsonObject(),
    "a choice": Choice(["in", "inner", "out"]),
    "a regex": Regex(r"(ab|a)*c?[0-9a-f]{4,60}"),
    "recursion": Grammar('root ::= "a" root "b" | "c" | root "+" root'),
    "words": Grammar('start: WORD (" " WORD | "\\n" WORD)* "."\nWORD: /[a-zé]+/', syntax="lark"),
    "calls": Tools([{"type": "function", "function": {"name": "pack", "parameters": BOX}}]),
    "no ordinary characters": Regex(r"[\u0434-\u0438]{2,3}\u3042?\\?"),
}


@pytest.fixture(scope="module")
def rehearsed(vocabulary):
    return Compiler(vocabulary, rehearsed=True)


def wanting(vocabulary, text):
    """Scores of a model that wants `text`, and to stop behind it."""
    wanted = [*vocabulary.encode(text), vocabulary.stops[1]]
    return Logits(torch.zeros(len(wanted), len(vocabulary)), wanted)


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
@settings(max_examples=10)
@given(seed=st.integers(0, 2**32), budget=st.sampled_from([60, BUDGET]))
def test_a_rehearsal_changes_nothing(compiler, rehearsed, vocabulary, spec, seed, budget):
    logits = 3 * torch.randn(L, len(vocabulary), generator=torch.Generator().manual_seed(seed))
    scores = Logits(logits, logits.argmax(-1).tolist())
    one, two = (Frontier(by.compile(spec), budget).guide(scores) for by in (compiler, rehearsed))
    assert (one.guess, one.suspect, one.stop) == (two.guess, two.suspect, two.stop)
    assert (one.repaired, one.choice, one.mass) == (two.repaired, two.choice, two.mass)
    assert torch.equal(rows_of(one), rows_of(two))


@pytest.mark.parametrize("indent", [None, 2])
def test_an_ordinary_answer_meets_nothing_new(vocabulary, indent, monkeypatch):
    monkeypatch.setattr(rehearsal, "_SECONDS", 60.0)
    value = {
        "name": "Eve",
        "count": 31,
        "price": 10.5,
        "state": "paid",
        "tags": ["new", "big one"],
        "to": {"city": "Rome", "zip": "00118"},
        "done": True,
    }
    scores = wanting(vocabulary, json.dumps(value, indent=indent))
    made = []
    for compiler in (Compiler(vocabulary), Compiler(vocabulary, rehearsed=True)):
        compiled = compiler.compile(JsonSchema(ORDER))
        before = compiled.masks.count
        guidance = Frontier(compiled, BUDGET).guide(scores)
        assert not guidance.repaired
        made.append(compiled.masks.count - before)
    assert made[0] > 30
    assert made[1] <= 3  # an enum's value is one of many


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_what_is_learnt_is_bounded_and_kept(rehearsed, vocabulary, spec):
    compiled = rehearsed.compile(spec)
    masks, places = compiled.masks.count, len(compiled.places)
    assert 0 < masks <= 768
    assert places <= 4096
    Frontier(compiled, BUDGET).guide(wanting(vocabulary, "?"))
    assert compiled.masks.age == 0


def test_a_grammar_without_an_end_is_told_of_by_the_request(rehearsed):
    compiled = rehearsed.compile(Grammar('root ::= "a" root'))
    with pytest.raises(DeadEndError):
        Frontier(compiled, BUDGET)


def test_nobody_waits_for_a_rehearsal_of_another_grammar(vocabulary):
    """Of a burst, at most what the threads compile last is rehearsed to the end."""
    compiler = Compiler(vocabulary, threads=1, rehearsed=True)
    specs = [JsonSchema(ORDER | {"title": str(i), "required": ["name"][:i]}) for i in range(2)]
    alone = Compiler(vocabulary, rehearsed=True).compile(specs[0]).masks.count
    burst = [future.result() for future in [compiler.submit(spec) for spec in specs]]
    assert burst[0].masks.count < alone
    assert burst[1].masks.count > 30


def test_a_grammar_that_is_slow_to_match_is_left(vocabulary, monkeypatch):
    monkeypatch.setattr(rehearsal, "_SECONDS", 0.0)
    compiled = Compiler(vocabulary, rehearsed=True).compile(JsonSchema(ORDER))
    assert compiled.masks.count <= 1
    scores = wanting(vocabulary, '{"name": "')
    assert Frontier(compiled, BUDGET).guide(scores).guess[:3] == scores.argmax[:3]
