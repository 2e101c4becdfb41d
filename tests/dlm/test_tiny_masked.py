"""The small masked model reads: what it writes in each way, under a constraint."""

from dataclasses import replace
from random import Random
from typing import Any

import jsonschema
import pytest
from training.extraction import extract
from training.lessons import choice

from dlm import Autoregressive, Choice, Engine, JsonSchema, Request
from dlm.engine import BUILT_IN

TINY_MASKED = BUILT_IN.with_name("tiny_masked")
WAYS = ("joint", "prefix", "drafted", "left to right")
RIGHT = {"joint": 2, "prefix": 3, "drafted": 3, "left to right": 3}  # of four answers
RECORDED = {
    "joint": [
        '{"candidate": "Mepi Meh", "speaksLanguages": ["Estonian"]}',
        '{"length": 40.6, "hikers": ["Karen"]}',
        '{"țoken": 4500}',
    ],
    "prefix": [
        '{"candidate": "Mepi Mehta", "speaksLanguages": ["Estonian"]}',
        '{"length": 40.6, "hikers": ["Karen"]}',
        '{"țoken": 4500}',
    ],
    "drafted": [
        '{"candidate": "Mepi Mehta", "speaksLanguages": ["Estonian"]}',
        '{"length": 40.6, "hikers": ["Karen"]}',
        '{"țoken": 4500}',
    ],
    "left to right": [
        '{"candidate": "Mepi Mehta", "speaksLanguages": ["Estonian"]}',
        '{"length": 40.6, "hikers": ["Karen"]}',
        '{"țoken": 4500}',
    ],
}


@pytest.fixture(scope="module")
def tasks():
    return [extract(Random(f"tiny masked/{i}"), "heldout") for i in (0, 2, 3, 4)]


@pytest.fixture(scope="module")
def answers(tasks):
    """Answers to the tasks, by the way in which they are written."""
    requests = [Request(prompt=t.prompt, constraint=JsonSchema(t.schema)) for t in tasks]
    return {way: written(way, requests) for way in WAYS}


def written(way, requests):
    decoding = {"drafted": Autoregressive(drafts=True), "left to right": Autoregressive()}.get(way)
    engine = Engine.load(TINY_MASKED, slots=4, device="cpu", decoding=decoding)
    if decoding is None:
        engine.close()
        sampler: Any = engine.config.sampler
        config = replace(engine.config, sampler=replace(sampler, order=way))
        engine = Engine(engine.model, engine.chat, config, slots=4)
    try:
        return engine.generate(requests)
    finally:
        engine.close()


@pytest.mark.parametrize("way", WAYS)
def test_answers_are_valid_and_some_are_right(answers, tasks, way):
    for task, answer in zip(tasks, answers[way], strict=True):
        assert answer.finish_reason == "stop"
        jsonschema.validate(answer.parsed, task.schema)
    right = [a.parsed == task.value for a, task in zip(answers[way], tasks, strict=True)]
    assert sum(right) >= RIGHT[way]


def test_drafts_save_passes_and_change_no_token(answers):
    drafted, plain = answers["drafted"], answers["left to right"]
    assert [a.token_ids for a in drafted] == [a.token_ids for a in plain]
    for way in ("drafted", "joint", "prefix"):
        passes = sum(answer.stats.calls for answer in answers[way])
        assert passes < 0.75 * sum(answer.stats.calls for answer in plain)


def test_answers_are_those_that_were_recorded(answers):
    texts = {way: [answers[way][task].text for task in (0, 1, 3)] for way in WAYS}
    assert texts == RECORDED


@pytest.mark.parametrize("way", ["joint", "drafted"])
def test_a_choice_is_an_option(way):
    items = [choice(Random(f"tiny masked/{i}"), "heldout") for i in range(4)]
    options = [(item.schema or {})["enum"] for item in items]
    requests = [
        Request(prompt=item.prompt, constraint=Choice(words))
        for item, words in zip(items, options, strict=True)
    ]
    results = written(way, requests)
    assert all(answer.text in words for answer, words in zip(results, options, strict=True))


def test_its_tokenizer_and_markup_are_those_of_the_built_in_model():
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        assert (TINY_MASKED / name).read_bytes() == (BUILT_IN / name).read_bytes()
