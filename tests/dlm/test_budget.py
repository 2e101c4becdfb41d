"""Effect of `max_tokens`: none if it is large enough; no answer is ever cut in half."""

import json
import re
from math import ceil

import jsonschema
import pytest
from decodings import engine_of_each
from doubles import Random
from driven import fewest_tokens
from values import PERSON, PROMPT, V

from dlm import Choice, JsonSchema, Regex, Request, RequestError, Tools

engine_of = engine_of_each
TOOL = {"type": "function", "function": {"name": "stop", "parameters": {"type": "object"}}}
SPECS = [
    JsonSchema(PERSON, max_whitespace=1),
    Choice(["mage of the north", "日本"]),
    Regex("[0-9]{4}-[0-9]{2}(x(yx)*)?"),
    Tools([TOOL], choice="required"),
]
IDS = ["schema", "choice", "regex", "tools"]


def request(spec, max_tokens, **more):
    return Request(token_ids=PROMPT, constraint=spec, max_tokens=max_tokens, **more)


@pytest.mark.parametrize(
    ("text", "thinking"),
    [
        ('{"name": "Olga", "age": 61}', True),
        ('```json\n{"name": "O"}', False),
        ("word " * 9, True),
    ],
)
def test_max_tokens_above_what_an_answer_uses_change_nothing(scripted, text, thinking):
    enough, plenty = (
        scripted(f"{text}<turn|>").generate(request(JsonSchema(PERSON), limit, thinking=thinking))
        for limit in (300, 90_000)
    )
    assert enough.token_ids == plenty.token_ids
    assert enough.stats.denoiser_calls == plenty.stats.denoiser_calls


@pytest.mark.parametrize("spec", SPECS[:3], ids=IDS[:3])
def test_max_tokens_above_what_a_random_answer_uses_change_nothing(engine_of, spec):
    for seed in range(2):
        enough, plenty = (
            engine_of(Random(V, seed, scale=20.0)).generate(request(spec, limit, seed=seed))
            for limit in (400, 90_000)
        )
        assert enough.stats.tokens < 300
        assert enough.token_ids == plenty.token_ids


@pytest.mark.parametrize("spec", SPECS, ids=IDS)
def test_the_max_tokens_that_a_refusal_requires_are_just_enough(engine_of, spec):
    engine = engine_of(Random(V, seed=1))
    needed = fewest_tokens(engine, spec)
    assert needed > 1
    with pytest.raises(RequestError, match=f"takes {needed} tokens, more than {needed - 1}"):
        engine.generate(request(spec, needed - 1))
    result = engine.generate(request(spec, needed))
    assert result.complete
    assert result.stats.tokens == needed


@pytest.mark.parametrize("spec", SPECS, ids=IDS)
def test_an_answer_is_complete_within_any_max_tokens_that_fit_one(engine_of, spec):
    engine = engine_of(Random(V, seed=2, scale=20.0, canvas_length=5))
    needed = fewest_tokens(engine, spec)
    limits = range(needed, needed + 21, 4)
    results = engine.generate([request(spec, limit, seed=limit) for limit in limits])
    for limit, result in zip(limits, results, strict=True):
        assert result.complete
        assert (result.finish_reason == "stop") == (not result.squeezed)
        assert result.stats.tokens <= limit
        match spec:
            case JsonSchema():
                jsonschema.validate(json.loads(result.text), PERSON)
            case Choice():
                assert result.text in spec.options
            case Regex():
                assert re.fullmatch(spec.pattern, result.text)
            case Tools():
                assert {call.name for call in result.tool_calls} == {"stop"}


@pytest.mark.parametrize("max_tokens", [12, 20, 40])
def test_reasoning_takes_no_tokens_that_the_answer_needs(scripted, max_tokens):
    engine = scripted("<|channel>thought\n" + "on and " * 99)
    spec = JsonSchema({"enum": [True, False]})
    result = engine.generate(request(spec, max_tokens, thinking=True))
    assert result.parsed in (True, False)
    assert result.reasoning is not None
    assert result.reasoning_tokens == max_tokens - ceil(max_tokens / 4)
    assert result.finish_reason == "length"
