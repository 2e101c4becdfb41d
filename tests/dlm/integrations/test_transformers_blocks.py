"""A loop of one's own that reveals masks, with a constraint: that of the page, under odd models."""

import json
from pathlib import Path
from textwrap import dedent

import jsonschema
import pytest
import torch
from exhaustive import by_default
from revealing import MASK, endless, garbage, spiteful
from transformers import Qwen3Config, Qwen3ForCausalLM
from values import PERSON, PROMPT, V

from dlm import DlmError, JsonSchema, Regex
from dlm.grammar import BudgetError, GrammarError
from dlm.integrations.transformers import Constrain

PAGE = Path(__file__).parents[3] / "docs" / "transformers.md"
STOPS = [1, 106]
BUDGET = 64


@pytest.fixture(scope="module")
def constrain(chat):
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "head_dim": 4}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1}
    tokens = {"vocab_size": V, "eos_token_id": STOPS, "pad_token_id": 0}
    model = Qwen3ForCausalLM(Qwen3Config(**sizes, **heads, **tokens))
    return Constrain(model, chat.tokenizer)


def written(constrain, wish, L):
    """Return the tokens that the page's code writes after `PROMPT`, up to the stop."""
    _, _, page = PAGE.read_text().partition(
        "tests/dlm/integrations/test_transformers_blocks.py -->"
    )
    code = dedent(page.partition("\n\n`model_logits")[0])
    names = {
        "torch": torch,
        "JsonSchema": JsonSchema,
        "constrain": constrain,
        "schema": PERSON,
        "mask": MASK,
        "L": L,
        "ids": torch.tensor(PROMPT),
        "model_logits": lambda ids, block: wish(ids.tolist(), block),
    }
    exec(compile(code, PAGE.name, "exec"), names)
    tokens = names["text"].tolist()[len(PROMPT) :]
    return tokens[: next(i for i, token in enumerate(tokens) if token in STOPS)]


@pytest.mark.parametrize("L", by_default([32, 4], 1))
@pytest.mark.parametrize("kind", ["flat", "sure", "spiteful", "endless"])
def test_the_loop_of_the_page_writes_valid_text_within_its_budget(constrain, kind, L):
    wish = {
        "flat": garbage(1, 1.0, L),
        "sure": garbage(2, 12.0, L),
        "spiteful": spiteful(3, L),
        "endless": endless(300, L),
    }[kind]
    tokens = written(constrain, wish, L)
    assert len(tokens) < BUDGET
    assert MASK not in tokens
    jsonschema.validate(json.loads(constrain.vocabulary.text(tokens)), PERSON)


def test_everything_may_be_revealed_in_a_last_pass(constrain):
    blocks = constrain.blocks(Regex("[a-f]{3,9}"), 16, MASK)
    block = torch.full((16,), MASK)
    block = blocks(block, garbage(5, 12.0, 16)([], block), last=True).argmax(-1)
    assert blocks.commit(block)
    text = block.tolist()[: next(i for i, t in enumerate(block.tolist()) if t in STOPS)]
    assert 3 <= len(constrain.vocabulary.text(text)) <= 9


def test_reasoning_that_the_prompt_has_opened_is_closed_first(constrain, chat):
    begin, close = chat.tokenizer.convert_tokens_to_ids(["<|channel>", "<channel|>"])
    for prompt, opened in (([*PROMPT, begin], True), (PROMPT, False)):
        blocks = constrain.blocks(Regex("[a-f]{3,9}"), 16, MASK, prompt=prompt)
        block = torch.full((16,), MASK)
        block = blocks(block, garbage(5, 12.0, 16)([], block), last=True).argmax(-1)
        assert (block[0] == close) == opened
        assert blocks.commit(block)


def test_a_token_that_cannot_stand_and_a_mask_that_is_left_are_refused_by_their_position(
    constrain, tokens_of
):
    blocks = constrain.blocks(Regex("[a-f]{3,9}"), 16, MASK)
    block = torch.full((8,), MASK)
    block[2] = tokens_of("Z")[0]
    with pytest.raises(GrammarError, match="at position 2 was not in the guess of the last step"):
        blocks(block, torch.zeros(8, V))
    with pytest.raises(DlmError, match="position 0 of the block is still a mask"):
        blocks.commit(block)
    with pytest.raises(BudgetError):
        constrain.blocks(Regex("[a-f]{300}"), 16, MASK)


def test_a_mask_that_is_text_is_refused(constrain, tokens_of):
    (text,) = tokens_of("Z")
    with pytest.raises(
        DlmError, match=f"mask must be a control token of the tokenizer, got {text}"
    ):
        constrain.blocks(Regex("[a-f]{3,9}"), 16, text)
