"""A tiny DiffusionGemma of random weights, with the built-in model's tokenizer."""

import json
from pathlib import Path

import random_checkpoint
import torch
from random_checkpoint import Drawn, gated_mlp

WIDTH, LAYERS, HEADS, KEYS, HEAD, INNER, EXPERTS, EXPERT = 64, 2, 4, 2, 16, 128, 4, 32
CANVAS = 32
LOUDNESS = 4.0  # of the embeddings, which make the logits too
TEXT = {
    "model_type": "diffusion_gemma_text",
    "hidden_size": WIDTH,
    "intermediate_size": INNER,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KEYS,
    "head_dim": HEAD,
    "global_head_dim": HEAD,
    "per_layer_config": {},
    "hidden_activation": "gelu_pytorch_tanh",
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "sliding_window": 2048,
    "layer_types": ["full_attention"] * LAYERS,
    "tie_word_embeddings": True,
    "num_experts": EXPERTS,
    "top_k_experts": 2,
    "moe_intermediate_size": EXPERT,
}


def write(tiny: Path, out: Path, seed: int = 0) -> Path:
    """Write the checkpoint `out`; `tiny` is the built-in model's folder."""
    built_in = json.loads((tiny / "config.json").read_text())
    tokens = {"vocab_size": built_in["text_config"]["vocab_size"], "eos_token_id": 1}
    config = {
        "architectures": ["DiffusionGemmaForBlockDiffusion"],
        "model_type": "diffusion_gemma",
        "text_config": TEXT | tokens | {"bos_token_id": 2, "pad_token_id": 0},
        "vision_config": built_in["vision_config"],
        "tie_word_embeddings": True,
        "canvas_length": CANVAS,
        **{name: built_in[name] for name in ("boi_token_id", "eoi_token_id", "image_token_id")},
    }
    return random_checkpoint.write(tiny, out, config, _weights, seed, ["chat_template.jinja"])


def _weights(drawn: Drawn, size: int) -> dict[str, torch.Tensor]:
    mixed = "model.decoder.self_conditioning"
    weights = {
        "model.decoder.embed_tokens.weight": LOUDNESS * drawn(size, WIDTH),
        "model.decoder.norm.weight": torch.ones(WIDTH),
        f"{mixed}.pre_norm.weight": torch.ones(WIDTH),
        **gated_mlp(drawn, mixed, WIDTH, INNER),
    }
    for i in range(LAYERS):
        layer = f"model.decoder.layers.{i}"
        weights |= {
            f"{layer}.self_attn.q_proj.weight": drawn(HEADS * HEAD, WIDTH),
            f"{layer}.self_attn.k_proj.weight": drawn(KEYS * HEAD, WIDTH),
            f"{layer}.self_attn.o_proj.weight": drawn(WIDTH, HEADS * HEAD),
            f"{layer}.self_attn.q_norm.weight": torch.ones(HEAD),
            f"{layer}.self_attn.k_norm.weight": torch.ones(HEAD),
            **gated_mlp(drawn, f"{layer}.mlp", WIDTH, INNER),
            f"{layer}.router.proj.weight": drawn(EXPERTS, WIDTH),
            f"{layer}.router.scale": torch.ones(WIDTH),
            f"{layer}.router.per_expert_scale": torch.ones(EXPERTS),
            f"{layer}.experts.gate_up_proj": drawn(EXPERTS, 2 * EXPERT, WIDTH),
            f"{layer}.experts.down_proj": drawn(EXPERTS, WIDTH, EXPERT),
            f"{layer}.layer_scalar": torch.ones(1),
            f"model.encoder.language_model.layers.{i}.layer_scalar": torch.ones(1),
        }
        norms = ["input_layernorm", "post_attention_layernorm"]
        norms += [f"pre_feedforward_layernorm{suffix}" for suffix in ("", "_2")]
        norms += [f"post_feedforward_layernorm{suffix}" for suffix in ("", "_1", "_2")]
        weights |= {f"{layer}.{norm}.weight": torch.ones(WIDTH) for norm in norms}
    return weights
