"""DiffusionGemma directories in Hugging Face layout: read strictly, written exactly.

A directory holds `config.json` and `model.safetensors`, or shards listed by
`model.safetensors.index.json`. `layout.py` maps their tensors to the model.
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

from dlm.kernels.configurations import BY_RULE, Tuned
from dlm.models import CheckpointError
from dlm.models.backends import Dispatch, Kernels
from dlm.models.diffusion_gemma.config import ModelConfig
from dlm.models.diffusion_gemma.layout import (
    Format,
    Place,
    adapt,
    blank,
    format_of,
    give,
    parameter_name,
    places,
    tensor_name,
)
from dlm.models.diffusion_gemma.model import DiffusionGemma
from dlm.models.json_files import read_json, shown

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
    """Header of a tensor in a file."""

    path: Path
    shape: tuple[int, ...]
    dtype: torch.dtype | str  # a name, if no weight may have this type


def load(
    directory: str | Path,
    dtype: torch.dtype = torch.float32,
    device: str | torch.device = "cpu",
    kernels: Kernels = "auto",
    activation_bits: int = 16,
    tuned: Tuned = BY_RULE,
) -> DiffusionGemma:
    """Load the model of `directory` on `device`: floats in `dtype`, NVFP4 as it is.

    `kernels` are the requested backends; `model.backends` has the choice. `activation_bits` is 16,
    or 4 to quantise activations of NVFP4 matrices too, those of experts if both of their stacks are
    in NVFP4. `tuned` has the configurations of kernels. Beside the model, one tensor of a file at a
    time is in memory.

    Before any weight is read, raises `CheckpointError` unless tensors on disk and in the text stack
    match in name, shape and type, and `BackendError` for kernels that cannot run.
    """
    dispatch = Dispatch(
        device=torch.device(device),
        dtype=dtype,
        kernels=kernels,
        activation_bits=activation_bits,
        tuned=tuned,
    )
    model, headers, wanted = _matched(Path(directory), dispatch)
    _fill(model, headers, wanted, dispatch)
    return model


def config_of(directory: str | Path) -> ModelConfig:
    """Return the config of `directory`. Raises `CheckpointError` if its tensors do not fit it."""
    return _matched(Path(directory), Dispatch(kernels="torch"))[0].config


def format_in(directory: Path) -> Format | None:
    """Return the format of the weights that a directory declares, as `format_of` does."""
    older = directory / "hf_quant_config.json"
    legacy = read_json(older) if older.exists() else None
    return format_of(read_json(directory / "config.json"), legacy)


def _matched(
    directory: Path, dispatch: Dispatch
) -> tuple[DiffusionGemma, dict[str, _Header], dict[str, Place]]:
    """Return a model without data, the tensors of `directory`, and their matching places in the
    model."""
    config = ModelConfig.from_hf(read_json(directory / "config.json"))
    form = format_in(directory)
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
    """Write `config.json` and `model.safetensors`, with `extra` tensors (a vision tower). Raises
    `CheckpointError` for a model with other weights than those of a float file."""
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
    """Yield every tensor of a directory and its name, one at a time."""
    for path in _shards(Path(directory)):
        with _opened(path) as file:
            for name in file.keys():  # noqa: SIM118 (not a dict)
                yield name, file.get_tensor(name)


def read_some(directory: Path, prefixes: tuple[str, ...]) -> dict[str, Tensor]:
    """Return the tensors of a directory whose names have one of `prefixes`, by name. Raises
    `CheckpointError`."""
    found: dict[str, Tensor] = {}
    for path in _shards(directory):
        with _opened(path) as file:
            names = [name for name in file.keys() if name.startswith(prefixes)]  # noqa: SIM118
            found |= {name: file.get_tensor(name) for name in names}
    return found


def _shards(directory: Path) -> list[Path]:
    single, index = directory / "model.safetensors", directory / "model.safetensors.index.json"
    if single.exists():
        return [single]
    if not index.exists():
        raise CheckpointError(f"{directory} holds neither {single.name} nor {index.name}")
    names = read_json(index).get("weight_map")
    if not isinstance(names, dict) or not names:
        raise CheckpointError(f"{index}: weight_map must name the file of each tensor")
    for tensor, name in names.items():
        if not isinstance(name, str) or Path(name).name != name:
            raise CheckpointError(
                f"{index}: weight_map.{tensor} must be the name of a file in the same directory, "
                f"got {shown(name)}"
            )
    shards = sorted(set(names.values()))
    if missing := [name for name in shards if not (directory / name).exists()]:
        raise CheckpointError(f"{index} lists files that are missing: {_listed(missing)}")
    return [directory / name for name in shards]


def _headers(directory: Path) -> tuple[dict[str, _Header], list[str]]:
    """Return the headers of all tensors by name, and the problems with their names."""
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
    """Return the problems: missing and unknown tensors, wrong shapes and types."""
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
    """Load the weights into `model`, which has no data yet."""
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
                _put(path, name, file.get_tensor(name), place, part)
    give(model, filled)


def _put(file: Path, name: str, tensor: Tensor, place: Place, part: Tensor) -> None:
    if place.divisor:
        tensor = 1 / tensor
    if place.shape == () and not tensor.isfinite().all():
        value_name = "one over it" if place.divisor else "it"
        raise CheckpointError(f"{name} cannot be a scale: {value_name} is {tensor.item()}")
    part.copy_(tensor.view(part.shape))
    if not all_finite(part):
        raise CheckpointError(f"{file}: {name} holds NaN or infinity in {part.dtype}")


_E4M3_NAN = 0x7F  # but for the sign; this type has no infinity


def all_finite(tensor: Tensor) -> bool:
    """Return whether all numbers are finite. Reads them once, where they are, and copies none but
    those of eight bits."""
    if tensor.dtype == torch.float8_e4m3fn:
        return not bool((tensor.view(torch.uint8) & _E4M3_NAN == _E4M3_NAN).any())
    if not tensor.is_floating_point() or not tensor.numel():
        return True
    least, most = tensor.aminmax()
    return bool(least.isfinite() & most.isfinite())


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
