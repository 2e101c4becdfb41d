"""SGLang's algorithms with constraints, on made-up logits: doubles of its classes.

Its own classes and its server are tested by `make sglang`.
"""

import json

import jsonschema
import numpy as np
import pytest
import torch
from blocks import Request, answer
from exhaustive import by_default
from holds import holds_of
from sglang_doubles import Gemma4Renoise, JointThreshold, LowConfidence
from values import V
from weightless import Knowing
from weightless import Noise as Noisy

from dlm.errors import DlmError
from dlm.grammar import Compiler, JsonSchema, Matcher, Vocabulary
from dlm.integrations.sglang.grammar import RequestGrammar
from dlm.integrations.sglang.masked import Masked
from dlm.integrations.sglang.noise import Renoised
from dlm.integrations.sglang.self_check import WORDS, check_algorithm
from dlm.integrations.sglang.settings import PluginSettings
from dlm.policy import Policy

MASK, BLOCK = 4, 16
KINDS = {LowConfidence: Masked, JointThreshold: Masked, Gemma4Renoise: Renoised}
SCHEMA = {
    "type": "object",
    "properties": {
        "id": {"type": "string", "pattern": "^[A-Z]{2}[0-9]?$"},
        "of": {"anyOf": [{"type": "null"}, {"$ref": "#"}]},
    },
    "required": ["id", "of"],
    "additionalProperties": False,
}
MANY_STATES = {"type": "string", "pattern": "^[ab]*a[ab]{4}$"}  # other ones after each text
algorithms = pytest.mark.parametrize("base", KINDS)
schedules = pytest.mark.parametrize("fdfo", by_default([True, False], 1))


@pytest.fixture(scope="module")
def vocabulary(chat):
    return Vocabulary.from_tokenizer(chat.tokenizer, V, (1,), 0, control=[MASK])


@pytest.fixture(scope="module")
def compiled(vocabulary):
    return Compiler(vocabulary).compile(JsonSchema(SCHEMA))


@pytest.fixture(scope="module")
def models(compiled, vocabulary):
    text = [*vocabulary.encode('{"id": "AB7", "of": {"id": "CD", "of": null}}'), 1]
    knowing = Knowing(compiled, dict.fromkeys(range(9), text), right=0.95)
    return {"knowing": knowing, "flat": Noisy(V, 1.0), "sure": Noisy(V, 12.0)}


def made(base, fdfo=False, settings=None, block=BLOCK):
    cls = KINDS[base].of(base, settings or PluginSettings())
    return cls(block, -1 if base is Gemma4Renoise else MASK, fdfo)


def requests_for(compiled, keys, budget=70, free=()):
    return [
        Request(
            key=key,
            grammar=None if key in free else RequestGrammar(compiled, Policy(), None),
            prompt=5 + 7 * key,
            budget=budget,
        )
        for key in keys
    ]


def check(requests, vocabulary, schema=SCHEMA):
    for request in requests:
        assert request.grammar.error is None, request.grammar.error
        assert request.grammar.corrections.passes == 0
        assert MASK not in request.output
        jsonschema.validate(json.loads(vocabulary.text(request.output)), schema)


@schedules
@algorithms
@pytest.mark.parametrize("model", by_default(["sure", "knowing", "flat"], 1))
def test_answers_are_valid_in_exactly_the_shortest_budget_and_in_more(
    models, compiled, vocabulary, model, base, fdfo
):
    least = len(Matcher(compiled).shortest_completion()) + 1
    requests = requests_for(compiled, [1], budget=least) + requests_for(compiled, [2])
    answer(made(base, fdfo), requests, models[model], vocabulary.stops)
    check(requests, vocabulary)
    assert len(requests[0].output) < least


@algorithms
def test_free_requests_are_those_of_the_engine_beside_constrained_ones(
    models, compiled, vocabulary, base
):
    mixed = requests_for(compiled, range(2), free=[1], budget=40)
    answer(made(base), mixed, models["knowing"], vocabulary.stops)
    check(mixed[:1], vocabulary)
    alone = requests_for(compiled, [1], free=[1], budget=40)
    answer(base(BLOCK, made(base).mask_id), alone, models["knowing"], vocabulary.stops)
    assert mixed[1].output == alone[0].output


def test_from_left_to_right_no_token_stands_right_of_a_mask(models, compiled, vocabulary):
    algorithm = made(LowConfidence, settings=PluginSettings("prefix"))
    step, stood = algorithm.step, []

    def watched(batch, logits, states):
        done = step(batch, logits, states)
        masks = (batch.input_ids == MASK).tolist()
        stood.append(masks == sorted(masks))
        return done

    algorithm.step = watched
    requests = requests_for(compiled, [1])
    answer(algorithm, requests, models["knowing"], vocabulary.stops)
    check(requests, vocabulary)
    assert all(stood)


@schedules
@algorithms
def test_a_grammar_that_needs_many_steps_holds_its_block_and_changes_no_answer(
    vocabulary, monkeypatch, base, fdfo
):
    held = holds_of(monkeypatch)
    outputs = {}
    for work in (10**6, 20):
        assert not held
        compiled = Compiler(vocabulary).compile(JsonSchema(MANY_STATES))
        requests = requests_for(compiled, [3], budget=24)
        algorithm = made(base, fdfo, PluginSettings(step_work=work), block=4)
        answer(algorithm, requests, Noisy(V, 12.0), vocabulary.stops)
        check(requests, vocabulary, MANY_STATES)
        outputs[work] = requests[0].output
    assert held
    assert outputs[20] == outputs[10**6]


@schedules
@algorithms
def test_a_request_whose_grammar_fails_ends_alone(
    models, compiled, vocabulary, monkeypatch, base, fdfo
):
    requests = requests_for(compiled, range(2))
    broken, guide, calls = requests[1].grammar, RequestGrammar.guide, []

    def raising(self, *args):
        calls.append(self is broken)
        if sum(calls) == 2 and self is broken:
            raise RuntimeError("a bug, by the test")
        return guide(self, *args)

    monkeypatch.setattr(RequestGrammar, "guide", raising)
    answer(made(base, fdfo), requests, models["knowing"], vocabulary.stops)
    assert "a bug, by the test" in str(broken.error)
    assert requests[1].ended
    assert MASK not in requests[1].output
    check(requests[:1], vocabulary)


@algorithms
def test_a_request_that_is_taken_back_goes_on_where_it_was(models, compiled, vocabulary, base):
    """SGLang keeps the tokens that it has taken; the block under way is begun anew."""
    algorithm = made(base, fdfo=True)
    (request,) = requests_for(compiled, [1])
    run, passes = algorithm.run, [0]

    def interrupted(*args):
        """Run a pass; after the third one of each block it is begun anew."""
        logits, blocks, accepted, states, graph = run(*args)
        passes[-1] += 1
        if accepted[0]:
            passes.append(0)
        elif passes[-1] == 3:
            begin = (request.prompt + len(request.output)) % BLOCK
            begin = 0 if base is Gemma4Renoise else begin
            blocks[0][begin:] = [algorithm.mask_id] * (BLOCK - begin)
            states = [None]
        return logits, blocks, accepted, states, graph

    algorithm.run = interrupted
    answer(algorithm, [request], models["sure"], vocabulary.stops)
    check([request], vocabulary)
    assert max(passes) > 3


@schedules
@algorithms
def test_the_check_at_the_start_passes(vocabulary, base, fdfo):
    words = Compiler(vocabulary).compile(WORDS)
    check_algorithm(made(base, fdfo), words, V, "cpu")
    with pytest.raises(DlmError, match="has no constraints"):
        check_algorithm(base(BLOCK, MASK, fdfo), words, V, "cpu")


class Certain(Knowing):
    """A model that is certain of all tokens."""

    def row(self, key, position, holes, written):
        row = super().row(key, position, holes, written)
        return np.where(row == row.max(), 30.0, 0.0)


@schedules
def test_a_canvas_of_noise_ends_early_only_if_no_part_of_it_is_suspect(
    models, compiled, vocabulary, fdfo
):
    text = [*vocabulary.encode('{"id": "AB", "of": null}'), 1]
    requests = requests_for(compiled, [1])
    certain = Certain(compiled, {1: text}, right=1, slope=0)
    answer(made(Gemma4Renoise, fdfo), requests, certain, vocabulary.stops)
    assert requests[0].output == text[:-1]
    assert max(requests[0].passes) <= 3
    hasty = made(Gemma4Renoise, fdfo)
    hasty.confidence = 100.0
    requests = requests_for(compiled, range(2))
    answer(hasty, requests, models["sure"], vocabulary.stops)
    check(requests, vocabulary)
    assert max(requests[0].passes) > 3


def test_logits_of_noise_are_finite(compiled, vocabulary):
    """An entropy of infinite logits is no number, and no canvas would end early."""
    algorithm = made(Gemma4Renoise)
    decide, finite = algorithm.decide, []

    def watched(ids, logits, state):
        finite.append(bool(torch.isfinite(logits).all()))
        return decide(ids, logits, state)

    algorithm.decide = watched
    answer(algorithm, requests_for(compiled, [1]), Noisy(V, 12.0), vocabulary.stops)
    assert finite
    assert all(finite)
