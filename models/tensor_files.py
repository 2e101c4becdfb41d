"""Files of tensors in a model directory: `model.safetensors`, or several with an index.

This module does not know what the tensors are for. Headers are read before tensors, and of these
one at a time.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from dlm.models import CheckpointError
from dlm.models.json_files import read_json, shown

SHARD = 5_000_000_000  # maximum bytes of a written file, unless one tensor is larger
_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "U8": torch.uint8,
}
_SHOWN = 8  # names listed in an error before "and N more"


@dataclass(frozen=True, slots=True)
class TensorHeader:
    """Header of a tensor in a file."""

    path: Path
    shape: tuple[int, ...]
    dtype: torch.dtype | str  # a name, if no weight may have this type


def tensors(directory: str | Path) -> Iterator[tuple[str, Tensor]]:
    """Yield every tensor of a directory and its name, one at a time."""
    for path in _shards(Path(directory)):
        with opened(path) as file:
            for name in file.keys():  # noqa: SIM118 (not a dict)
                yield name, file.get_tensor(name)


def read_some(directory: Path, prefixes: tuple[str, ...]) -> dict[str, Tensor]:
    """Return the tensors of a directory whose names have one of `prefixes`, by name. Raises
    `CheckpointError`."""
    found: dict[str, Tensor] = {}
    for path in _shards(directory):
        with opened(path) as file:
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
        raise CheckpointError(f"{index} lists files that are missing: {listed(missing)}")
    return [directory / name for name in shards]


def headers_of(directory: Path) -> tuple[dict[str, TensorHeader], list[str]]:
    """Return the headers of all tensors by name, and the problems with their names."""
    found: dict[str, TensorHeader] = {}
    problems = []
    for path in _shards(directory):
        with opened(path) as file:
            for name in file.keys():  # noqa: SIM118 (not a dict)
                part = file.get_slice(name)
                stored = part.get_dtype()
                dtype = _DTYPES[stored] if stored in _DTYPES else str(stored)
                if name in found:
                    problems.append(f"{name} is there twice")
                found[name] = TensorHeader(path, tuple(part.get_shape()), dtype)
    return found, problems


def write_shards(out: Path, tensors: Iterator[tuple[str, Tensor]]) -> None:
    """Write one `model.safetensors`, or several of limited size with an index."""
    shards: list[list[str]] = []
    shard: dict[str, Tensor] = {}
    total = size = 0

    def flush() -> None:
        shards.append([*shard])
        save_file(shard, out / f"{len(shards)}.part", metadata={"format": "pt"})
        shard.clear()

    for name, tensor in tensors:
        if size + tensor.nbytes > SHARD and shard:
            flush()
            size = 0
        shard[name] = tensor
        size, total = size + tensor.nbytes, total + tensor.nbytes
    flush()
    if len(shards) == 1:
        (out / "1.part").rename(out / "model.safetensors")
        return
    files = [f"model-{i:05}-of-{len(shards):05}.safetensors" for i in range(1, len(shards) + 1)]
    for i, file in enumerate(files, 1):
        (out / f"{i}.part").rename(out / file)
    index = {
        "metadata": {"total_size": total},
        "weight_map": {
            name: file for file, names in zip(files, shards, strict=True) for name in names
        },
    }
    (out / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")


@contextmanager
def opened(path: Path) -> Iterator[Any]:
    try:
        with safe_open(path, "pt") as file:
            yield file
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error


def listed(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return "; ".join(sorted(names)[:_SHOWN]) + more
