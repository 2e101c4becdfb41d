"""Causal models of other families, tiny and random, with the built-in tokenizer."""

import json
from copy import copy

import jsonschema
import pytest
import torch
from specs import checked
from values import PERSON, PROMPT

from dlm import Autoregressive, DecodeConfig, Diffusion, DlmError, Engine, JsonSchema, Request
from dlm.integrations.causal_lm import TransformersLM, cache_name


@pytest.fixture(scope="module")
def engine(theirs, chat) -> Engine:
    model = TransformersLM(theirs)
    config = DecodeConfig.from_hf(model.generation_config())
    return Engine(model, chat, config, decoding=Autoregressive())


def test_an_engine_generates_the_tokens_that_transformers_generates(theirs, engine):
    prompts = [[2, 300 + i, 400 + 7 * i, 500] * (1 + i % 3) for i in range(6)]
    results = engine.generate([Request(token_ids=p, max_tokens=16) for p in prompts])
    assert engine.config.stops == (1, 106, 50)
    for prompt, result in zip(prompts, results, strict=True):
        ids = torch.tensor([prompt])
        mask = torch.ones_like(ids)
        whole = theirs.generate(ids, attention_mask=mask, max_new_tokens=16, do_sample=False)
        answer = whole[0, len(prompt) :].tolist()
        assert result.token_ids == [token for token in answer if token not in (1, 106, 50)]


def test_a_cache_is_passed_by_the_name_that_forward_has_for_it(theirs, engine, chat):
    """Since transformers 5.24 the name is `cache`, and the old one causes a warning."""
    name = cache_name(theirs)

    class Renamed(type(theirs)):
        def forward(self, input_ids, cache=None, **more):
            if "past_key_values" in more:
                raise TypeError("past_key_values is called cache")
            return super().forward(input_ids, **{name: cache}, **more)

    renamed = copy(theirs)
    renamed.__class__ = Renamed
    assert cache_name(renamed) == "cache"
    other = Engine(TransformersLM(renamed), chat, engine.config, decoding=Autoregressive())
    request = Request(token_ids=[2, 300, 400, 500], max_tokens=24)
    assert other.generate(request).token_ids == engine.generate(request).token_ids


def test_answers_obey_their_schema_and_do_not_depend_on_other_requests(engine):
    requests = [
        Request(token_ids=[*PROMPT, i], constraint=JsonSchema(PERSON), max_tokens=40)
        for i in range(3)
    ]
    together = engine.generate(requests)
    for request, result in zip(requests, together, strict=True):
        jsonschema.validate(json.loads(result.text), PERSON)
        assert engine.generate(request).token_ids == result.token_ids


def test_a_refused_answer_is_continued_from_the_tokens_that_stay(engine):
    """Also if a sliding window has lost some of these tokens, which are then encoded again."""
    schema = {"type": "array", "items": {"enum": [1, 2, 3, 4]}, "minItems": 3, "maxItems": 4}
    schema |= {"uniqueItems": True}
    spec = checked(schema)
    ends = []
    for i in range(4):
        request = Request(token_ids=[*PROMPT, i], constraint=spec, max_tokens=40)
        try:
            result = engine.generate(request)
        except DlmError as error:
            ends.append(str(error))
            continue
        jsonschema.validate(result.parsed, schema)
        ends.append(result.stats.rollbacks)
    assert any(isinstance(end, int) and end > 0 for end in ends), ends


def test_a_model_without_a_padding_token_is_padded_with_its_stop_token(theirs, monkeypatch):
    monkeypatch.setattr(theirs.generation_config, "pad_token_id", None)
    monkeypatch.setattr(theirs.generation_config, "eos_token_id", 106)
    config = DecodeConfig.from_hf(TransformersLM(theirs).generation_config())
    assert (config.stops, config.pad) == ((106,), 106)
    monkeypatch.setattr(theirs.generation_config, "eos_token_id", None)
    with pytest.raises(DlmError, match="no eos_token_id: no text could end"):
        TransformersLM(theirs).generation_config()


def test_a_causal_model_denoises_no_canvases(theirs, chat):
    with pytest.raises(DlmError, match="a TransformersLM denoises no canvases"):
        Engine(TransformersLM(theirs), chat, decoding=Diffusion())
