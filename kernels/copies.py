"""Copies from the host to a device: one for all of some tensors, which nobody waits for."""

from collections.abc import Iterable

import torch
from torch import Tensor

_ALIGNED = 16  # bytes: kernels are compiled anew for tensors that begin elsewhere


def sent(tensors: Iterable[Tensor], device: torch.device) -> list[Tensor]:
    """Return tensors of the host on `device`, where they are parts of one piece of memory.

    To a GPU it is copied from pinned memory: the host would otherwise wait for all that the device
    has to do.
    """
    tensors = list(tensors)
    sizes = [-(-tensor.nbytes // _ALIGNED) * _ALIGNED for tensor in tensors]
    pinned = device.type == "cuda" and torch.cuda.is_available()  # not while a pass is traced
    joined = torch.empty(sum(sizes), dtype=torch.uint8, device="cpu", pin_memory=pinned)
    memory, begin = joined.numpy(), 0
    for tensor, size in zip(tensors, sizes, strict=True):
        if tensor.numel():  # of an empty one from numpy, strides may be 0
            flat = tensor.contiguous().flatten().view(torch.uint8)
            memory[begin : begin + tensor.nbytes] = flat.numpy()
        begin += size
    pieces = joined.to(device, non_blocking=True).split(sizes)
    return [
        piece[: tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        for piece, tensor in zip(pieces, tensors, strict=True)
    ]
