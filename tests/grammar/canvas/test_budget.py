"""Answers close within their budget, whatever the model wants."""

import json

import pytest
import torch
from exhaustive import by_default, examples
from hypothesis import given
from hypothesis import strategies as st
from masked import rows_of
from oracle import judge
from scores import logits_of, scores_of

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
    Vocabulary,
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


def random_scores(seed, size, scale=4.0):
    logits = scale * torch.randn(L, size, generator=torch.Generator().manual_seed(seed))
    return scores_of(logits)


def answer(frontier, canvases):
    """All that is committed up to the stop, canvas by canvas."""
    said = []
    for scores in canvases:
        guidance = frontier.guide(scores, LAST)
        said += guidance.guess[: guidance.stop + 1]
        frontier.commit(guidance.guess[: guidance.stop + 1])
        if guidance.stop < L:
            return said
    raise AssertionError("there is no end")


def needed_for(compiled):
    with pytest.raises(BudgetError) as raised:
        Frontier(compiled, 1)
    return raised.value.needed


@examples(60)
@given(spec=st.sampled_from(SPECS), more=st.integers(0, 10), seed=st.integers(0, 2**32))
def test_whatever_the_model_wants_the_answer_closes_within_its_budget(
    compiler, vocabulary, spec, more, seed
):
    """It wants noise, or only ever one token, which may open what has to be closed."""
    compiled, size = compiler.compile(spec), len(vocabulary)
    budget = needed_for(compiled) + more
    opening = vocabulary.encode('[{"(ab1ж')[seed % 6]
    for canvases in (
        (random_scores(seed + i, size) for i in range(budget)),
        (scores_of(logits_of(vocabulary, [opening] * L, L)) for _ in range(budget)),
    ):
        said = answer(Frontier(compiled, budget), canvases)
        assert len(said) <= budget
        matcher = judge(spec, vocabulary)
        assert all(matcher.accept_token(token) for token in said)
        assert matcher.is_terminated()


@pytest.mark.parametrize("spec", SPECS)
def test_a_budget_error_tells_the_least_that_would_do(compiler, spec):
    compiled = compiler.compile(spec)
    needed = needed_for(compiled)
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
        scores = random_scores(seed + canvas, len(vocabulary))
        ample, huge = one.guide(scores, LAST), two.guide(scores, LAST)
        assert ample.guess == huge.guess
        assert torch.equal(rows_of(ample), rows_of(huge))
        if ample.stop < L:
            break
        for frontier in (one, two):
            frontier.commit(ample.guess)


@pytest.fixture(scope="module")
def by_byte():
    """A compiler whose tokens are single bytes: what is shortest in bytes is so in tokens."""
    vocabulary = Vocabulary(
        [b"", b"", *(bytes([byte]) for byte in range(256))],
        control=[0, 1],
        stops=[1],
        pad=0,
        thought=None,
        encode=lambda text: [2 + byte for byte in text.encode()],
    )
    return Compiler(vocabulary)


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        (Choice(["a", "ab", "abcdefghijklmnopq", "z"]), "abcdefghijklmnopq"),
        (JsonObject(), '{"a": [1, {"b": "é\\n"}], "c": null}'),
        (SPECS[7], "((1+22)+(3))+4"),
        (SPECS[9], "ab" * 20 + "!"),
    ],
)
def test_nothing_is_closed_early_while_the_model_s_own_text_fits(by_byte, spec, text):
    """Not even with a budget that its text and the stop take up entirely."""
    vocabulary = by_byte.vocabulary
    wanted = [*vocabulary.encode(text), 1]
    frontier = Frontier(by_byte.compile(spec), len(wanted))
    for start in range(0, len(wanted), L):
        scores = scores_of(logits_of(vocabulary, wanted[start:], L))
        guidance = frontier.guide(scores)
        assert not guidance.repaired
        assert guidance.guess[: guidance.stop + 1] == wanted[start:][:L]
        frontier.commit(guidance.guess[: guidance.stop + 1])
    short = Frontier(by_byte.compile(spec), len(wanted) - 1)
    tokens = (scores_of(logits_of(vocabulary, wanted[i:], L)) for i in range(0, 999, L))
    assert len(answer(short, tokens)) < len(wanted)


LONG = [
    JsonSchema({"type": "string", "minLength": 2100}),
    JsonSchema({"type": "array", "minItems": 500, "items": {"enum": ["ab", "cd"]}}),
    Regex("(ab|cd){1100}!"),
]


@pytest.mark.parametrize("spec", by_default(LONG, 2))
def test_a_long_answer_is_admitted_at_its_exact_number_of_tokens_and_closes_within_it(
    compiler, vocabulary, spec
):
    """However the model wanders before it is made to close; and one token less is refused."""
    compiled, canvas = compiler.compile(spec), 256
    text = compiled.parser.completion(compiled.parser.start, 1 << 20)
    needed = len(vocabulary.fewest(text)) + 1
    with pytest.raises(BudgetError, match=f"takes {needed} tokens, more than") as no:
        Frontier(compiled, needed - 1)
    assert no.value.needed == needed
    frontier, said = Frontier(compiled, needed), []
    logits = torch.zeros(canvas, len(vocabulary))
    logits[:, vocabulary.encode("a")[0]] = 9.0
    while not said or said[-1] not in vocabulary.stops:
        guidance = frontier.guide(scores_of(logits), LAST)
        said += guidance.guess[: guidance.stop + 1]
        frontier.commit(guidance.guess[: guidance.stop + 1])
    assert len(said) <= needed
    matcher = judge(spec, vocabulary)
    assert all(matcher.accept_token(token) for token in said)


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
    assert needed_for(compiled) == len(tokens) + 1


@pytest.mark.parametrize("summary", [{"type": "string"}, {"type": "string", "maxLength": 3000}])
@pytest.mark.parametrize("more", by_default([1, 0, 300]))
def test_a_free_text_before_many_keys_is_not_cut_while_tokens_stay_unused(
    compiler, vocabulary, summary, more
):
    """The model's own answer fits its budget, so every token of it is allowed."""
    said = {"summary": "He fell at home and reported pain. " * 14, **dict.fromkeys(KEYS[:60])}
    text = json.dumps(said, separators=(",", ":"))
    wanted = [*vocabulary.encode(text), vocabulary.stops[0]]
    matcher = Matcher(compiler.compile(form(KEYS[:60], summary=summary)))
    for place, token in enumerate(wanted):
        left = len(wanted) + more - place
        allowed = matcher.allowed(left) if place % 7 == 0 or place < 40 else matcher.allowed()
        assert allowed[token >> 5] >> (token & 31) & 1, (place, vocabulary.text(wanted[:place]))
        assert matcher.accept(token)
        assert matcher.closes_within(left - 2) or matcher.ended


def test_a_free_text_before_many_keys_may_take_all_tokens_that_these_leave(compiler, vocabulary):
    compiled = compiler.compile(form(KEYS[:60], summary={"type": "string"}))
    budget, letter = needed_for(compiled) + 100, vocabulary.encode("a")
    begun = vocabulary.encode('{"summary":"')
    canvases = (
        scores_of(logits_of(vocabulary, (begun if i == 0 else []) + letter * L, L))
        for i in range(budget)
    )
    assert len(answer(Frontier(compiled, budget), canvases)) == budget


def test_no_length_is_too_much_work(compiler):
    """A look at what cannot fit, and the warm-up of it, take as little as any other."""
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
