"""Constraints within transformers' own `generate`: all answers are valid."""

import json
import re
from random import Random as Dice

import jsonschema
import pytest
import torch
from exhaustive import by_default
from training.extraction import extract
from transformers import DiffusionGemmaForBlockDiffusion, LogitsProcessor, LogitsProcessorList
from values import PERSON, PROMPT

from dlm import Choice, DlmError, JsonSchema, Regex, Request
from dlm.engine import BUILT_IN
from dlm.grammar import BudgetError
from dlm.integrations.transformers import Constrain

STOPS = 1, 106, 50


@pytest.fixture(scope="module")
def model():
    return DiffusionGemmaForBlockDiffusion.from_pretrained(BUILT_IN).eval()


@pytest.fixture(scope="module")
def constrain(model, chat):
    return Constrain(model, chat.tokenizer)


@pytest.fixture(scope="module")
def constrain_theirs(theirs, chat):
    return Constrain(theirs, chat.tokenizer)


def answers_of(ids, sequences):
    """Return the generated tokens of each row up to its stop token, which is included."""
    rows = sequences[:, ids.shape[1] :].tolist()
    assert all(set(row) & {*STOPS} for row in rows)
    ends = [next(i for i, token in enumerate(row, 1) if token in STOPS) for row in rows]
    padding = {0, 1}  # beams are padded with a stop token
    assert all(set(row[end:]) <= padding for row, end in zip(rows, ends, strict=True))
    return [row[:end] for row, end in zip(rows, ends, strict=True)]


class Wild(LogitsProcessor):
    """Replacement of all logits by new random ones at every pass."""

    def __init__(self, seed, scale):
        self._rng, self._scale = torch.Generator().manual_seed(seed), scale

    def __call__(self, input_ids, scores):
        return self._scale * torch.randn(scores.shape, generator=self._rng)


def is_valid(text, schema):
    try:
        jsonschema.validate(json.loads(text), schema)
    except (ValueError, jsonschema.ValidationError):
        return False
    return True


def test_held_out_prompts_have_valid_answers_only_with_a_constraint(model, constrain, chat):
    """`python scripts/evaluate.py transformers` measures more of them."""
    items = [extract(Dice(f"built in/{i}"), "heldout") for i in range(3)]

    def is_answered_validly(i: int, constrained: bool) -> bool:
        ids = torch.tensor([chat.prompt(Request(prompt=items[i].prompt))])
        torch.manual_seed(i)
        spec = JsonSchema(items[i].schema) if constrained else None
        out = model.generate(
            ids, max_new_tokens=96, logits_processor=constrain(spec, max_new_tokens=96)
        )
        text = constrain.vocabulary.text(out.sequences[0, ids.shape[1] :].tolist())
        return is_valid(text, items[i].schema)

    assert all(is_answered_validly(i, constrained=True) for i in range(len(items)))
    assert not all(is_answered_validly(i, constrained=False) for i in range(len(items)))


@pytest.mark.parametrize(
    ("scale", "budget"),
    by_default(
        [
            *[(3.0, 20), (60.0, 33), (60.0, 64), (3.0, 100)],
            *[(60.0, 20), (3.0, 33), (3.0, 64), (60.0, 100)],
        ],
        4,
    ),
)
def test_answers_of_several_canvases_are_valid_and_end_in_time(model, constrain, budget, scale):
    """Each prompt of the batch has its own constraint, or none; a canvas has 32 tokens."""
    specs = [JsonSchema(PERSON), Choice(["mage of the north", "日本"]), None, Regex("[a-f]{3,60}")]
    ids = torch.tensor([PROMPT] * len(specs))
    processors = LogitsProcessorList([Wild(budget, scale)])
    processors += constrain(specs, max_new_tokens=budget)
    torch.manual_seed(0)
    out = model.generate(
        ids, max_new_tokens=budget, max_denoising_steps=4, logits_processor=processors
    )
    bound = [i for i, spec in enumerate(specs) if spec is not None]
    rows = answers_of(ids[bound], out.sequences[bound])
    assert all(len(row) <= budget for row in rows)
    text = constrain.vocabulary.text
    jsonschema.validate(json.loads(text(rows[0])), PERSON)
    assert text(rows[1]) in ("mage of the north", "日本")
    assert re.fullmatch("[a-f]{3,60}", text(rows[2]))


def test_without_a_constraint_processors_change_nothing(model, constrain, chat):
    ids = torch.tensor([chat.prompt(Request(prompt="List as JSON. chair, desk, lamp"))])
    both = []
    for processors in (None, constrain(None, max_new_tokens=64)):
        torch.manual_seed(1)
        out = model.generate(ids, max_new_tokens=64, logits_processor=processors)
        both.append(out.sequences.tolist())
    assert both[0] == both[1]


def test_reasoning_may_come_first_and_stays_within_its_budget(model, constrain, chat):
    item = extract(Dice("built in/3"), "heldout")
    prompt = chat.prompt(Request(prompt=item.prompt, thinking=True))
    ids = torch.tensor([prompt])
    torch.manual_seed(0)
    processors = constrain(
        JsonSchema(item.schema), max_new_tokens=128, thinking=True, thinking_budget=40
    )
    out = model.generate(ids, max_new_tokens=128, logits_processor=processors)
    (row,) = answers_of(ids, out.sequences)
    close = chat.tokenizer.convert_tokens_to_ids("<channel|>")
    thought = row.index(close) + 1 if close in row else 0
    assert thought <= 40
    jsonschema.validate(json.loads(constrain.vocabulary.text(row[thought:])), item.schema)


@pytest.mark.parametrize("thinking", [False, True])
def test_reasoning_that_a_prompt_has_opened_is_closed(model, constrain, chat, thinking):
    """At once, or within its budget; the other prompt of the batch has opened none."""
    begin, close = chat.tokenizer.convert_tokens_to_ids(["<|channel>", "<channel|>"])
    ids = torch.tensor([[*PROMPT, begin], [PROMPT[0], *PROMPT]])
    torch.manual_seed(0)
    processors = constrain([Regex("[a-f]{3}")] * 2, 40, thinking=thinking, thinking_budget=8)
    out = model.generate(ids, max_new_tokens=40, max_denoising_steps=4, logits_processor=processors)
    first, second = answers_of(ids, out.sequences)
    assert begin not in first
    assert first.index(close) < (8 if thinking else 1)
    assert re.fullmatch("[a-f]{3}", constrain.vocabulary.text(first[first.index(close) + 1 : -1]))
    assert second.count(begin) == second.count(close) <= thinking


def test_a_causal_model_closes_reasoning_that_its_prompt_has_opened(constrain_theirs, chat):
    begin, close = chat.tokenizer.convert_tokens_to_ids(["<|channel>", "<channel|>"])
    size = len(constrain_theirs.vocabulary)
    for prompt, opened in (([*PROMPT, begin], True), (PROMPT, False)):
        processors = constrain_theirs(Regex("[a-f]{3}"), 16)
        (logits,) = processors(torch.tensor([prompt]), torch.zeros(1, size))
        assert (logits.isfinite().nonzero().flatten().tolist() == [close]) is opened
    processors = constrain_theirs(Regex("a"), 2)  # no room for the marker that closes
    with pytest.raises(BudgetError):
        processors(torch.tensor([[*PROMPT, begin]]), torch.zeros(1, size))


def test_processors_serve_one_call_of_one_batch_size(model, constrain):
    ids = torch.tensor([PROMPT])
    processors = constrain(Regex("[a-f]{3}"), max_new_tokens=32)
    few = {"max_new_tokens": 32, "max_denoising_steps": 2}
    model.generate(ids, logits_processor=processors, **few)
    with pytest.raises(DlmError, match="needs new processors"):
        model.generate(ids + 1, logits_processor=processors, **few)
    fresh = constrain(Regex("a"), max_new_tokens=32)
    with pytest.raises(DlmError, match="1 constraints for a batch of 2 prompts"):
        model.generate(torch.tensor([PROMPT, PROMPT]), logits_processor=fresh, **few)


def test_impossible_constraints_are_refused_before_generation(constrain, constrain_theirs):
    for one in (constrain, constrain_theirs):
        with pytest.raises(BudgetError, match="more than 3"):
            one(JsonSchema(PERSON), max_new_tokens=3)
        pair = {"type": "array", "items": {"type": "string"}, "not": {"uniqueItems": True}}
        with pytest.raises(DlmError, match="requires more than a grammar can enforce"):
            one(JsonSchema(pair, unenforced="check"), max_new_tokens=64)


SAMPLING = {
    "greedy": {"do_sample": False},
    "drawn": {"do_sample": True, "temperature": 1.5},
    "beams": {"num_beams": 3, "do_sample": False},
    "samples": {"do_sample": True, "num_return_sequences": 2},
}


@pytest.mark.parametrize(
    ("how", "budget"),
    by_default(
        [
            *[("greedy", 20), ("drawn", 40), ("beams", 20), ("samples", 40)],
            *[("greedy", 40), ("drawn", 20), ("beams", 40), ("samples", 20)],
        ],
        4,
    ),
)
def test_answers_of_random_causal_models_are_valid(theirs, constrain_theirs, how, budget):
    specs = [JsonSchema(PERSON), Regex("[a-f]{3,90}"), None]
    ids = torch.tensor([PROMPT, PROMPT[::-1], PROMPT])
    torch.manual_seed(budget)
    out = theirs.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=budget,
        logits_processor=constrain_theirs(specs, max_new_tokens=budget),
        **SAMPLING[how],
    )
    each = len(out) // len(specs)
    rows = answers_of(ids, out[: 2 * each])
    text = constrain_theirs.vocabulary.text
    for row in rows[:each]:
        jsonschema.validate(json.loads(text(row)), PERSON)
    for row in rows[each:]:
        assert re.fullmatch("[a-f]{3,90}", text(row))


def test_a_later_processor_that_forces_a_forbidden_token_is_an_error(theirs, constrain_theirs):
    class Insistent(LogitsProcessor):
        def __call__(self, input_ids, scores):
            return torch.nn.functional.one_hot(torch.tensor([700]), scores.shape[1]).float()

    processors = constrain_theirs(Regex("[0-9]{9}"), max_new_tokens=32)
    ids = torch.tensor([PROMPT])
    more = {"attention_mask": torch.ones_like(ids), "max_new_tokens": 32, "do_sample": False}
    with pytest.raises(DlmError, match="token 700 was written, which the constraint forbids"):
        theirs.generate(ids, logits_processor=[*processors, Insistent()], **more)
