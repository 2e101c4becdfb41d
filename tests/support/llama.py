"""A tiny Llama of random weights, with the built-in model's tokenizer: an autoregressive model."""

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import save_file

WIDTH, LAYERS, HEADS, INNER = 64, 2, 1, 128
FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


def write(tiny: Path, out: Path, seed: int = 0) -> Path:
    """Write the checkpoint `out`; `tiny` is the built-in model's folder."""
    out.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        shutil.copy(tiny / name, out / name)
    size = json.loads((tiny / "config.json").read_text())["text_config"]["vocab_size"]
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": size,
        "hidden_size": WIDTH,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
        "bos_token_id": 2,
        "eos_token_id": 1,
        "pad_token_id": 0,
    }
    (out / "config.json").write_text(json.dumps(config))
    save_file(_weights(size, seed), out / "model.safetensors", metadata={"format": "pt"})
    return out


def _weights(size: int, seed: int) -> dict[str, torch.Tensor]:
    rng = torch.Generator().manual_seed(seed)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=rng) * shape[-1] ** -0.5

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
