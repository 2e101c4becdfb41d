"""The way between the host and the model's device: each copy of a step goes over it, and counts."""

import torch
from torch import Tensor

from dlm.kernels.copies import sent


class Link:
    """To `device`, which may be the host itself: then copies count all the same."""

    def __init__(self, device: torch.device):
        self.device = device
        self.copies = 0

    def to_host(self, tensor: Tensor, computed: bool = False) -> Tensor:
        """One copy, for which the host waits, and, unless `tensor` is known to be `computed`, for
        all that the device was asked before."""
        self.copies += 1
        if computed and tensor.is_cuda:
            with torch.cuda.stream(torch.cuda.Stream(tensor.device)):
                return tensor.cpu()
        return tensor.cpu()

    def to_device(self, *tensors: Tensor) -> list[Tensor]:
        """One copy for all of them."""
        self.copies += 1
        return sent(tensors, self.device)
