"""A checkpoint that reads images: the built-in one, whose vision tower has random weights."""

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import Gemma4VisionConfig, Gemma4VisionModel
from transformers.models.gemma4.image_processing_pil_gemma4 import Gemma4ImageProcessorPil

from dlm.engine import BUILT_IN

MARK = "<|image|>"


def write(directory: Path) -> Path:
    """Write the checkpoint: token 4 marks an image, 5 and 6 begin and end it."""
    shutil.copytree(BUILT_IN, directory, dirs_exist_ok=True)
    config = json.loads((directory / "config.json").read_text())
    config |= {"image_token_id": 4, "boi_token_id": 5, "eoi_token_id": 6}
    config["text_config"]["use_bidirectional_attention"] = "vision"
    config["vision_config"]["position_embedding_size"] = 256
    weights = load_file(directory / "model.safetensors")
    tower = Gemma4VisionModel(Gemma4VisionConfig(**config["vision_config"]))
    rng = torch.Generator().manual_seed(0)
    for name, tensor in tower.state_dict().items():
        drawn = torch.randn(tensor.shape, generator=rng) * (1.0 if tensor.dim() < 2 else 0.3)
        weights[f"model.encoder.vision_tower.{name}"] = drawn.bfloat16()
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    (directory / "config.json").write_text(json.dumps(config))
    tokenizer = (directory / "tokenizer.json").read_text()
    (directory / "tokenizer.json").write_text(tokenizer.replace("<mask>", MARK))
    processor = Gemma4ImageProcessorPil(patch_size=4, max_soft_tokens=70)
    processor.save_pretrained(directory)
    return directory
