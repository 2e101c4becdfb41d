"""Reasoning before an answer: the grammar begins right after it, anywhere on a canvas."""

import pytest
from decodings import engine_of_each
from doubles import Obsessed, Random, Scripted
from driven import streamed
from exhaustive import by_default
from values import PROMPT, V

from dlm import EFFORT, JsonSchema, Policy, Request, request_of

engine_of = engine_of_each
MARKERS = {
    "control": (None, "<|channel>thought\n", "<channel|>"),
    "text": (("<think>", "</think>"), "<think>", "</think>"),  # several tokens each
    "mixed": (("<|think|>", "</think>"), "<|think|>", "</think>"),
}
ANSWER = JsonSchema(
    {
        "type": "object",
        "properties": {"a": {"type": "integer"}},
        "required": ["a"],
        "additionalProperties": False,
    },
    max_whitespace=1,
)
KINDS = pytest.mark.parametrize("kind", MARKERS)
UNMIXED = pytest.mark.parametrize("kind", by_default(MARKERS, 2))


@pytest.fixture
def reasoning_engine(engine_of, tokens_of):
    """Build engines whose model reasons, closes its reasoning, and answers, in separate tokens."""

    def build(kind, reasoning, answer, canvas_length=8):
        thought, opens, closes = MARKERS[kind]
        parts = opens, reasoning, closes, answer
        script = [token for part in parts for token in tokens_of(part)]
        model = Scripted(V, len(PROMPT), script, canvas_length=canvas_length)
        return engine_of(model, thought=thought)

    return build


def request(budget=None, max_tokens=128, spec: JsonSchema | None = ANSWER):
    return Request(
        token_ids=PROMPT,
        constraint=spec,
        thinking=True,
        thinking_budget=budget,
        max_tokens=max_tokens,
    )


@KINDS
@pytest.mark.parametrize("canvas_length", by_default([4, 64]))
def test_the_answer_is_constrained_right_after_the_marker(reasoning_engine, kind, canvas_length):
    """vLLM #36138: tokens after the marker, in the batch that ends it, went unchecked."""
    for filler in range(4):  # one token each, so that the marker ends at every offset
        reasoning = "hm:" + "a" * filler
        engine = reasoning_engine(kind, reasoning, 'Sure! {"a": 5}<turn|>', canvas_length)
        result = engine.generate(request())
        assert result.reasoning == reasoning
        assert result.text.startswith("{")
        assert result.parsed.keys() == {"a"}


@KINDS
def test_a_valid_answer_after_the_marker_is_not_changed(reasoning_engine, kind):
    """vLLM #43424: the grammar read tokens of the reasoning, and refused a valid answer."""
    for filler in range(4):
        reasoning = 'so {"a": 2}, or ' + "b" * filler + "?"
        engine = reasoning_engine(kind, reasoning, '{"a": 1}<turn|>', canvas_length=4)
        result, committed = streamed(engine, request())
        assert (result.reasoning, result.text) == (reasoning, '{"a": 1}')
        assert "".join(event.text for event in committed) == result.text
        assert "".join(event.reasoning for event in committed) == reasoning
        assert result.stats.repairs == 0


@UNMIXED
def test_a_value_within_the_reasoning_is_not_the_answer(reasoning_engine, kind):
    engine = reasoning_engine(kind, '{"a": 1}', '{"a": 3}<turn|>')
    result = engine.generate(request())
    assert (result.reasoning, result.parsed) == ('{"a": 1}', {"a": 3})


@UNMIXED
@pytest.mark.parametrize("budget", [None, 40])
def test_reasoning_that_never_ends_is_closed_in_time(reasoning_engine, kind, budget):
    engine = reasoning_engine(kind, "on and " * 200, "")
    result = engine.generate(request(budget, max_tokens=90))
    assert result.complete
    assert result.squeezed == (budget is None)
    assert result.stats.tokens <= 90
    assert result.parsed.keys() == {"a"}
    assert result.reasoning.startswith("on and on and")
    answer = len(engine.vocabulary.encode(result.text))
    thought = len(result.token_ids) - answer
    assert thought > (30 if budget else 60)
    assert budget is None or thought <= budget + 8  # the answer may be spelled in more tokens


@UNMIXED
def test_with_a_budget_too_small_for_the_markers_there_is_no_reasoning(reasoning_engine, kind):
    _, opens, closes = MARKERS[kind]
    for budget in range(3):
        result = reasoning_engine(kind, "hm", '{"a": 1}<turn|>').generate(request(budget))
        assert result.finish_reason == "stop"
        assert result.parsed.keys() == {"a"}
        if budget < 2:
            assert result.reasoning is None
            assert opens.strip() not in result.text
            assert closes not in result.text


@UNMIXED
@pytest.mark.parametrize("budget", [0, 20, None])
@pytest.mark.parametrize("seed", by_default(range(2)))
def test_a_random_model_gives_a_valid_answer(engine_of, kind, budget, seed):
    engine = engine_of(Random(V, seed, scale=20.0), thought=MARKERS[kind][0])
    result = engine.generate(request(budget, max_tokens=60))
    assert result.complete
    assert result.stats.tokens <= 60
    assert result.parsed.keys() == {"a"}


@pytest.mark.parametrize("wanted", by_default([[100], [101], [106], [100, 106, 500]], 3))
def test_a_model_that_prefers_markers_gives_a_valid_answer(engine_of, wanted):
    result = engine_of(Obsessed(V, wanted)).generate(request(12, max_tokens=40))
    assert result.complete
    assert result.parsed.keys() == {"a"}
    assert len(result.token_ids) < 40


def test_markers_within_an_answer_are_text_of_the_answer(scripted):
    text = '{"a": "<think>hm</think>"}'
    engine = scripted(f"{text}<turn|>", thought=MARKERS["text"][0])
    result = engine.generate(request(spec=JsonSchema({"type": "object"})))
    assert (result.text, result.reasoning) == (text, None)
    assert result.parsed == {"a": "<think>hm</think>"}


@pytest.mark.parametrize("reasoning", ["thoughtful", "thought: yes", "thoughts are free", "th"])
def test_only_the_name_of_the_channel_is_left_out_of_the_reasoning(reasoning_engine, reasoning):
    for kind in ("control", "text"):
        engine = reasoning_engine(kind, reasoning, '{"a": 1}<turn|>')
        assert engine.generate(request()).reasoning == reasoning


def test_an_unconstrained_answer_is_separate_from_its_reasoning(reasoning_engine):
    for kind in MARKERS:
        result = reasoning_engine(kind, "hm hm", "It is a < b.<turn|>").generate(request(spec=None))
        assert (result.reasoning, result.text) == ("hm hm", "It is a < b.")


@pytest.mark.parametrize("effort", EFFORT)
def test_a_reasoning_effort_is_a_budget(effort):
    found = request_of({"prompt": "hi", "reasoning_effort": effort}, Policy())
    assert found.thinking is (effort != "none")
    assert found.thinking_budget == (EFFORT[effort] or None)
    plain = request_of({"prompt": "hi"}, Policy())
    assert (plain.thinking, plain.thinking_budget) == (False, None)


@pytest.mark.parametrize("kind", ["control", "text"])
@pytest.mark.parametrize(
    ("canvas_length", "budget"), by_default([(4, 13), (64, 20), (7, 13), (7, 20)], 2)
)
def test_a_budget_closes_the_reasoning_of_an_answer_without_a_constraint(
    reasoning_engine, kind, canvas_length, budget
):
    engine = reasoning_engine(kind, "a" * 90, "Yes.", canvas_length)
    result = engine.generate(request(budget, max_tokens=64, spec=None))
    assert result.reasoning
    assert set(result.reasoning) == {"a"}
    assert result.reasoning_tokens <= budget
    assert result.text  # tokens after the marker are the answer


@pytest.mark.parametrize("canvas_length", [4, 64])
def test_reasoning_within_its_budget_is_not_changed(reasoning_engine, canvas_length):
    engine = reasoning_engine("control", "so", "Yes, indeed.<turn|>", canvas_length)
    free = engine.generate(request(None, spec=None))
    bounded = engine.generate(request(40, spec=None))
    assert bounded.token_ids == free.token_ids
    assert bounded.stats.denoiser_calls == free.stats.denoiser_calls
    assert (bounded.reasoning, bounded.text) == ("so", "Yes, indeed.")
    assert bounded.reasoning_tokens == len(bounded.token_ids) - len(
        engine.vocabulary.encode("Yes, indeed.")
    )


@pytest.mark.parametrize("seed", by_default(range(4), 2))
def test_a_budget_without_a_constraint_holds_whatever_the_model_wants(engine_of, tokens_of, seed):
    engine = engine_of(Random(V, seed, scale=20.0))
    opening = tokens_of("<|channel>thought\n")
    engine.model.wish, wish = (lambda *a: biased(wish(*a), a[0], opening)), engine.model.wish
    result = engine.generate(request(12, max_tokens=60, spec=None))
    assert 0 < result.reasoning_tokens <= 12


def biased(logits, committed, opening):
    """Return logits of a model that opens a thought channel at first and never closes it."""
    if committed == PROMPT:
        for position, token in enumerate(opening):
            logits[position, token] += 1000
    logits[:, [1, 106, 50, 101]] -= 1000
    return logits
