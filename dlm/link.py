"""The way between the host and the model's device: each copy of a step goes over it, and counts."""

from collections.abc import Sequence

import torch
from torch import Tensor

_ALIGNED = 16  # bytes: kernels are compiled anew for tensors that begin elsewhere


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
        flat = [_bytes(tensor) for tensor in tensors]
        sizes = [-(-len(each) // _ALIGNED) * _ALIGNED for each in flat]
        pinned = self.device.type == "cuda"  # or the host would wait for what the device has to do
        joined = torch.zeros(sum(sizes), dtype=torch.uint8, pin_memory=pinned)
        for each, piece in zip(flat, joined.split(sizes), strict=True):
            piece[: len(each)] = each
        return _views(joined.to(self.device, non_blocking=True), sizes, tensors)


def _bytes(tensor: Tensor) -> Tensor:
    """Return the bytes of `tensor`; of an empty one from numpy, whose stride is 0, none."""
    if not tensor.numel():
        return torch.empty(0, dtype=torch.uint8)
    return tensor.contiguous().flatten().view(torch.uint8)


def _views(joined: Tensor, sizes: list[int], tensors: Sequence[Tensor]) -> list[Tensor]:
    """Pieces of `joined` with the dtypes and shapes of `tensors`."""
    return [
        piece[: tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        for piece, tensor in zip(joined.split(sizes), tensors, strict=True)
    ]
