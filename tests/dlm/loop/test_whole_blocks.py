"""Blocks that are cached whole: the first canvas of an answer begins with the end of the prompt."""

import json
from dataclasses import replace

import jsonschema
import pytest
import torch
from driven import fewest_tokens, streamed
from exhaustive import by_default
from revealing import MASK, Revealing, check_passes, endless, garbage
from specs import checked
from values import PERSON, V

from dlm import (
    Autoregressive,
    DecodeConfig,
    DlmError,
    JsonSchema,
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
