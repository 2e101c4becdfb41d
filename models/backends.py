"""Choice of a Triton kernel or plain torch for each operation, made once, when a model is loaded.

A backend that is requested and cannot run is refused; there is no silent fallback.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

import torch
import triton
from triton import knobs

from dlm.kernels.configurations import HEADS
from dlm.kernels.gpus import capability, dotted, four_bit_obstacle
from dlm.models import BackendError

Backend = Literal["triton", "torch"]
Kernels = Literal["auto", "triton", "torch"]

_OLDEST_SM = (8, 0)
_OLDEST_TRITON = (3, 6)
_GROUP = 64  # numbers of a row that kernels decode at a time
_HEAD_DIMS = {D for D, _ in HEADS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Dispatch:
    """Device of a model and the requested backends. Raises `BackendError` for invalid requests."""

    device: torch.device = torch.device("cpu")  # noqa: RUF009  # it cannot change
    dtype: torch.dtype = torch.float32  # of activations and of weights that are not quantised
    kernels: Kernels = "auto"  # "auto": on GPUs, wherever they can run
    activation_bits: int = 16  # or 4: quantised for products with NVFP4 matrices

    def __post_init__(self) -> None:
        if self.kernels not in get_args(Kernels):
            raise BackendError(f"kernels must be one of {get_args(Kernels)}, got {self.kernels!r}")
        if self.activation_bits not in (4, 16):
            raise BackendError(f"activation_bits must be 4 or 16, got {self.activation_bits!r}")

    def backends(
        self, rows: Mapping[str, Collection[int]], head_dims: Collection[int]
    ) -> dict[str, Backend]:
        """Return the backend of each operation. `rows` are the row lengths of the weights in each
        kind of product; `head_dims` are those of attention."""
        why, by_shape = self._obstacle(), shape_obstacles(rows, head_dims)
        obstacles = {name: why or by_shape.get(name) for name in (*rows, "attention", "layers")}
        obstacles["vocabulary"] = device_obstacle(self.device)
        found = [f"{name}: {why}" for name, why in obstacles.items() if why is not None]
        if self.kernels == "triton" and found:
            raise BackendError(f"kernels='triton' cannot run here: {'; '.join(found)}")
        kernels = self.kernels == "triton" or (self.kernels == "auto" and self.device.type != "cpu")
        chosen: dict[str, Backend] = {
            name: "triton" if kernels and why is None else "torch"
            for name, why in obstacles.items()
        }
        why = four_bit_obstacle(self.device)
        if self.activation_bits == 4 and kernels and why is not None:
            raise BackendError(f"activation_bits=4 {why}")
        return chosen

    def _obstacle(self) -> str | None:
        """Return why no kernel can run; None if kernels can."""
        if (why := device_obstacle(self.device)) is not None:
            return why
        if self.dtype not in (torch.bfloat16, torch.float16):
            return f"activations are {self.dtype}, and kernels take bfloat16 or float16"
        return None


def shape_obstacles(
    rows: Mapping[str, Collection[int]], head_dims: Collection[int]
) -> dict[str, str]:
    """Return why kernels cannot run operations of a model on any device, by operation; `rows` and
    `head_dims` are as in `Dispatch.backends`."""
    obstacles = {name: _rows_obstacle(sizes) for name, sizes in rows.items()}
    obstacles["attention"] = _heads_obstacle(head_dims)
    return {name: why for name, why in obstacles.items() if why is not None}


def _rows_obstacle(sizes: Collection[int]) -> str | None:
    """Return why kernels cannot compute products with rows of these sizes; None if they can."""
    odd = [size for size in sizes if size % _GROUP]
    return f"rows of {odd[0]} numbers are no multiple of {_GROUP}" if odd else None


def _heads_obstacle(head_dims: Collection[int]) -> str | None:
    odd = sorted({*head_dims} - _HEAD_DIMS)
    return f"heads of {odd[0]} numbers are none of {sorted(_HEAD_DIMS)}" if odd else None


def device_obstacle(device: torch.device) -> str | None:
    """Return why `device` runs no kernel; None if it does. A CPU runs them if Triton interprets
    them."""
    version = tuple(int(part) for part in triton.__version__.split(".")[:2])
    if version < _OLDEST_TRITON:
        return f"Triton is {triton.__version__}, older than {dotted(_OLDEST_TRITON)}"
    if device.type == "cpu":
        return None if knobs.runtime.interpret else "there is no GPU, and no TRITON_INTERPRET=1"
    if (sm := capability(device)) is None:
        return f"{device.type} is no CUDA device"
    return f"SM {dotted(sm)} is older than {dotted(_OLDEST_SM)}" if sm < _OLDEST_SM else None


def padded(size: int) -> int:
    """Return the smallest multiple of a kernel's group that is `size` or more."""
    return -(-size // _GROUP) * _GROUP
