"""Where an engine computes, and what its keys and values are stored as."""

import torch

from dlm.errors import DlmError

KV_TYPES = {
    "fp8": torch.float8_e4m3fn,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp32": torch.float32,
}
"""What keys and values may be stored as, by the name that it goes by."""


def device_of(name: str | torch.device | None) -> torch.device:
    """None: a GPU if there is one. Raises `DlmError` for what names no device."""
    try:
        return torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
    except RuntimeError as error:
        raise _absent(name) from error


def check_device(device: torch.device) -> None:
    """Raises `DlmError` for one that there is not. What torch raises goes by how it was built."""
    try:
        torch.zeros(1, device=device).item()
    except (AssertionError, NotImplementedError, RuntimeError) as error:
        raise _absent(device) from error


def _absent(device: str | torch.device | None) -> DlmError:
    return DlmError(
        f"device is {str(device)!r}, which there is not: it takes cpu, or cuda where torch finds a "
        "GPU"
    )


def stored_type(name: str, dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """What keys and values of a model of `dtype` are stored as. Raises `DlmError`."""
    if name != "auto" and name not in KV_TYPES:
        raise DlmError(f"kv is {name!r}: it takes auto or one of {', '.join(KV_TYPES)}")
    stored = dtype if name == "auto" else KV_TYPES[name]
    if device.type != "cpu" and dtype != torch.float32 and stored not in (dtype, KV_TYPES["fp8"]):
        raise DlmError(f"kv is {name!r}: on {device.type}, {dtype} takes auto or fp8")
    return stored
