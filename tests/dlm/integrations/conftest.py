"""Causal models of other families: tiny, random, with as many tokens as the built-in tokenizer."""

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    LlamaConfig,
    PreTrainedModel,
)
from values import V

SMALL = {
    "vocab_size": V,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
    "initializer_range": 0.5,
}
STOPS = {"bos_token_id": 2, "eos_token_id": [1, 106, 50], "pad_token_id": 0}
CONFIGS = {
    "gpt2": lambda: GPT2Config(
        vocab_size=V, n_embd=32, n_layer=2, n_head=4, n_positions=512, initializer_range=0.5
    ),
    "llama": lambda: LlamaConfig(**SMALL),
    # Its window is shorter than the answers: it may not hold the tokens before a refused one.
    "gemma3": lambda: Gemma3TextConfig(
        **SMALL, sliding_window=8, layer_types=["sliding_attention", "full_attention"]
    ),
}


@pytest.fixture(scope="module", params=CONFIGS)
def theirs(request) -> PreTrainedModel:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(CONFIGS[request.param]())
    for name, value in STOPS.items():
        setattr(model.generation_config, name, value)
    return model
