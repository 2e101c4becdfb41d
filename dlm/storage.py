"""Loading of a checkpoint onto a device: its model, the cache for it, and its vision tower."""

from pathlib import Path
from typing import cast, get_args

import torch

from dlm.errors import DlmError
from dlm.kernels.configurations import tuned_for
from dlm.models import DiffusionGemma, checkpoint, plan
from dlm.models.backends import Kernels
from dlm.models.cache import KVCache
from dlm.models.diffusion_gemma.vision import VisionTower
from dlm.models.graphs import Graphs
from dlm.models.pages import CHUNK

KV_TYPES = {
    "fp8": torch.float8_e4m3fn,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp32": torch.float32,
}
"""Types of stored keys and values, by name."""


def load_model(
    directory: Path,
    *,
    slots: int,
    device: str | torch.device | None,
    dtype: torch.dtype | None,
    kv: str,
    cache_tokens: int | None,
    kernels: Kernels,
    graphs: Graphs,
    activation_bits: int,
    images: bool,
    tuned: Path | None,
) -> tuple[DiffusionGemma, KVCache, VisionTower | None]:
    """Load a checkpoint, with its vision tower if there is one and `images` are read, and make a
    cache for `slots` requests. The other arguments are those of `Engine.load`, which raises the
    same errors."""
    device = device_of(device)
    if dtype is None:
        dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
    stored = stored_type(kv, dtype, device)
    if cache_tokens is not None and cache_tokens < 1:
        raise DlmError(f"cache_tokens is {cache_tokens}: it takes at least 1")
    if graphs not in get_args(Graphs):
        raise DlmError(f"graphs is {graphs!r}: it takes one of {get_args(Graphs)}")
    check_device(device)
    chosen = tuned_for(device, directory, tuned)
    loaded = checkpoint.load(directory, dtype, device, kernels, activation_bits, chosen)
    model = cast(DiffusionGemma, loaded)  # of the one family that there is
    tower = VisionTower.load(directory, model.images, dtype, device) if images else None
    tokens = cache_tokens or plan.free_tokens(model, slots, stored)
    segment = CHUNK if tower is None else max(CHUNK, tower.most_tokens)
    cache = model.new_cache(slots, stored, tokens, segment)
    model.use_graphs(cache, graphs)
    return model, cache, tower


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
        f"device is {str(device)!r}, which there is not: it takes cpu, or cuda where torch finds a "
        "GPU"
    )


def stored_type(name: str, dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """Return the type in which a model of `dtype` stores keys and values. Raises `DlmError`."""
    if name != "auto" and name not in KV_TYPES:
        raise DlmError(f"kv is {name!r}: it takes auto or one of {', '.join(KV_TYPES)}")
    stored = dtype if name == "auto" else KV_TYPES[name]
    if device.type != "cpu" and dtype != torch.float32 and stored not in (dtype, KV_TYPES["fp8"]):
        raise DlmError(f"kv is {name!r}: on {device.type}, {dtype} takes auto or fp8")
    return stored
