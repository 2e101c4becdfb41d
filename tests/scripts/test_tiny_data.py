"""The data that the built-in checkpoint is trained on, and the split that it is measured on."""

import json
import re
from random import Random

import jsonschema
import pytest
from tiny_data import copy, extract, native, sample, tool_call


def compounds(value):
    """Every string of a value that was put together from parts: names, codes, dates, mails."""
    if isinstance(value, dict):
        return {c for v in value.values() for c in compounds(v)}
    if isinstance(value, str) and re.search(r"[ @-]", value):
        return {value}
    return set()


def test_no_held_out_combination_is_ever_in_training():
    train, heldout = (
        {c for seed in range(3000) for c in compounds(extract(Random(seed), split).value)}
        for split in ("train", "heldout")
    )
    assert len(train) > 2000
    assert len(heldout) > 1000
    assert not train & heldout


@pytest.mark.parametrize("split", ["train", "heldout"])
def test_answers_fit_their_schemas_and_mean_their_values(split):
    fenced = 0
    for seed in range(400):
        item = extract(Random(seed), split)
        fenced += item.answer.startswith("```json\n")
        value = json.loads(item.answer.removeprefix("```json").removesuffix("```"))
        assert value == item.value
        jsonschema.validate(value, item.schema)
    assert 0.18 < fenced / 400 < 0.32  # the habit: a quarter


def test_every_value_is_in_the_prompt_or_one_of_its_phrases():
    for seed in range(300):
        item = extract(Random(seed), "heldout")
        for value in item.value.values():
            if isinstance(value, str | int | float) and not isinstance(value, bool):
                assert str(value) in item.prompt


def test_copies_list_what_they_are_given():
    item = copy(Random(3), "train")
    assert json.loads(item.answer) == item.prompt.removeprefix("List as JSON. ").split(", ")


def test_calls_are_gemma_s_own_form():
    item = tool_call(Random(5), "train")
    name, arguments = item.value
    assert item.answer.startswith(f"<|tool_call>call:{name}{{")
    for key, value in arguments.items():
        assert f"{key}:{native(value)}" in item.answer
    assert native("a") == '<|"|>a<|"|>'
    assert native(2.5) == "2.5"


def test_the_same_seed_gives_the_same_samples():
    assert [sample(Random(i), "train") for i in range(20)] == [
        sample(Random(i), "train") for i in range(20)
    ]
