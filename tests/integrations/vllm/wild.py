"""A checkpoint of random weights: the built-in model, with every matrix redrawn."""

import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

_LOUDER = 3.0  # with it the model is sure of its random tokens


def write(source: Path, out: Path, seed: int = 0) -> Path:
    """Redraw the weights of the checkpoint in `source`; all other files are copied."""
    out.mkdir(parents=True, exist_ok=True)
    rng = torch.Generator().manual_seed(seed)
    for path in source.iterdir():
        if path.suffix != ".safetensors":
            shutil.copy(path, out / path.name)
            continue
        tensors = load_file(path)
        for name, tensor in tensors.items():
            if tensor.dim() > 1:
                std = _LOUDER * tensor.float().std()
                drawn = torch.randn(tensor.shape, generator=rng) * std
                tensors[name] = drawn.to(tensor.dtype)
        save_file(tensors, out / path.name, metadata={"format": "pt"})
    return out
