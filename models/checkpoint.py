"""DiffusionGemma directories in Hugging Face layout: read strictly, write exactly.

A directory holds `config.json` and `model.safetensors`, or shards listed by
`model.safetensors.index.json`. What the tensors in them fill, `layout.py` says.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from dlm.models.backends import Dispatch, Kernels
from dlm.models.config import ModelConfig
from dlm.models.errors import CheckpointError
from dlm.models.formats import format_of
from dlm.models.layout import Place, adapt, blank, give, parameter_name, places, tensor_name
from dlm.models.model import DiffusionGemma

_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "U8": torch.uint8,
}
_FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
_SHOWN = 8  # names listed in an error before "and N more"


@dataclass(frozen=True, slots=True)
class _Header:
    """What a file says of a tensor before its numbers."""

    path: Path
    shape: tuple[int, ...]
    dtype: torch.dtype | str  # a name, if it is none that weights may have


def load(
    directory: str | Path,
    dtype: torch.dtype = torch.float32,
    device: str | torch.device = "cpu",
    kernels: Kernels = "auto",
    activation_bits: int = 16,
) -> DiffusionGemma:
    """The model of `directory` on `device`, ready to run: floats in `dtype`, NVFP4 as it is.

    `kernels` says what runs it, which `model.backends` then tells. `activation_bits` is 16, or 4
    to quantise activations too where they meet NVFP4 matrices, but for those of experts. Beside the
    model itself, one tensor of a file at a time is in memory.

    Raises, before any weight is read, `CheckpointError` unless every text tensor on disk finds its
    place, in the right shape and type, and no place is left; `BackendError` for kernels that cannot
    be had.
    """
    dispatch = Dispatch(
        device=torch.device(device), dtype=dtype, kernels=kernels, activation_bits=activation_bits
    )
    model, headers, wanted = _matched(Path(directory), dispatch)
    _fill(model, headers, wanted, dispatch)
    return model


def config_of(directory: str | Path) -> ModelConfig:
    """The config of `directory`, whose tensors fit it; `CheckpointError` if they do not."""
    return _matched(Path(directory), Dispatch(kernels="torch"))[0].config


def _matched(
    directory: Path, dispatch: Dispatch
) -> tuple[DiffusionGemma, dict[str, _Header], dict[str, Place]]:
    """A model without data, the tensors of `directory`, and their places in the model: a match."""
    settings, older = read_json(directory / "config.json"), directory / "hf_quant_config.json"
    config = ModelConfig.from_hf(settings)
    form = format_of(settings, read_json(older) if older.exists() else None)
    headers, problems = _headers(directory)
    with torch.device("meta"):
        model = DiffusionGemma(config)
        adapt(model, headers, form, dispatch)
    wanted = places(model, form)
    problems += _misfits(headers, wanted)
    if problems:
        raise CheckpointError(f"{directory} does not fit its config.json: {_listed(problems)}")
    return model, headers, wanted


def save(
    model: DiffusionGemma,
    directory: str | Path,
    config: Mapping[str, Any],
    extra: Mapping[str, Tensor],
) -> None:
    """Write `config.json` and `model.safetensors`, with `extra` tensors (a vision tower) beside.

    Raises `CheckpointError` for a model whose weights are not those of a float file.
    """
    with torch.device("meta"):
        plain = DiffusionGemma(model.config).state_dict()
    ours = model.state_dict()
    if {name: ours[name].shape for name in ours} != {name: plain[name].shape for name in plain}:
        raise CheckpointError("only models of floats, as a file holds them, can be written")
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    tensors = {tensor_name(name): t.detach().cpu().contiguous() for name, t in ours.items()}
    save_file({**tensors, **extra}, directory / "model.safetensors", metadata={"format": "pt"})
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def tensors(directory: str | Path) -> Iterator[tuple[str, Tensor]]:
    """Every tensor of a directory and its name, one at a time."""
    for path in _shards(Path(directory)):
        with _opened(path) as file:
            for name in file.keys():  # noqa: SIM118 (not a dict)
                yield name, file.get_tensor(name)


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


def _headers(directory: Path) -> tuple[dict[str, _Header], list[str]]:
    """Of all tensors of `directory` by name; and what is wrong with their names."""
    found: dict[str, _Header] = {}
    problems = []
    for path in _shards(directory):
        with _opened(path) as file:
            for name in file.keys():  # noqa: SIM118 (not a dict)
                part = file.get_slice(name)
                stored = part.get_dtype()
                dtype = _DTYPES[stored] if stored in _DTYPES else str(stored)
                if name in found:
                    problems.append(f"{name} is there twice")
                found[name] = _Header(path, tuple(part.get_shape()), dtype)
    return found, problems


def _misfits(headers: Mapping[str, _Header], wanted: Mapping[str, Place]) -> list[str]:
    """What is not as it should be: tensors too many, too few, of another shape or type."""
    problems = [
        f"{name} is missing, expected in shape {[*place.shape]}"
        for name, place in wanted.items()
        if name not in headers and place.default is None
    ]
    for name, header in headers.items():
        place = wanted.get(name)
        if place is None:
            if parameter_name(name) is not None:
                problems.append(f"{name} is no tensor of this architecture")
            continue
        if header.shape != place.shape and (place.shape, header.shape) != ((), (1,)):
            shapes = f"{[*header.shape]}, expected {[*place.shape]}"
            problems.append(f"{name} has shape {shapes}")
        if header.dtype not in ([place.stored] if place.stored else _FLOATS):
            expected = place.stored or "a float of 16 to 64 bits"
            problems.append(f"{name} is of {header.dtype}, expected {expected}")
    return problems


def _fill(
    model: DiffusionGemma,
    headers: Mapping[str, _Header],
    wanted: Mapping[str, Place],
    dispatch: Dispatch,
) -> None:
    """Give `model`, which is without data, its weights."""
    filled = blank(model, wanted, dispatch)
    parts: dict[Path, list[tuple[str, Place, Tensor]]] = {}
    for name, place in wanted.items():
        if place.parameter is None:
            continue
        part = place.part(filled[place.parameter])
        if name in headers:
            parts.setdefault(headers[name].path, []).append((name, place, part))
        elif place.default is not None:
            part.fill_(place.default)
    for path, some in parts.items():
        with _opened(path) as file:
            for name, place, part in some:
                _put(name, file.get_tensor(name), place, part)
    give(model, filled)


def _put(name: str, tensor: Tensor, place: Place, part: Tensor) -> None:
    if place.divisor:
        tensor = 1 / tensor
    if place.shape == () and not tensor.isfinite().all():
        of = "one over it" if place.divisor else "it"
        raise CheckpointError(f"{name} cannot be a scale: {of} is {tensor.item()}")
    part.copy_(tensor.view(part.shape))


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        with safe_open(path, "pt") as file:
            yield file
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return "; ".join(sorted(names)[:_SHOWN]) + more
