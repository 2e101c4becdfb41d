"""A model directory in Hugging Face layout: everything but the weights, and the weights in bf16."""

import json
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch import Tensor
from transformers import DiffusionGemmaConfig, Gemma4VisionConfig
from transformers.models.diffusion_gemma.generation_diffusion_gemma import (
    DiffusionGemmaGenerationConfig,
    EntropyBoundSamplerConfig,
)
from transformers.models.gemma4.modeling_gemma4 import Gemma4VisionModel

from dlm.models import DiffusionGemma, ModelConfig, checkpoint
from training import tokenizer

CANVAS = 32
CONFIG = "config.json"


def prepare(out: Path, seed: int) -> None:
    """Tokenizer and configurations, each unless it is there."""
    out.mkdir(parents=True, exist_ok=True)
    if not (out / "tokenizer.json").exists():
        tokenizer.train(tokenizer.corpus(Random(seed)), out)
    if not (out / "generation_config.json").exists():
        DiffusionGemmaGenerationConfig(
            max_new_tokens=256,
            max_denoising_steps=24,
            sampler_config=EntropyBoundSamplerConfig(entropy_bound=0.1),
            t_min=0.4,
            t_max=0.8,
            stability_threshold=1,
            confidence_threshold=0.02,
            bos_token_id=2,
            eos_token_id=tokenizer.STOPS,
            pad_token_id=0,
        ).save_pretrained(out)
    if not (out / CONFIG).exists():
        (out / CONFIG).write_text(json.dumps(hf_config(), indent=2) + "\n")


def hf_config() -> dict[str, Any]:
    """The architecture, through transformers' own config class."""
    layers = ["sliding_attention", "full_attention"] * 4
    config = DiffusionGemmaConfig(
        text_config={
            "vocab_size": tokenizer.VOCAB_SIZE,
            "hidden_size": 192,
            "intermediate_size": 1024,
            "num_hidden_layers": len(layers),
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 48,
            "global_head_dim": 64,
            "num_global_key_value_heads": 2,
            "sliding_window": 256,
            "layer_types": layers,
            "num_experts": 4,
            "top_k_experts": 2,
            "moe_intermediate_size": 64,
            "max_position_embeddings": 2048,
            "pad_token_id": 0,
            "bos_token_id": 2,
            "eos_token_id": tokenizer.STOPS,
        },
        vision_config=vision_config().to_dict() | {"default_output_length": 4},  # vLLM asks for it
        canvas_length=CANVAS,
        image_token_id=5,
        boi_token_id=6,
        eoi_token_id=7,
    )
    return {
        **config.to_dict(),
        "architectures": ["DiffusionGemmaForBlockDiffusion"],
        "dtype": "float32",  # what to compute in; the file holds bf16
    }


def vision_config() -> Gemma4VisionConfig:
    """The smallest vision tower that transformers builds: it rides along, untrained."""
    return Gemma4VisionConfig(
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=16,
        patch_size=4,
        position_embedding_size=16,
    )


def write(weights: Mapping[str, Tensor], config: Mapping[str, Any], out: Path) -> None:
    """The weights, rounded to bf16, beside the untrained vision tower."""
    model = DiffusionGemma(ModelConfig.from_hf(config))
    model.load_state_dict(weights)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        tower = Gemma4VisionModel(vision_config())
        hidden = config["text_config"]["hidden_size"]
        projection = torch.randn(hidden, tower.config.hidden_size) * 0.02
    extra = {
        f"model.encoder.vision_tower.{n}": t.contiguous().bfloat16()
        for n, t in tower.state_dict().items()
    }
    extra["model.encoder.embed_vision.embedding_projection.weight"] = projection.bfloat16()
    checkpoint.save(model.to(torch.bfloat16), out, config, extra)
