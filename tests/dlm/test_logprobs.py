"""Log-probabilities of an answer: each token has one, of the pass that fixed it."""

import re

import pytest
import torch
from decodings import engine_of_each
from doubles import CANVAS, Fixed, Random
from exhaustive import by_default
from revealing import MASK, Revealing
from specs import checked
from values import PERSON, PROMPT, V

from dlm import Committed, DecodeConfig, Finished, JsonSchema, Regex, Request, RequestError
from dlm.grammar import Reasoning
from dlm.logits import distributions
from dlm.logprobs import TokenLogprob
from dlm.loop import left_to_right
from dlm.samplers.reveal import Reveal

UNIQUE = {
    "type": "array",
    "items": {"enum": [1, 2, 3]},
    "minItems": 2,
    "maxItems": 3,
    "uniqueItems": True,
}
SPECS = {
    "none": None,
    "person": JsonSchema(PERSON),
    "regex": Regex("[0-9]{2}☃[0-9]{2}☃"),
    "refused": checked(UNIQUE),
}
engine_of_any = engine_of_each


def run(engine, **fields):
    """Return the result of a request, whose events have had its log-probabilities."""
    sent, tokens = [], []
    for event in engine.stream(Request(token_ids=PROMPT, **fields)):
        if isinstance(event, Committed):
            sent += event.logprobs
            tokens += event.tokens
        elif isinstance(event, Finished):
            result = event.result
    logprobs = result.logprobs
    assert logprobs is None or (*sent,) == logprobs
    assert (
        logprobs is None
        or [each.token for each in logprobs] == (result.token_ids[result.reasoning_tokens :])
    )
    assert sent == [] or logprobs is not None
    return result


def check_by(right, logprobs, top):
    """Check numbers by the `right` ones of each token; returns those of tokens that were forced."""
    forced = [each for each in logprobs if each == TokenLogprob.forced(each.token, top)]
    for each, numbers in zip(logprobs, right, strict=True):
        if each in forced:
            continue
        assert each.logprob == pytest.approx(float(numbers[each.token]), abs=1e-4)
        best = numbers.topk(top)
        assert each.top == tuple(zip(best.indices.tolist(), each_of(each.top), strict=True))
        assert [*each_of(each.top)] == pytest.approx(best.values.tolist(), abs=1e-4)
    return forced


def each_of(pairs):
    return [number for _, number in pairs]


@pytest.mark.parametrize("name", by_default([*SPECS], 4))
def test_tokens_have_the_numbers_of_the_model_s_own_logits(engine_of_any, name):
    model = Fixed(V, seed=3, scale=4.0)
    engine = engine_of_any(model)
    result = run(engine, constraint=SPECS[name], max_tokens=48, logprobs=2)
    canvases = engine.decoding.name == "canvas"
    right = model.logits.clone()
    for token in engine.config.never_written:
        right[:, token] = -torch.inf
    right = right.log_softmax(-1)
    rows = [right[i % CANVAS if canvases else 0] for i in range(len(result.token_ids))]
    forced = check_by(rows, result.logprobs, 2)
    assert forced or name != "regex"
    assert not forced or name != "none"
    assert len(forced) < len(result.logprobs)
    for each in forced:  # the model would not have been sure of it
        assert right[:, each.token].max() < -1e-3
    engine.close()


@pytest.mark.parametrize("settings", [{}, {"threshold": 0.5, "edit_threshold": 0.0}])
@pytest.mark.parametrize("name", by_default([*SPECS], 2))
def test_masked_canvases_have_the_numbers_of_the_pass_that_revealed_a_token(
    engine_of, name, settings
):
    passes = []

    def wish(before, canvas):
        logits = 6 * torch.randn(CANVAS, V, generator=torch.Generator().manual_seed(len(passes)))
        passes.append((canvas.tolist(), logits))
        return logits

    model = Revealing(CANVAS)
    model.wants(wish)
    config = DecodeConfig(sampler=Reveal(mask=MASK, **settings), stops=(1, 106), pad=0)
    engine = engine_of(model, config)
    result = run(engine, constraint=SPECS[name], max_tokens=CANVAS, logprobs=1)
    chosen = [each for each in result.logprobs if each != TokenLogprob.forced(each.token, 1)]
    assert chosen
    for place, each in enumerate(result.logprobs):
        if each not in chosen:
            continue
        # The passes in which another token stood there, or none, and after which this one stood.
        shown = [canvas[place] for canvas, _ in passes] + [each.token]
        fixed = [i for i in range(len(passes)) if shown[i] != each.token == shown[i + 1]]
        numbers = passes[fixed[-1]][1].clone()
        numbers[:, MASK] = -torch.inf
        right = float(numbers.log_softmax(-1)[place, each.token])
        assert each.logprob == pytest.approx(right, abs=1e-4)
    engine.close()


def test_a_request_that_asks_for_none_costs_nothing(engine_of_any, monkeypatch):
    def refuse(*_):
        raise AssertionError("logits were read again")

    for module in (distributions, left_to_right):
        monkeypatch.setattr(module, "token_logprobs", refuse)
    engine = engine_of_any(Random(V, seed=1))
    result = run(engine, constraint=SPECS["person"], max_tokens=48)
    assert result.logprobs is None
    engine.close()


@pytest.mark.parametrize("value", [-1, 21, 1.5, True, "2"])
def test_another_number_of_alternatives_is_refused(value):
    with pytest.raises(RequestError, match="logprobs must be 0 to 20, or None, got"):
        Request(prompt="hi", logprobs=value)


@pytest.mark.parametrize("ended", [False, True])
@pytest.mark.parametrize(
    "marked", ["{0}why{1}yes", "no{0}why{1}yes", "yes", "{0}why", "", "{0}{1}"]
)
def test_the_places_of_an_answer_are_those_that_are_no_reasoning(built_in, marked, ended):
    vocabulary = built_in.vocabulary
    markers = [vocabulary.thought.open, vocabulary.thought.close]
    tokens = []
    for part in re.split(r"(\{\d\})", marked):
        named = part.strip("{}")
        tokens += markers[int(named)] if part != named else vocabulary.encode(part)
    reasoning = Reasoning.of(vocabulary)
    places = reasoning.answer_places(tokens, ended)
    assert [tokens[place] for place in places] == reasoning.split(tokens, ended)[1]
