"""Blocks that are cached whole: the first canvas of an answer begins with the end of the prompt."""

import json
from dataclasses import replace

import jsonschema
import numpy as np
import pytest
import torch
from driven import fewest_tokens, streamed
from exhaustive import by_default
from revealing import MASK, Revealing, check_passes, endless, garbage
from specs import checked
from spellings import probability
from values import PERSON, V

from dlm import (
    Autoregressive,
    ChoiceQuestion,
    DecodeConfig,
    DlmError,
    JsonSchema,
    Label,
    Policy,
    Regex,
    Request,
    RequestError,
)
from dlm.models.families import DEFAULT
from dlm.samplers.reveal import Reveal

WHOLE = replace(DEFAULT, name="whole", caches="whole")
UNHURRIED = Policy(step_work=1 << 40)
TEXT = '{"name": "Olga", "age": 61}'


def config(**settings):
    return DecodeConfig(sampler=Reveal(mask=MASK, **settings), stops=(1, 106), pad=0)


@pytest.fixture(scope="module")
def engine(engine_of):
    """Return the engine of a block length, with a model that wants something."""
    made = {}

    def build(wish, L):
        if L not in made:
            more = {"slots": 3, "policy": UNHURRIED, "family": WHOLE}
            made[L] = engine_of(Revealing(L), config(), **more)
        made[L].model.wants(wish)
        return made[L]

    yield build
    for each in made.values():
        each.close()


def prompt_of(length):
    return [2, *(300 + i for i in range(length - 1))]


def knows(text, prompts, L):
    """Return a model that knows what comes at a position after each of `prompts`."""

    def wish(before, canvas):
        shown = before + canvas.tolist()
        prompt = next(p for p in prompts if shown[: len(p)] == p)  # in full, whatever is encoded
        begin = len(before) - len(prompt)
        logits = torch.zeros(L, V)
        for i in range(L):
            at = begin + i
            logits[i, text[at] if 0 <= at < len(text) else 0] = 8.0 if at % 3 == 1 else 25.0
        return logits

    return wish


@pytest.mark.parametrize("constrained", [True, False])
@pytest.mark.parametrize("L", [4, 16])
def test_the_model_sees_whole_blocks_and_its_text_is_written(engine, tokens_of, L, constrained):
    text = [*tokens_of(TEXT), 106]
    prompts = [prompt_of(n) for n in (1, L - 1, L, L + 1, 2 * L + 3)]
    spec = JsonSchema(PERSON) if constrained else None
    for prompt in prompts:
        made = engine(knows(text, [prompt], L), L)
        result, _ = streamed(made, Request(token_ids=prompt, constraint=spec, max_tokens=60))
        assert result.token_ids == text[:-1]
        assert result.prompt_tokens == len(prompt)
        whole = (prompt + text)[: (len(prompt) + len(text) - 1) // L * L]
        assert [token for row in made.model.encoded for token in row] == whole
        assert {len(row) % L for row in made.model.encoded} <= {0}
        for shown in made.model.shown:
            begin = len(shown.before)
            assert begin % L == 0
            assert shown.tokens[: max(0, len(prompt) - begin)] == prompt[begin:][:L]


def test_requests_whose_first_canvases_begin_elsewhere_share_a_pass(engine, tokens_of):
    text, L = [*tokens_of(TEXT), 106], 16
    prompts = [prompt_of(n) for n in (5, 16, 27)]
    made = engine(knows(text, prompts[::-1], L), L)
    specs = [JsonSchema(PERSON), None, JsonSchema(PERSON)]
    requests = [
        Request(token_ids=prompt, constraint=spec, max_tokens=60)
        for prompt, spec in zip(prompts, specs, strict=True)
    ]
    alone = [made.generate(each) for each in requests]
    together = made.generate(requests)
    assert [result.token_ids for result in together] == [text[:-1]] * 3
    calls = [[r.stats.denoiser_calls for r in results] for results in (alone, together)]
    assert calls[0] == calls[1]


@pytest.mark.parametrize("kind", ["flat", "sure", "endless"])
@pytest.mark.parametrize(("L", "length"), by_default([(4, 6), (16, 9), (32, 50)], 2))
def test_the_tightest_budgets_are_enough_wherever_the_prompt_ends(engine, kind, L, length):
    spec = JsonSchema(PERSON)
    made = engine(garbage(1, 1.0, L), L)
    least = fewest_tokens(made, spec)
    for beyond in (0, 1, 7):
        wish = endless(415, L) if kind == "endless" else garbage(3, 1.0 + 11 * (kind == "sure"), L)
        made = engine(wish, L)
        request = Request(
            token_ids=prompt_of(length), constraint=spec, max_tokens=least + beyond, seed=beyond
        )
        result, _ = streamed(made, request)
        assert result.complete
        jsonschema.validate(json.loads(result.text), PERSON)
        assert len(result.token_ids) < least + beyond
        by_canvas = {}
        for shown in made.model.shown:
            by_canvas.setdefault(len(shown.before), []).append(shown)
        for passes in by_canvas.values():
            check_passes(passes, L)


def test_a_refused_answer_is_replaced_from_the_block_of_its_fault_on(engine):
    spec = checked({"type": "array", "items": {"enum": [1, 2]}, "minItems": 2, "uniqueItems": True})
    refusals = 0
    for seed, length in enumerate((3, 9)):
        made = engine(garbage(seed, 12.0, 4), 4)
        request = Request(token_ids=prompt_of(length), constraint=spec, max_tokens=60, seed=seed)
        result = made.generate(request)
        assert sorted(json.loads(result.text)) == [1, 2]
        refusals += result.stats.rollbacks
        assert all(len(row) % 4 == 0 for row in made.model.encoded)
    assert refusals


@pytest.mark.parametrize("length", [5, 16, 30])
def test_a_token_that_stands_is_replaced_wherever_the_prompt_ends(engine_of, tokens_of, length):
    """The model is sure of a token that replaces another one, and of no other once all stand."""
    text, edited = ([*tokens_of(f'{{"name": "Olga", "age": {age}}}'), 106] for age in (61, 92))
    L, prompt = 32, prompt_of(length)

    def wish(before, canvas):
        logits, shown = torch.zeros(L, V), [*before, *canvas.tolist()][length:]
        whole = len(shown) >= len(text) and MASK not in shown[: len(text)]
        for i in range(L):
            at = len(before) + i - length
            if 0 <= at < len(text):
                sure = not whole or text[at] != edited[at]
                logits[i, (edited if whole else text)[at]] = 25.0 if sure else 4.0
        return logits

    model = Revealing(L)
    made = engine_of(model, config(edit_threshold=0.9), policy=UNHURRIED, family=WHOLE)
    model.wants(wish)
    request = Request(token_ids=prompt, constraint=JsonSchema(PERSON), max_tokens=60)
    assert made.generate(request).token_ids == edited[:-1]
    made.close()


@pytest.mark.parametrize("length", range(1, 10))
def test_a_question_is_answered_by_the_positions_after_the_prompt(engine_of, length):
    L, table = 4, 3 * torch.randn(20, V, generator=torch.Generator().manual_seed(1))
    model, prompt = Revealing(L), prompt_of(length)
    made = engine_of(model, config(), family=WHOLE)
    model.wants(lambda before, canvas: table[len(before) : len(before) + L].clone())
    table[:, MASK] = -torch.inf
    end = length // L * L + L
    p = table[length:end].double().softmax(-1).numpy()
    request, pieces = Request(token_ids=prompt), made.vocabulary.pieces
    for values in (["yes", "no"], ["mage two", "mage", "mark"]):
        question = ChoiceQuestion(choices=[Label(value) for value in values])
        tokens = [made.vocabulary.encode(value) for value in values]
        first = [spelled[0] for spelled in tokens]
        if len(set(first)) == len(first):
            expected = p[0, first]
        elif max(map(len, tokens)) < end - length:
            stops = made.vocabulary.stops
            expected = np.array([probability(v.encode(), pieces, p, stops) for v in values])
        else:
            with pytest.raises(RequestError, match=f"more than a canvas: {end - length}"):
                made.decide(request, [question])
            continue
        (answer,) = made.decide(request, [question])
        found = [*answer.probabilities.values()]
        np.testing.assert_allclose(found, expected / expected.sum(), rtol=1e-4)
    made.close()


class Predicting(Revealing):
    def predict(self, tokens, last, cache):
        raise AssertionError("a pass ran")


def test_no_question_is_answered_left_to_right_if_blocks_are_cached_whole(engine_of):
    made = engine_of(Predicting(16), config(), family=WHOLE)
    question = ChoiceQuestion(choices=[Label("yes"), Label("no")])
    with pytest.raises(RequestError, match="by is 'causal': blocks of this model are cached whole"):
        made.decide(Request(token_ids=prompt_of(3)), [question], "causal")
    made.close()


def test_the_positions_of_a_model_are_used_up_to_its_last_whole_block(engine_of):
    model = Revealing(16)
    model.max_positions = 100
    for family, capacity in ((WHOLE, 86), (DEFAULT, 80)):
        made = engine_of(model, config(), family=family)
        spec = Regex("a{1,200}")
        model.wants(endless(made.vocabulary.encode("a")[0], 16))
        request = Request(token_ids=prompt_of(10), constraint=spec, max_tokens=capacity)
        assert made.generate(request).complete
        with pytest.raises(RequestError, match=f"leave {capacity} for the answer"):
            made.generate(replace(request, max_tokens=capacity + 1))
        made.close()


def test_a_model_whose_blocks_are_cached_whole_does_not_write_left_to_right(engine_of):
    with pytest.raises(DlmError, match="cached whole: it writes in canvases alone"):
        engine_of(Revealing(16), config(), family=WHOLE, decoding=Autoregressive())
