"""Tasks of copying, of choosing, of calls, of digits and of long texts."""

from decimal import Decimal
from random import Random

import pytest
from drawn_samples import strings_of, value_of
from training import batches
from training.lessons import (
    choice,
    copied,
    copy,
    long_numbers,
    long_sample,
    numbers,
    sample,
    tool_call,
)
from training.toolbox import native

from dlm.engine import BUILT_IN


def test_copies_have_the_items_of_their_prompts():
    for seed in range(60):
        item = copy(Random(seed), "train")
        if item.prompt.startswith("List as JSON. "):
            assert ", ".join(value_of(item.answer)) == item.prompt.removeprefix("List as JSON. ")
        else:
            (string,) = value_of(item.answer).values()
            assert string in item.prompt


@pytest.mark.parametrize("length", [1, 8, 16])
def test_strings_to_copy_have_the_requested_length(length):
    for seed in range(40):
        (string,) = copied(Random(seed), "heldout", length).value.values()
        assert len(string) == length


def test_the_word_to_choose_is_one_of_those_listed():
    for seed in range(100):
        item = choice(Random(seed), "heldout")
        assert item.value in item.schema["enum"]
        assert all(option in item.prompt for option in item.schema["enum"])


def test_calls_are_gemma_s_own_form():
    for seed in range(60):
        item = tool_call(Random(seed), "train")
        name, arguments = item.value
        assert item.answer.startswith(f"<|tool_call>call:{name}{{")
        assert name in {tool["function"]["name"] for tool in item.tools}
        for key, value in arguments.items():
            assert f"{key}:" in item.answer
            if isinstance(value, str):
                assert native(value) in item.answer
                assert value in item.prompt
    assert native("a") == '<|"|>a<|"|>'
    assert native(2.5) == "2.5"
    assert native(Decimal("2.50")) == "2.50"
    assert native(True) == "true"


def test_an_exam_of_digits_has_two_long_numbers_that_the_prompt_has_too():
    for seed in range(30):
        item = numbers(Random(seed), "heldout")
        assert long_numbers(item.value) > 1
    assert long_numbers({"a": [100, 2.50, 12], "b": True, "c": "12345", "d": {"e": 99.5}}) == 2


@pytest.mark.parametrize("split", ["train", "heldout"])
def test_a_long_text_has_the_wanted_values_among_sentences_about_other_things(split):
    short, long = (long_sample(Random(5), split, tokens) for tokens in (100, 2000))
    assert len(long.prompt) > 5 * len(short.prompt)
    for seed in range(20):
        item = long_sample(Random(seed), split, 600)
        for text in strings_of(item.value):
            assert text in item.prompt or item.traits & {"missing"} or text[:4].isdigit(), text


def test_the_same_seed_gives_the_same_samples():
    assert [sample(Random(i), "train", 0.2) for i in range(20)] == [
        sample(Random(i), "train", 0.2) for i in range(20)
    ]


def test_most_samples_fit_into_a_batch_s_length():
    tokenizer = batches.tokenizer_of(BUILT_IN)
    rows = [
        batches.tokens_of(batches.encode(tokenizer, sample(Random(i), "train"), Random(i)))
        for i in range(250)
    ]
    fitting = sum(length <= batches.MAX_TOKENS for length in rows)
    assert fitting / len(rows) > 0.9
