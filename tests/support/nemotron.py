"""Small random checkpoints of Nemotron-Labs-Diffusion, in the layout of the published ones."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from plain_decoders import ROPE
from safetensors.torch import save_file
from torch import Tensor

CONFIG: dict[str, Any] = {
    "architectures": ["NemotronLabsDiffusionModel"],
    "model_type": "nemotron_labs_diffusion",
    "vocab_size": 1536,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "rope_parameters": ROPE,
    "block_size": 16,
    "mask_token_id": 4,
    "bos_token_id": 2,
    "eos_token_id": 1,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
}
RANK, ALPHA = 4, 8


def shapes() -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the names and shapes of all tensors."""
    vocabulary, hidden, inner = (
        CONFIG[f"{name}_size"] for name in ("vocab", "hidden", "intermediate")
    )
    queries, keys = 4 * 16, 2 * 16
    yield "encoder.embed_tokens.weight", (vocabulary, hidden)
    for i in range(CONFIG["num_hidden_layers"]):
        layer = f"encoder.layers.{i}"
        yield f"{layer}.input_layernorm.weight", (hidden,)
        yield f"{layer}.post_attention_layernorm.weight", (hidden,)
        for name, size in (("q", queries), ("k", keys), ("v", keys)):
            yield f"{layer}.self_attn.{name}_proj.weight", (size, hidden)
        yield f"{layer}.self_attn.o_proj.weight", (hidden, queries)
        for name in ("gate", "up"):
            yield f"{layer}.mlp.{name}_proj.weight", (inner, hidden)
        yield f"{layer}.mlp.down_proj.weight", (hidden, inner)
    yield "encoder.norm.weight", (hidden,)
    yield "diffusion_head.weight", (vocabulary, hidden)


def drawn(rng: torch.Generator, name: str, shape: tuple[int, ...]) -> Tensor:
    numbers = torch.randn(shape, generator=rng)
    if "norm" in name:
        return 1 + numbers / 4
    return numbers if "embed" in name else numbers * (3 if "head" in name else 1) / shape[-1] ** 0.5


def tensors(seed: int = 0) -> dict[str, Tensor]:
    rng = torch.Generator().manual_seed(seed)
    return {name: drawn(rng, name, shape) for name, shape in shapes()}


def write(out: Path, seed: int = 0, shards: int = 1, **config: Any) -> Path:
    """Write a checkpoint of `shards` files; `config` replaces fields."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "config.json").write_text(json.dumps(CONFIG | config))
    (out / "generation_config.json").write_text(json.dumps({"eos_token_id": 1}))
    write_tensors(out, tensors(seed), shards)
    return out


def write_wavering(out: Path) -> Path:
    """Write a checkpoint whose states have much in common: canvases are sure of what they want, and
    often, but not always, the causal half wants the same."""
    named = tensors()
    constant = torch.randn(CONFIG["hidden_size"], generator=torch.Generator().manual_seed(5))
    named["encoder.embed_tokens.weight"] += 6 * constant
    named["diffusion_head.weight"] *= 5
    write_tensors(write(out), named)
    return out


def write_tensors(out: Path, named: dict[str, Tensor], shards: int = 1) -> None:
    if shards == 1:
        save_file(named, out / "model.safetensors")
        return
    files = [f"model-{i + 1:05}-of-{shards:05}.safetensors" for i in range(shards)]
    for i, file in enumerate(files):
        save_file(dict([*named.items()][i::shards]), out / file)
    weight_map = {name: files[i % shards] for i, name in enumerate(named)}
    (out / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def adapter_tensors(seed: int = 1) -> dict[str, Tensor]:
    rng = torch.Generator().manual_seed(seed)
    named = {}
    for i in range(CONFIG["num_hidden_layers"]):
        path = f"base_model.model.encoder.layers.{i}.self_attn.o_proj"
        named[f"{path}.lora_A.weight"] = torch.randn(RANK, 64, generator=rng) / 8
        named[f"{path}.lora_B.weight"] = torch.randn(32, RANK, generator=rng) / 2
    return named


def write_adapter(out: Path, named: dict[str, Tensor] | None = None, **config: Any) -> None:
    """Write the adapter of drafts beside a checkpoint; `config` replaces fields."""
    folder = out / "linear_spec_lora"
    folder.mkdir(exist_ok=True)
    settings = {"r": RANK, "lora_alpha": ALPHA, "target_modules": ["o_proj"], "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(settings | config))
    save_file(adapter_tensors() if named is None else named, folder / "adapter_model.safetensors")
