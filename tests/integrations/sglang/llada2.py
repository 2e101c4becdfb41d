"""A tiny LLaDA2 of random weights, with the built-in model's tokenizer: a mixture of experts."""

from pathlib import Path

import random_checkpoint
import torch
from random_checkpoint import Drawn, gated_mlp
from sdar import LOUDNESS, TEMPLATE

WIDTH, LAYERS, HEADS, KEYS, HEAD, INNER, EXPERTS, EXPERT = 64, 2, 4, 2, 16, 128, 4, 32
CONFIG = {
    "architectures": ["LLaDA2MoeModelLM"],
    "model_type": "qwen3_moe",  # transformers has no config of LLaDA2
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
    "partial_rotary_factor": 0.5,
    "tie_word_embeddings": False,
    "use_bias": False,
    "use_qkv_bias": False,
    "embedding_dropout": 0.0,
    "first_k_dense_replace": 1,
    "num_experts": EXPERTS,
    "num_experts_per_tok": 2,
    "num_shared_experts": 1,
    "moe_intermediate_size": EXPERT,
    "moe_shared_expert_intermediate_size": EXPERT,
    "moe_router_enable_expert_bias": True,
    "score_function": "sigmoid",
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
    "n_group": 2,
    "topk_group": 1,
}


def write(tiny: Path, out: Path, seed: int = 0) -> Path:
    """Write the checkpoint `out`; `tiny` is the built-in model's folder."""
    return random_checkpoint.write(tiny, out, CONFIG, _weights, seed, template=TEMPLATE)


def _weights(drawn: Drawn, size: int) -> dict[str, torch.Tensor]:
    weights = {
        "model.word_embeddings.weight": drawn(size, WIDTH),
        "model.norm.weight": torch.ones(WIDTH),
        "lm_head.weight": LOUDNESS * drawn(size, WIDTH),
    }
    for i in range(LAYERS):
        layer = f"model.layers.{i}"
        weights |= {
            f"{layer}.attention.query_key_value.weight": drawn((HEADS + 2 * KEYS) * HEAD, WIDTH),
            f"{layer}.attention.dense.weight": drawn(WIDTH, HEADS * HEAD),
            f"{layer}.attention.query_layernorm.weight": torch.ones(HEAD),
            f"{layer}.attention.key_layernorm.weight": torch.ones(HEAD),
            f"{layer}.input_layernorm.weight": torch.ones(WIDTH),
            f"{layer}.post_attention_layernorm.weight": torch.ones(WIDTH),
        }
        if i == 0:
            weights |= gated_mlp(drawn, f"{layer}.mlp", WIDTH, INNER)
            continue
        weights |= {
            f"{layer}.mlp.gate.weight": drawn(EXPERTS, WIDTH),
            f"{layer}.mlp.gate.expert_bias": torch.zeros(EXPERTS),
            **gated_mlp(drawn, f"{layer}.mlp.shared_experts", WIDTH, EXPERT),
        }
        for j in range(EXPERTS):
            weights |= gated_mlp(drawn, f"{layer}.mlp.experts.{j}", WIDTH, EXPERT)
    return weights
