"""A tiny SDAR of random weights, with the built-in model's tokenizer: a masked diffusion model."""

from pathlib import Path

import random_checkpoint
import torch
from random_checkpoint import Drawn, gated_mlp

WIDTH, LAYERS, HEADS, KEYS, HEAD, INNER = 64, 2, 4, 2, 16, 128
TEMPLATE = "{{ bos_token }}{% for m in messages %}{{ m.content }}\n{% endfor %}"
LOUDNESS = 4.0  # of the logits: the model is sure of some of its random tokens
CONFIG = {
    "architectures": ["SDARForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": WIDTH,
    "intermediate_size": INNER,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KEYS,
    "head_dim": HEAD,
    "hidden_act": "silu",
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
}


def write(tiny: Path, out: Path, seed: int = 0) -> Path:
    """Write the checkpoint `out`; `tiny` is the built-in model's folder."""
    return random_checkpoint.write(tiny, out, CONFIG, _weights, seed, template=TEMPLATE)


def _weights(drawn: Drawn, size: int) -> dict[str, torch.Tensor]:
    weights = {
        "model.embed_tokens.weight": drawn(size, WIDTH),
        "model.norm.weight": torch.ones(WIDTH),
        "lm_head.weight": LOUDNESS * drawn(size, WIDTH),
    }
    for i in range(LAYERS):
        layer = f"model.layers.{i}"
        weights |= {
            f"{layer}.self_attn.q_proj.weight": drawn(HEADS * HEAD, WIDTH),
            f"{layer}.self_attn.k_proj.weight": drawn(KEYS * HEAD, WIDTH),
            f"{layer}.self_attn.v_proj.weight": drawn(KEYS * HEAD, WIDTH),
            f"{layer}.self_attn.o_proj.weight": drawn(WIDTH, HEADS * HEAD),
            f"{layer}.self_attn.q_norm.weight": torch.ones(HEAD),
            f"{layer}.self_attn.k_norm.weight": torch.ones(HEAD),
            **gated_mlp(drawn, f"{layer}.mlp", WIDTH, INNER),
            f"{layer}.input_layernorm.weight": torch.ones(WIDTH),
            f"{layer}.post_attention_layernorm.weight": torch.ones(WIDTH),
        }
    return weights
