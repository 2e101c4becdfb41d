"""Reasoning before an answer: where it ends the grammar begins, wherever on a canvas that is."""

import pytest
from decodings import engine_of_each
from doubles import Obsessed, Random, Scripted
from exhaustive import by_default
from values import PROMPT, V

from dlm import EFFORT, Committed, Finished, JsonSchema, Policy, Request, request_of

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


@pytest.fixture
def scripted(engine_of, tokens_of):
    """An engine whose model reasons, closes its reasoning, and goes on."""

    def scripted(kind, reasoning, behind, canvas_length=8):
        thought, opens, closes = MARKERS[kind]
        script = tokens_of(opens) + tokens_of(reasoning) + tokens_of(closes) + tokens_of(behind)
        return engine_of(
            Scripted(V, len(PROMPT), script, canvas_length=canvas_length), thought=thought
        )

    return scripted


def thinks(budget=None, max_tokens=128, spec: JsonSchema | None = ANSWER):
    return Request(
        token_ids=PROMPT,
        constraint=spec,
        thinking=True,
        thinking_budget=budget,
        max_tokens=max_tokens,
    )


@KINDS
@pytest.mark.parametrize("canvas_length", by_default([4, 64]))
def test_the_answer_is_constrained_from_the_token_behind_the_marker(scripted, kind, canvas_length):
    """vLLM #36138: tokens behind the marker, in the batch that ends it, went unchecked."""
    for filler in range(4):  # one token each, so that the marker ends at every offset
        reasoning = "hm:" + "a" * filler
        engine = scripted(kind, reasoning, 'Sure! {"a": 5}<turn|>', canvas_length)
        result = engine.generate(thinks())
        assert result.reasoning == reasoning
        assert result.text.startswith("{")
        assert result.parsed.keys() == {"a"}


@KINDS
def test_a_good_answer_behind_the_marker_stays_as_it_is(scripted, kind):
    """vLLM #43424: the grammar read the reasoning's own tokens, and refused what was right."""
    for filler in range(4):
        reasoning = 'so {"a": 2}, or ' + "b" * filler + "?"
        engine = scripted(kind, reasoning, '{"a": 1}<turn|>', canvas_length=4)
        engine.add(thinks())
        texts, reasonings, result = "", "", None
        while engine.busy:
            for event in engine.step():
                if isinstance(event, Committed):
                    texts += event.text
                    reasonings += event.reasoning
                elif isinstance(event, Finished):
                    result = event.result
        assert result is not None
        assert (result.reasoning, result.text) == (reasoning, '{"a": 1}')
        assert (reasonings, texts) == (reasoning, '{"a": 1}')
        assert result.stats.repairs == 0


@KINDS
def test_an_answer_within_the_reasoning_is_none(scripted, kind):
    """The whole of it is reasoned, stop tokens and all; it is not over before it is closed."""
    engine = scripted(kind, '{"a": 1}', '{"a": 3}<turn|>')
    result = engine.generate(thinks())
    assert (result.reasoning, result.parsed) == ('{"a": 1}', {"a": 3})


@KINDS
@pytest.mark.parametrize("budget", [None, 40])
def test_reasoning_that_never_ends_is_closed_in_time(scripted, kind, budget):
    engine = scripted(kind, "on and " * 200, "")
    request = thinks(budget, max_tokens=90)
    result = engine.generate(request)
    assert result.finish_reason == "stop"
    assert result.stats.tokens <= 90
    assert result.parsed.keys() == {"a"}
    assert result.reasoning.startswith("on and on and")
    answer = len(engine.vocabulary.encode(result.text))
    thought = len(result.token_ids) - answer
    assert thought > (30 if budget else 60)
    assert budget is None or thought <= budget + 8  # the answer may be spelled in more tokens


@KINDS
def test_a_budget_too_small_for_the_markers_leaves_no_reasoning(scripted, kind):
    _, opens, closes = MARKERS[kind]
    for budget in range(3):
        result = scripted(kind, "hm", '{"a": 1}<turn|>').generate(thinks(budget))
        assert result.finish_reason == "stop"
        assert result.parsed.keys() == {"a"}
        if budget < 2:
            assert result.reasoning is None
            assert opens.strip() not in result.text
            assert closes not in result.text


@KINDS
@pytest.mark.parametrize("budget", [0, 20, None])
@pytest.mark.parametrize("seed", by_default(range(2)))
def test_a_model_that_says_anything_answers_all_the_same(engine_of, kind, budget, seed):
    engine = engine_of(Random(V, seed, scale=20.0), thought=MARKERS[kind][0])
    result = engine.generate(thinks(budget, max_tokens=60))
    assert result.finish_reason == "stop"
    assert result.stats.tokens <= 60
    assert result.parsed.keys() == {"a"}


@pytest.mark.parametrize("wanted", by_default([[100], [101], [106], [100, 106, 500]], 3))
def test_a_model_that_wants_nothing_but_markers_answers_all_the_same(engine_of, wanted):
    result = engine_of(Obsessed(V, wanted)).generate(thinks(12, max_tokens=40))
    assert result.finish_reason == "stop"
    assert result.parsed.keys() == {"a"}
    assert len(result.token_ids) < 40


def test_a_marker_in_the_answer_is_the_answer_s(engine_of, tokens_of):
    """Reasoning comes first or not at all: a text that quotes its markers is no reasoning."""
    said = '{"a": "<think>hm</think>"}'
    script = [*tokens_of(said), 106]
    engine = engine_of(Scripted(V, len(PROMPT), script), thought=MARKERS["text"][0])
    result = engine.generate(thinks(spec=JsonSchema({"type": "object"})))
    assert (result.text, result.reasoning) == (said, None)
    assert result.parsed == {"a": "<think>hm</think>"}


@pytest.mark.parametrize("said", ["thoughtful", "thought: yes", "thoughts are free", "th"])
def test_only_the_name_of_the_channel_is_left_out_of_the_reasoning(scripted, said):
    assert scripted("control", said, '{"a": 1}<turn|>').generate(thinks()).reasoning == said
    assert scripted("text", said, '{"a": 1}<turn|>').generate(thinks()).reasoning == said


def test_a_free_answer_comes_apart_from_its_reasoning_too(scripted):
    for kind in MARKERS:
        result = scripted(kind, "hm hm", "It is a < b.<turn|>").generate(thinks(spec=None))
        assert (result.reasoning, result.text) == ("hm hm", "It is a < b.")


@pytest.mark.parametrize("effort", EFFORT)
def test_an_effort_is_a_budget(effort):
    body = {"prompt": "hi", "reasoning_effort": effort}
    request = request_of(body, Policy())
    assert request.thinking is (effort != "none")
    assert request.thinking_budget == (EFFORT[effort] or None)


def test_without_an_effort_there_is_no_reasoning():
    request = request_of({"prompt": "hi"}, Policy())
    assert (request.thinking, request.thinking_budget) == (False, None)


@pytest.mark.parametrize("kind", ["control", "text"])
@pytest.mark.parametrize(
    ("canvas_length", "budget"), by_default([(4, 13), (64, 20), (7, 13), (7, 20)], 2)
)
def test_a_budget_closes_the_reasoning_of_an_answer_without_a_constraint(
    scripted, kind, canvas_length, budget
):
    engine = scripted(kind, "a" * 90, "Yes.", canvas_length)
    result = engine.generate(thinks(budget, max_tokens=64, spec=None))
    assert result.reasoning
    assert set(result.reasoning) == {"a"}
    assert result.reasoning_tokens <= budget
    assert result.text  # the model goes on as it likes: what it says behind the marker is answer


@pytest.mark.parametrize("canvas_length", [4, 64])
def test_reasoning_within_its_budget_is_left_as_it_is(scripted, canvas_length):
    engine = scripted("control", "so", "Yes, indeed.<turn|>", canvas_length)
    free = engine.generate(thinks(None, spec=None))
    bounded = engine.generate(thinks(40, spec=None))
    assert bounded.token_ids == free.token_ids
    assert bounded.stats.denoiser_calls == free.stats.denoiser_calls
    assert (bounded.reasoning, bounded.text) == ("so", "Yes, indeed.")
    assert bounded.reasoning_tokens == len(bounded.token_ids) - len(
        engine.vocabulary.encode("Yes, indeed.")
    )


@pytest.mark.parametrize("seed", by_default(range(4), 2))
def test_a_budget_without_a_constraint_holds_whatever_the_model_wants(engine_of, seed):
    engine = engine_of(Random(V, seed, scale=20.0))
    opened = engine.chat._encode("<|channel>thought\n")
    engine.model.wish, wish = (lambda *a: biased(wish(*a), a[0], opened)), engine.model.wish
    result = engine.generate(thinks(12, max_tokens=60, spec=None))
    assert 0 < result.reasoning_tokens <= 12


def biased(logits, committed, opened):
    """It opens a channel to begin with, and never closes it."""
    if committed == PROMPT:
        for position, token in enumerate(opened):
            logits[position, token] += 1000
    logits[:, [1, 106, 50, 101]] -= 1000
    return logits
