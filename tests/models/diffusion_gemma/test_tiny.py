"""The built-in checkpoint is a real DiffusionGemma: in transformers it has the same logits."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer, DiffusionGemmaForBlockDiffusion, DynamicCache

import dlm.models
from dlm.integrations.causal_lm import cache_name
from dlm.models import checkpoint

TINY = Path(dlm.models.__file__).parent / "tiny"


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(TINY)


def test_it_is_at_most_16_megabytes():
    assert sum(path.stat().st_size for path in TINY.iterdir()) <= 16 * 2**20


def test_transformers_loads_it_and_gives_the_same_logits(reference, rng, tokenizer):
    theirs, info = DiffusionGemmaForBlockDiffusion.from_pretrained(TINY, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert not info["mismatched_keys"]
    model = checkpoint.load(TINY)
    prompt = tokenizer.encode("Extract name, age as JSON. This is Olga Lopez, aged 61.")
    canvas = torch.randint(model.vocab_size, (1, model.canvas_length), generator=rng)
    cache = model.new_cache(1)
    model.encode([prompt], cache, [0])
    first = model.denoise(canvas, model.no_soft_embedding()[None], cache, [0])
    soft_embedding = reference.soft_embedding(model, first)
    second = model.denoise(canvas, soft_embedding, cache, [0])
    with torch.no_grad():
        past = {cache_name(theirs): DynamicCache(config=theirs.config.get_text_config())}
        expected = theirs(input_ids=torch.tensor([prompt]), decoder_input_ids=canvas, **past).logits
        again = theirs(decoder_input_ids=canvas, **past, self_conditioning_logits=expected).logits
    torch.testing.assert_close(model.softcapped(first), expected, rtol=1e-4, atol=1e-4)
    # fp32 through eight layers: at most .0002 apart, at one of 32 places
    torch.testing.assert_close(model.softcapped(second), again, rtol=1e-4, atol=3e-4)


def test_it_has_every_part_of_the_architecture():
    config = checkpoint.load(TINY).config
    assert {layer.kind for layer in config.layers} == {"sliding_attention", "full_attention"}
    assert 1 < config.experts_per_token < config.experts
    assert 32 <= config.canvas_length <= 64


@pytest.mark.parametrize(
    ("token", "name"),
    [
        (0, "<pad>"),
        (1, "<eos>"),
        (2, "<bos>"),
        (48, "<|tool_call>"),
        (49, "<tool_call|>"),
        (50, "<|tool_response>"),
        (52, '<|"|>'),
        (98, "<|think|>"),
        (100, "<|channel>"),
        (101, "<channel|>"),
        (105, "<|turn>"),
        (106, "<turn|>"),
    ],
)
def test_control_tokens_have_gemma_4_s_names_and_ids(tokenizer, token, name):
    assert tokenizer.encode(name, add_special_tokens=False) == [token]
    assert tokenizer.added_tokens_decoder[token].special


def test_a_word_is_the_same_token_in_prose_and_in_json(tokenizer):
    def tokens(text):
        return tokenizer.convert_ids_to_tokens(tokenizer.encode(text, add_special_tokens=False))

    for word in ("Lisbon", "invoice", "Zqompeo"):
        alone = tokens(word)
        for text in (f"living in {word}.", json.dumps({"city": word})):
            whole = tokens(text)
            assert alone in [whole[i : i + len(alone)] for i in range(len(whole))]
    assert tokens("2024")[-4:] == ["2", "0", "2", "4"]


def test_the_generation_config_has_the_family_s_stop_set():
    settings = json.loads((TINY / "generation_config.json").read_text())
    assert settings["eos_token_id"] == [1, 106, 50]
    assert settings["pad_token_id"] == 0


def test_the_chat_template_renders_turns_tools_and_thinking(tokenizer):
    text = tokenizer.apply_chat_template(
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
        tools=[
            {
                "type": "function",
                "function": {
                    "name": "convert",
                    "parameters": {"type": "object", "properties": {"amount": {"type": "number"}}},
                },
            }
        ],
        enable_thinking=True,
        add_generation_prompt=True,
        tokenize=False,
    )
    assert text == (
        "<bos><|turn>system\n<|think|>Be brief.<|tool>declaration:convert{amount:NUMBER}<tool|>"
        "<turn|>\n<|turn>user\nHi<turn|>\n<|turn>model\n"
    )
