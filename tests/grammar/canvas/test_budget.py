"""Answers end within their budget, for any scores of the model."""

import json
from itertools import repeat

import pytest
import torch
from answers import canvas_answer, needed_tokens
from exhaustive import by_default, examples
from hypothesis import given
from hypothesis import strategies as st
from masked import rows_of
from measure.schemas import of_bytes
from oracle import judge
from scores import logits_of, random_scores, scores_of

from dlm.grammar import (
    BudgetError,
    Choice,
    Compiler,
    Fixed,
    Frontier,
    Grammar,
    JsonObject,
    JsonSchema,
    Matcher,
    Regex,
)
from dlm.grammar.canvas import Warmup

L, AMPLE = 12, 1000
LAST = Fixed(last=True)  # the whole guess may be committed
PAIRS = {"type": "array", "items": {"type": "array", "maxItems": 3}, "minItems": 2}
PERSON = {"name": {"type": "string"}, "age": {"type": ["integer", "null"]}, "of": {"$ref": "#"}}
SPECS = [
    JsonSchema({"type": "object", "properties": PERSON, "required": ["name", "age"]}),
    JsonSchema({"type": "string", "pattern": "^[A-Z]{2}-[0-9]{4,60}$"}),
    JsonSchema({"enum": ["да", "нет", "名前", "😀é", 7, [1, {"a": 2}]]}),
    JsonSchema({"type": "string", "minLength": 30, "maxLength": 300}),
    JsonSchema(PAIRS),
    JsonObject(),
    Regex(r"(ab|a)*c?[^a-zж]{2,40}."),
    Grammar('root ::= root "+" t | t\nt ::= [0-9]+ | "(" root ")"'),
    Grammar('root ::= root root | "a" | "b" root "c"'),
    Grammar('root ::= ("ab"{3,500} | ([ef]{2}){40}) "!"'),
    Grammar('start: w ("," w)*\nw: /[a-z]{2,5}/ | "(" start ")"\n%ignore " "', syntax="lark"),
    Grammar('root ::= "ab" | "b" x | "(" root ")"\nx ::= "c" x | "d"'),  # x never ends
]


@examples(60)
@given(spec=st.sampled_from(SPECS), more=st.integers(0, 10), seed=st.integers(0, 2**32))
def test_an_answer_ends_within_its_budget_for_any_scores_of_the_model(
    compiler, vocabulary, spec, more, seed
):
    """The model prefers noise, or one token everywhere, which may open what has to be closed."""
    compiled, size = compiler.compile(spec), len(vocabulary)
    budget = needed_tokens(compiled) + more
    opening = vocabulary.encode('[{"(ab1ж')[seed % 6]
    for canvases in (
        (random_scores(size, L, seed + i) for i in range(budget)),
        repeat(scores_of(logits_of(vocabulary, [opening] * L, L)), budget),
    ):
        tokens = canvas_answer(Frontier(compiled, budget), canvases)
        assert len(tokens) <= budget
        matcher = judge(spec, vocabulary)
        assert all(matcher.accept_token(token) for token in tokens)
        assert matcher.is_terminated()


@pytest.mark.parametrize("spec", SPECS)
def test_a_budget_error_states_the_least_budget_that_is_enough(compiler, spec):
    compiled = compiler.compile(spec)
    needed = needed_tokens(compiled)
    Frontier(compiled, needed)
    with pytest.raises(BudgetError, match=f"takes {needed} tokens, more than {needed - 1}") as no:
        Frontier(compiled, needed - 1)
    assert no.value.needed == needed


@examples(30)
@given(spec=st.sampled_from(SPECS), seed=st.integers(0, 2**32))
def test_a_huge_budget_and_an_ample_one_give_equal_guesses(compiler, vocabulary, spec, seed):
    compiled = compiler.compile(spec)
    one, two = Frontier(compiled, AMPLE), Frontier(compiled, 10**9)
    for canvas in range(3):
        scores = random_scores(len(vocabulary), L, seed + canvas)
        ample, huge = one.guide(scores, LAST), two.guide(scores, LAST)
        assert ample.guess == huge.guess
        assert torch.equal(rows_of(ample), rows_of(huge))
        if ample.stop < L:
            break
        for frontier in (one, two):
            frontier.commit(ample.guess)


@pytest.fixture(scope="module")
def by_byte():
    """A compiler whose tokens are single bytes: the fewest bytes are the fewest tokens."""
    return Compiler(of_bytes())


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        (Choice(["a", "ab", "abcdefghijklmnopq", "z"]), "abcdefghijklmnopq"),
        (JsonObject(), '{"a": [1, {"b": "é\\n"}], "c": null}'),
        (SPECS[7], "((1+22)+(3))+4"),
        (SPECS[9], "ab" * 20 + "!"),
    ],
)
def test_a_text_of_the_model_that_fits_its_budget_is_not_closed_early(by_byte, spec, text):
    """The text and the stop take up the budget entirely."""
    vocabulary = by_byte.vocabulary
    wanted = [*vocabulary.encode(text), vocabulary.stops[0]]
    frontier = Frontier(by_byte.compile(spec), len(wanted))
    for start in range(0, len(wanted), L):
        scores = scores_of(logits_of(vocabulary, wanted[start:], L))
        guidance = frontier.guide(scores)
        assert not guidance.repaired
        assert guidance.guess[: guidance.stop + 1] == wanted[start:][:L]
        frontier.commit(guidance.guess[: guidance.stop + 1])
    short = Frontier(by_byte.compile(spec), len(wanted) - 1)
    canvases = (scores_of(logits_of(vocabulary, wanted[i:], L)) for i in range(0, 999, L))
    assert len(canvas_answer(short, canvases)) < len(wanted)


LONG = [
    JsonSchema({"type": "string", "minLength": 2100}),
    JsonSchema({"type": "array", "minItems": 500, "items": {"enum": ["ab", "cd"]}}),
    Regex("(ab|cd){1100}!"),
]


@pytest.mark.parametrize("spec", by_default(LONG, 2))
def test_a_long_answer_is_admitted_at_its_exact_number_of_tokens_and_closes_within_it(
    compiler, vocabulary, spec
):
    compiled, canvas = compiler.compile(spec), 256
    text = compiled.parser.completion(compiled.parser.start, 1 << 20)
    needed = len(vocabulary.fewest(text)) + 1
    with pytest.raises(BudgetError, match=f"takes {needed} tokens, more than") as no:
        Frontier(compiled, needed - 1)
    assert no.value.needed == needed
    logits = torch.zeros(canvas, len(vocabulary))
    logits[:, vocabulary.encode("a")[0]] = 9.0
    tokens = canvas_answer(Frontier(compiled, needed), repeat(scores_of(logits)))
    assert len(tokens) <= needed
    matcher = judge(spec, vocabulary)
    assert all(matcher.accept_token(token) for token in tokens)


KEYS = [f"{word}_{i:02d}" for i in range(50) for word in ("patient", "born", "code", "rate")]


def form(keys, **more):
    """An object with some properties and then `keys`, all of which are required and nullable."""
    nullable = {key: {"type": ["string", "null"]} for key in keys}
    properties = {**more, **nullable}
    return JsonSchema({"type": "object", "properties": properties, "required": [*properties]})


def test_two_hundred_keys_are_admitted_at_the_tokens_of_their_shortest_answer(compiler, vocabulary):
    shortest = json.dumps(dict.fromkeys(KEYS), separators=(",", ":"))
    compiled = compiler.compile(form(KEYS))
    tokens = vocabulary.fewest([shortest.encode()])
    Frontier(compiled, len(tokens) + 1)
    assert needed_tokens(compiled) == len(tokens) + 1


@pytest.mark.parametrize("summary", [{"type": "string"}, {"type": "string", "maxLength": 3000}])
@pytest.mark.parametrize("more", by_default([1, 0, 300]))
def test_a_free_text_before_many_keys_is_not_cut_while_the_budget_has_tokens_left(
    compiler, vocabulary, summary, more
):
    """The model's own answer fits its budget, so every token of it is allowed."""
    value = {"summary": "He fell at home and reported pain. " * 14, **dict.fromkeys(KEYS[:60])}
    text = json.dumps(value, separators=(",", ":"))
    wanted = [*vocabulary.encode(text), vocabulary.stops[0]]
    matcher = Matcher(compiler.compile(form(KEYS[:60], summary=summary)))
    for position, token in enumerate(wanted):
        left = len(wanted) + more - position
        checked = position % 7 == 0 or position < 40
        allowed = matcher.allowed(left) if checked else matcher.allowed()
        assert allowed[token >> 5] >> (token & 31) & 1, vocabulary.text(wanted[:position])
        assert matcher.accept(token)
        assert matcher.closes_within(left - 2) or matcher.ended


def test_a_free_text_before_many_keys_may_take_all_tokens_that_the_keys_leave(compiler, vocabulary):
    compiled = compiler.compile(form(KEYS[:60], summary={"type": "string"}))
    budget, letter = needed_tokens(compiled) + 100, vocabulary.encode("a")
    begun = vocabulary.encode('{"summary":"')
    canvases = (
        scores_of(logits_of(vocabulary, (begun if i == 0 else []) + letter * L, L))
        for i in range(budget)
    )
    assert len(canvas_answer(Frontier(compiled, budget), canvases)) == budget


def test_refusals_and_warm_ups_of_answers_too_long_for_any_budget_take_little_work(compiler):
    twice = {
        f"d{i}": {
            "type": "object",
            "properties": {name: {"$ref": f"#/$defs/d{i + 1}"} for name in "ab"},
            "required": ["a", "b"],
        }
        for i in range(26)
    }
    for schema in (
        {"$ref": "#/$defs/d0", "$defs": twice | {"d26": {"type": "null"}}},
        {"type": "string", "minLength": 150_000},
        {"type": "array", "minItems": 10**9},
    ):
        compiled = compiler.compile(JsonSchema(schema))
        before = compiled.meter.spent
        with pytest.raises(BudgetError):
            Frontier(compiled, 4096)
        warmup = Warmup(compiled)
        while not warmup.done:
            warmup.go_on(1000)
        assert compiled.meter.spent - before < 210_000
