"""Make kernels take tensors on the CPU where there is a GPU: they are sent there and back.

So tests that are written for Triton's interpreter run on hardware as they are. For tests only.
"""

from typing import Any

import pytest
import torch
from torch import Tensor
from triton.runtime.jit import JITFunction

_BLOCK_SCALED = (10, 12)  # majors of the SMs that multiply matrices of four bits
_KERNELS = "_w4a4_kernel", "_gate_up_w4a4_kernel", "_down_w4a4_kernel"  # that need these


def install() -> None:
    """Patch the launches of this process. A second call changes nothing."""
    if hasattr(JITFunction, "_unpatched"):
        return
    launch = JITFunction.run

    def run(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        if self.__name__ in _KERNELS and _major() not in _BLOCK_SCALED:
            pytest.skip("needs block-scaled tensor cores")
        storages = Storages()
        sent = [storages.sent(arg) for arg in args]
        options = {name: storages.sent(option) for name, option in options.items()}
        made = launch(self, *sent, grid=grid, warmup=warmup, **options)
        storages.bring_back()
        return made

    JITFunction._unpatched = launch  # pyright: ignore[reportAttributeAccessIssue]
    JITFunction.run = run


class Storages:
    """The memory of some tensors, copied to a device: tensors that share it share it there."""

    def __init__(self, device: str = "cuda"):
        self._device = device
        self._pairs: dict[int, tuple[Tensor, Tensor]] = {}  # by address: bytes here and there

    def sent(self, value: Any) -> Any:
        """`value` as it is; a tensor on the CPU with its dtype, shape, strides and offset."""
        if not isinstance(value, Tensor) or value.device.type != "cpu":
            return value
        storage = value.untyped_storage()
        if storage.data_ptr() not in self._pairs:
            here = torch.empty(0, dtype=torch.uint8).set_(storage)
            there = torch.empty(len(here), dtype=torch.uint8, device=self._device)
            self._pairs[storage.data_ptr()] = here, there.copy_(here)
        there = self._pairs[storage.data_ptr()][1].untyped_storage()
        made = torch.empty(0, dtype=value.dtype, device=self._device)
        return made.set_(there, value.storage_offset(), value.shape, value.stride())

    def bring_back(self) -> None:
        """Copy the device's results back."""
        for here, there in self._pairs.values():
            here.copy_(there)


def _major() -> int:
    return torch.cuda.get_device_capability()[0]
