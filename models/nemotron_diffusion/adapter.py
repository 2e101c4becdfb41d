"""Adapter of drafts in the folder `linear_spec_lora/` of a checkpoint, in PEFT's format."""

import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dlm.models import CheckpointError
from dlm.models.decoder import DecoderConfig
from dlm.models.json_files import Range, check_number, read_json, shown
from dlm.models.nemotron_diffusion.network import LowRank
from dlm.models.tensor_files import listed, opened

FOLDER = "linear_spec_lora"
_CONFIG, _TENSORS = "adapter_config.json", "adapter_model.safetensors"
_NAME = re.compile(r"(?:.*\.)?layers\.(\d+)\.self_attn\.o_proj\.lora_(A|B)\.weight")
_COMPUTED = {"bias": "none", "use_rslora": False, "use_dora": False, "fan_in_fan_out": False}


def read(
    directory: Path, config: DecoderConfig, dtype: torch.dtype, device: torch.device
) -> list[LowRank] | None:
    """Return the adapter of each layer; None if `directory` has none. Raises `CheckpointError`
    unless it is of `o_proj` in all layers, and nothing else."""
    folder = directory / FOLDER
    if not folder.exists():
        return None
    scale, r = _scale(folder / _CONFIG)
    parts, problems = _parts(folder / _TENSORS)
    (head_dim,) = {layer.head_dim for layer in config.layers}
    shapes = {"A": (r, config.heads * head_dim), "B": (config.hidden_size, r)}
    expected = {(i, part): shapes[part] for i in range(len(config.layers)) for part in "AB"}
    for place, shape in expected.items():
        name = f"lora_{place[1]} of layer {place[0]}"
        if place not in parts:
            problems.append(f"{name} is missing, expected in shape {[*shape]}")
        elif tuple(parts[place].shape) != shape:
            problems.append(f"{name} has shape {[*parts[place].shape]}, expected {[*shape]}")
        elif not (parts[place].is_floating_point() and parts[place].isfinite().all()):
            problems.append(f"{name} must be finite floats")
    problems += [f"layer {i} is none of this model" for i, _ in parts.keys() - expected.keys()]
    if problems:
        raise CheckpointError(f"{folder / _TENSORS}: {listed(problems)}")
    return [
        LowRank(
            down=parts[i, "A"].to(device, dtype),
            up=(parts[i, "B"].float() * scale).to(device, dtype),
        )
        for i in range(len(config.layers))
    ]


def _scale(path: Path) -> tuple[float, int]:
    """Return the adapter's scale and its rank."""
    settings: dict[str, Any] = read_json(path)
    for name, allowed in (("r", Range(int, 1, 2**16)), ("lora_alpha", Range(float, 0, 1e6))):
        check_number(f"{path}: {name}", settings.get(name), allowed)
    if settings.get("target_modules") != ["o_proj"]:
        value = shown(settings.get("target_modules"))
        raise CheckpointError(f'{path}: target_modules must be ["o_proj"], got {value}')
    for name, value in _COMPUTED.items():
        if settings.get(name, value) != value:
            raise CheckpointError(
                f"{path}: {name} must be {shown(value)}, got {shown(settings[name])}"
            )
    return settings["lora_alpha"] / settings["r"], settings["r"]


def _parts(path: Path) -> tuple[dict[tuple[int, str], Tensor], list[str]]:
    """Return the tensors by layer and part, and the problems with their names."""
    if not path.exists():
        raise CheckpointError(f"{path.parent} holds no {path.name}")
    parts: dict[tuple[int, str], Tensor] = {}
    problems: list[str] = []
    with opened(path) as file:
        for name in file.keys():  # noqa: SIM118 (not a dict)
            match = _NAME.fullmatch(name)
            if match is None:
                problems.append(f"{name} is no tensor of an adapter of o_proj")
            elif (place := (int(match[1]), match[2])) in parts:
                problems.append(f"{name} is there twice")
            else:
                parts[place] = file.get_tensor(name)
    return parts, problems
