"""A tiny Llama of random weights, with the built-in model's tokenizer: an autoregressive model."""

from pathlib import Path

import random_checkpoint
import torch
from random_checkpoint import Drawn

WIDTH, LAYERS, HEADS, INNER = 64, 2, 1, 128
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": WIDTH,
    "intermediate_size": INNER,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": HEADS,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
}


def write(tiny: Path, out: Path, seed: int = 0) -> Path:
    """Write the checkpoint `out`; `tiny` is the built-in model's folder."""
    files = ["chat_template.jinja"]
    return random_checkpoint.write(tiny, out, CONFIG, _weights, seed, files)


def _weights(drawn: Drawn, size: int) -> dict[str, torch.Tensor]:
    weights = {
        "model.embed_tokens.weight": drawn(size, WIDTH),
        "model.norm.weight": torch.ones(WIDTH),
    }
    for i in range(LAYERS):
        layer = f"model.layers.{i}"
        for name in ("q", "k", "v", "o"):
            weights[f"{layer}.self_attn.{name}_proj.weight"] = drawn(WIDTH, WIDTH)
        for name in ("gate", "up"):
            weights[f"{layer}.mlp.{name}_proj.weight"] = drawn(INNER, WIDTH)
        weights[f"{layer}.mlp.down_proj.weight"] = drawn(WIDTH, INNER)
        for name in ("input", "post_attention"):
            weights[f"{layer}.{name}_layernorm.weight"] = torch.ones(WIDTH)
    return weights
