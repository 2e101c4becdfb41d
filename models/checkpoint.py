"""DiffusionGemma directories in Hugging Face layout: read strictly, write exactly.

A directory holds `config.json` and `model.safetensors`, or shards listed by
`model.safetensors.index.json`. The text stack lies under `model.decoder.`; the encoder shares its
weights and adds one scalar a layer. A vision tower may be present and is not read.
"""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from dlm.models.config import ModelConfig
from dlm.models.errors import CheckpointError
from dlm.models.model import DiffusionGemma

_DECODER = "model.decoder."
_ENCODER_SCALAR = re.compile(r"model\.encoder\.language_model\.layers\.(\d+)\.layer_scalar")
_VISION = ("model.encoder.vision_tower.", "model.encoder.embed_vision.")
_SHOWN = 8  # names listed in an error before "and N more"


def load(
    directory: str | Path, dtype: torch.dtype = torch.float32, device: str | torch.device = "cpu"
) -> DiffusionGemma:
    """The model of `directory`, in `dtype` on `device`, ready to run.

    Raises `CheckpointError` unless every text tensor on disk finds its parameter, with the right
    shape, and every parameter is filled.
    """
    directory = Path(directory)
    config = ModelConfig.from_hf(read_json(directory / "config.json"))
    with torch.device("meta"):
        model = DiffusionGemma(config)
    wanted = model.state_dict()
    found: dict[str, Tensor] = {}
    problems = []
    for path in _shards(directory):
        for name, tensor in _tensors(path):
            ours = parameter_name(name)
            if ours is None:
                continue
            if ours not in wanted or tensor_name(ours) != name:
                problems.append(f"{name} is no tensor of this architecture")
                continue
            if ours in found:
                problems.append(f"{name} is there twice")
            if tensor.shape != wanted[ours].shape:
                shapes = f"{list(tensor.shape)}, expected {list(wanted[ours].shape)}"
                problems.append(f"{name} has shape {shapes}")
            found[ours] = tensor.to(device=device, dtype=dtype)
    problems += [f"{tensor_name(name)} is missing" for name in wanted.keys() - found.keys()]
    if problems:
        raise CheckpointError(f"{directory} does not fit its config.json: {_listed(problems)}")
    model.load_state_dict(found, assign=True)
    return model.requires_grad_(False).eval()


def save(
    model: DiffusionGemma,
    directory: str | Path,
    config: Mapping[str, Any],
    extra: Mapping[str, Tensor],
) -> None:
    """Write `config.json` and `model.safetensors`, with `extra` tensors (a vision tower) beside."""
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    tensors = {
        tensor_name(name): t.detach().cpu().contiguous() for name, t in model.state_dict().items()
    }
    save_file({**tensors, **extra}, directory / "model.safetensors", metadata={"format": "pt"})
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def parameter_name(tensor: str) -> str | None:
    """Our name of a tensor on disk; None for one that the text stack does not need."""
    if tensor.startswith(_VISION):
        return None
    if scalar := _ENCODER_SCALAR.fullmatch(tensor):
        return f"layers.{scalar[1]}.encoder_scalar"
    return tensor.removeprefix(_DECODER)


def tensor_name(parameter: str) -> str:
    """The inverse of `parameter_name`."""
    if scalar := re.fullmatch(r"layers\.(\d+)\.encoder_scalar", parameter):
        return f"model.encoder.language_model.layers.{scalar[1]}.layer_scalar"
    return _DECODER + parameter


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file of a model directory, or `CheckpointError`."""
    try:
        content = json.loads(path.read_text())
    except FileNotFoundError:
        raise CheckpointError(
            f"{path.parent} holds no {path.name}: not a model directory"
        ) from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} holds no JSON object")
    return content


def _shards(directory: Path) -> list[Path]:
    single, index = directory / "model.safetensors", directory / "model.safetensors.index.json"
    if single.exists():
        return [single]
    if not index.exists():
        raise CheckpointError(f"{directory} holds neither {single.name} nor {index.name}")
    shards = sorted(set(read_json(index).get("weight_map", {}).values()))
    if missing := [name for name in shards if not (directory / name).exists()]:
        raise CheckpointError(f"{index} lists files that are missing: {_listed(missing)}")
    return [directory / name for name in shards]


def _tensors(path: Path) -> Iterator[tuple[str, Tensor]]:
    try:
        with safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118 (not a dict)
                yield name, file.get_tensor(name)
    except SafetensorError as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return "; ".join(sorted(names)[:_SHOWN]) + more
