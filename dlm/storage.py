"""Loading of a model directory onto a device, as its family does it."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import get_args

import torch

from dlm.config import DecodeConfig
from dlm.errors import DlmError
from dlm.loading import Loading
from dlm.models import CheckpointError, checkpoint
from dlm.models.families import BUILT_IN, family_of
from dlm.models.family import Family, Loaded, LoadOptions
from dlm.models.graphs import Graphs
from dlm.models.json_files import read_json
from dlm.samplers import sampler_of
from dlm.writes import Writes, checkpoint_decoding

KV_TYPES = {
    "fp8": torch.float8_e4m3fn,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp32": torch.float32,
}
"""Types of stored keys and values, by name."""


@dataclass(frozen=True, slots=True)
class Stored:
    """Settings of a model directory, read before any weight."""

    directory: Path
    family: Family
    config: DecodeConfig
    writes: Writes  # how the checkpoint is best decoded


def read_directory(directory: Path | None) -> Stored:
    """Read the settings of a directory; None: of the built-in model. Raises `CheckpointError` or
    `DlmError` for an invalid one."""
    directory = directory or BUILT_IN
    if not directory.is_dir():
        raise DlmError(f"no model directory at {directory}")
    shape, path = read_json(directory / "config.json"), directory / "generation_config.json"
    family, generation = family_of(shape), read_json(path) if path.exists() else {}
    try:
        sampler = sampler_of(*family.sampler(shape, generation))
    except CheckpointError:
        raise
    except DlmError as error:
        raise CheckpointError(f"{path.name}: {error}") from error
    defaults = {"sampler": sampler, "stops": family.stops, "pad": family.pad}
    defaults["excluded"] = family.excluded(shape)
    config = DecodeConfig.from_hf(generation, **defaults)
    return Stored(directory, family, config, checkpoint_decoding(shape, generation))


def load_model(stored: Stored, loading: Loading) -> Loaded:
    """Load the model of a directory, with its vision tower if there is one and images are read, and
    a cache for its slots. Raises the errors of `Engine.load`."""
    device = device_of(loading.device)
    dtype = loading.dtype
    if dtype is None:
        dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
    kept = stored_type(loading.kv, dtype, device)
    if loading.cache_tokens is not None and loading.cache_tokens < 1:
        raise DlmError(f"cache_tokens must be at least 1, got {loading.cache_tokens}")
    if loading.graphs not in get_args(Graphs):
        raise DlmError(f"graphs must be one of {get_args(Graphs)}, got {loading.graphs!r}")
    check_device(device)
    options = LoadOptions(
        device=device,
        dtype=dtype,
        stored=kept,
        slots=loading.slots,
        cache_tokens=loading.cache_tokens,
        graphs=loading.graphs,
        images=loading.policy is None or loading.policy.max_images > 0,
        read=partial(
            checkpoint.load,
            stored.directory,
            dtype,
            device,
            loading.kernels,
            loading.activation_bits,
        ),
    )
    return stored.family.load(stored.directory, options)


def device_of(name: str | torch.device | None) -> torch.device:
    """Return the device of this name; None: a GPU if there is one. Raises `DlmError` for another
    name."""
    try:
        return torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
    except RuntimeError as error:
        raise _missing_device(name) from error


def check_device(device: torch.device) -> None:
    """Raise `DlmError` for a missing device. The exceptions of torch depend on its build."""
    try:
        torch.zeros(1, device=device).item()
    except (AssertionError, NotImplementedError, RuntimeError) as error:
        raise _missing_device(device) from error


def _missing_device(device: str | torch.device | None) -> DlmError:
    return DlmError(
        f"device {str(device)!r} is not available here; use cpu, or cuda where torch finds a GPU"
    )


def stored_type(name: str, dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """Return the type in which a model of `dtype` stores keys and values. Raises `DlmError`."""
    if name != "auto" and name not in KV_TYPES:
        raise DlmError(f"kv must be auto or one of {', '.join(KV_TYPES)}, got {name!r}")
    stored = dtype if name == "auto" else KV_TYPES[name]
    if device.type != "cpu" and dtype != torch.float32 and stored not in (dtype, KV_TYPES["fp8"]):
        raise DlmError(f"kv is {name!r}: on {device.type}, {dtype} takes auto or fp8")
    return stored
