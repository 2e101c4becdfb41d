"""What `max_tokens` does to an answer: nothing while there is room, and never half of one."""

import json
import re

import jsonschema
import pytest
from decodings import engine_of_each
from doubles import Random, Scripted
from values import PROMPT, V

from dlm import Choice, JsonSchema, Regex, Request, RequestError, Tools

engine_of = engine_of_each
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 6}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "stop", "parameters": {"type": "object"}}}
SPECS = [
    JsonSchema(PERSON, max_whitespace=1),
    Choice(["mage of the north", "日本"]),
    Regex("[0-9]{4}-[0-9]{2}(x(yx)*)?"),
    Tools([TOOL], choice="required"),
]
IDS = ["schema", "choice", "regex", "tools"]


def asks(spec, max_tokens, **more):
    return Request(token_ids=PROMPT, constraint=spec, max_tokens=max_tokens, **more)


def needed_of(engine, spec):
    """Tokens of the shortest answer, as a refusal says."""
    with pytest.raises(
        RequestError, match=r"max_tokens is 1: the shortest answer takes"
    ) as refusal:
        engine.generate(asks(spec, 1))
    found = re.search(r"takes (\d+) tokens", str(refusal.value))
    assert found is not None
    return int(found[1])


@pytest.mark.parametrize(
    ("said", "thinking"),
    [
        ('{"name": "Olga", "age": 61}', True),
        ('```json\n{"name": "O"}', False),
        ("word " * 9, True),
    ],
)
def test_more_room_than_is_used_changes_nothing(engine_of, tokens_of, said, thinking):
    script = tokens_of(said + "<turn|>")
    ample, huge = (
        engine_of(Scripted(V, len(PROMPT), script)).generate(
            asks(JsonSchema(PERSON), room, thinking=thinking)
        )
        for room in (300, 90_000)
    )
    assert ample.token_ids == huge.token_ids
    assert ample.stats.denoiser_calls == huge.stats.denoiser_calls


@pytest.mark.parametrize("spec", SPECS[:3], ids=IDS[:3])
def test_more_room_than_a_wild_model_uses_changes_nothing(engine_of, spec):
    for seed in range(2):
        ample, huge = (
            engine_of(Random(V, seed, scale=20.0)).generate(asks(spec, room, seed=seed))
            for room in (400, 90_000)
        )
        assert ample.stats.tokens < 300
        assert ample.token_ids == huge.token_ids


@pytest.mark.parametrize("spec", SPECS, ids=IDS)
def test_the_room_that_a_refusal_asks_for_is_just_enough(engine_of, spec):
    engine = engine_of(Random(V, seed=1))
    needed = needed_of(engine, spec)
    with pytest.raises(RequestError, match=f"takes {needed} tokens, more than {needed - 1}"):
        engine.generate(asks(spec, needed - 1))
    result = engine.generate(asks(spec, needed))
    assert result.finish_reason == "stop"
    assert result.stats.tokens == needed


@pytest.mark.parametrize("spec", SPECS, ids=IDS)
@pytest.mark.parametrize("canvas_length", [5])
def test_an_answer_is_whole_in_any_room_that_takes_one(engine_of, spec, canvas_length):
    engine = engine_of(Random(V, seed=2, scale=20.0, canvas_length=canvas_length))
    needed = needed_of(engine, spec)
    rooms = range(needed, needed + 21, 4)
    results = engine.generate([asks(spec, room, seed=room) for room in rooms])
    for room, result in zip(rooms, results, strict=True):
        assert result.finish_reason == "stop"
        assert result.stats.tokens <= room
        match spec:
            case JsonSchema():
                jsonschema.validate(json.loads(result.text), PERSON)
            case Choice():
                assert result.text in spec.options
            case Regex():
                assert re.fullmatch(spec.pattern, result.text)
            case Tools():
                assert {call.name for call in result.tool_calls} == {"stop"}


@pytest.mark.parametrize("room", [12, 20, 40])
def test_reasoning_takes_no_room_that_the_answer_needs(engine_of, tokens_of, room):
    script = tokens_of("<|channel>thought\n" + "on and " * 99)
    engine = engine_of(Scripted(V, len(PROMPT), script))
    spec = JsonSchema({"enum": [True, False]})
    result = engine.generate(asks(spec, room, thinking=True))
    assert result.parsed in (True, False)
    assert result.stats.tokens == room
    assert result.reasoning is not None
