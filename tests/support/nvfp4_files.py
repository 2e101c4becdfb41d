"""NVFP4 checkpoints as two tools write them, made from one of floats; and what they stand for.

Tensor scales are as no rule would have them: a loader can only read them.
"""

import json
import re
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from dlm.kernels.nvfp4 import NVFP4, quantize, tensor_scale

MODELOPT = {"quant_method": "modelopt", "quant_algo": "NVFP4"}
COMPRESSED = {
    "quant_method": "compressed-tensors",
    "format": "nvfp4-pack-quantized",
    "config_groups": {"group_0": {"weights": {"num_bits": 4, "group_size": 16}}},
}
_NUMBERS = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=torch.float64)


def write(directory: Path, config: dict[str, Any], skip: str = "") -> dict[str, Tensor]:
    """Quantise in place what the tool of a `quantization_config` would: experts, and where it is
    compressed-tensors dense MLPs. Tensors whose names begin with `skip` stay as they are.

    Returns the numbers that the new file stands for, by the names of the old one's tensors.
    """
    rng = torch.Generator().manual_seed(1)
    dense = config["quant_method"] == "compressed-tensors"
    new: dict[str, Tensor] = {}
    meant = {}
    for name, tensor in load_file(directory / "model.safetensors").items():
        expert = re.fullmatch(r"(.*\.experts)\.(gate_up|down)_proj", name)
        matrices = {}
        if expert and not (skip and name.startswith(skip)):
            parts = ("gate_proj", "up_proj") if expert[2] == "gate_up" else ("down_proj",)
            for e, stack in enumerate(tensor):
                for part, matrix in zip(parts, stack.chunk(len(parts)), strict=True):
                    matrices[f"{expert[1]}.{e}.{part}"] = matrix
        elif dense and re.search(r"decoder\.layers\.\d+\.mlp\.", name):
            matrices[name.removesuffix(".weight")] = tensor
        if not matrices:
            new[name] = tensor
            continue
        numbers = []
        for path, matrix in matrices.items():
            factor = 0.6 + 1.2 * torch.rand((), generator=rng)
            w = quantize(matrix, tensor_scale(matrix) * factor)
            new |= _named(path, w, 0.01 + torch.rand((), generator=rng), dense)
            numbers.append(numbers_of(w))
        meant[name] = torch.cat(numbers).view(tensor.shape)
    save_file(new, directory / "model.safetensors", metadata={"format": "pt"})
    edit_config(directory, config)
    return meant


def edit_config(directory: Path, quantisation: dict[str, Any] | None) -> None:
    """Set what `config.json` says of quantised weights."""
    path = directory / "config.json"
    path.write_text(
        json.dumps({**json.loads(path.read_text()), "quantization_config": quantisation})
    )


def numbers_of(w: NVFP4) -> Tensor:
    """Return the numbers of a matrix by the definition: in fp64, rounded once."""
    codes = torch.stack([w.packed & 15, w.packed >> 4], -1).flatten(-2).long()
    numbers = torch.cat([_NUMBERS, -_NUMBERS])[codes]
    scale = w.scale.double().repeat_interleave(16, -1) * w.scale_2.double()
    return (numbers * scale).float()


def _named(path: str, w: NVFP4, input_scale: Tensor, divisors: bool) -> dict[str, Tensor]:
    if not divisors:
        return {
            f"{path}.weight": w.packed,
            f"{path}.weight_scale": w.scale,
            f"{path}.weight_scale_2": w.scale_2,
            f"{path}.input_scale": input_scale,
        }
    return {
        f"{path}.weight_packed": w.packed,
        f"{path}.weight_scale": w.scale,
        f"{path}.weight_global_scale": 1 / w.scale_2.view(1),
        f"{path}.input_global_scale": 1 / input_scale.view(1),
    }
