"""The backend's driver, which launches nothing."""

import torch
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase


class InterpretedDriver(DriverBase):
    """Driver whose device is the CPU."""

    @classmethod
    def is_active(cls):
        return True

    def map_python_to_cpp_type(self, ty):
        return ty

    def get_current_target(self):
        return GPUTarget("cpu", 0, 1)

    def get_active_torch_device(self):
        return torch.device("cpu")

    def get_current_device(self):
        return 0

    def get_current_stream(self, device=None):
        return 0

    def get_device_interface(self):
        return torch.cpu

    def get_benchmarker(self):
        raise RuntimeError("kernels are interpreted here: there is nothing to measure")

    def get_empty_cache_for_benchmark(self):
        raise RuntimeError("kernels are interpreted here: there is nothing to measure")

    def clear_cache(self, cache):
        """Do nothing: there is no cache."""
