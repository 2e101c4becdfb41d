"""Modules that families share: norms, an embedding, and linear layers that read the same input."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dlm.kernels.norms import normed

# Queries [..., heads, D], keys and values [..., kv_heads, D] -> [..., heads, D].
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


class RMSNorm(nn.Module):
    """Root-mean-square norm in fp32 (arXiv:1910.07467), with or without a gain."""

    def __init__(self, dim: int, eps: float, gain: bool = True):
        super().__init__()
        self.dim, self.eps = (dim,), eps
        self.weight = nn.Parameter(torch.ones(dim)) if gain else None

    @property
    def gain(self) -> Tensor:
        """Weight of a norm that has one."""
        return self.get_parameter("weight")

    def forward(self, x: Tensor) -> Tensor:
        gain = self.weight
        if x.is_cuda and (gain is None or gain.dtype == x.dtype):  # one fp32 kernel
            return F.rms_norm(x, self.dim, gain, self.eps)
        return normed(x, gain, self.eps)


class CachedAttention(nn.Module):
    """Attention whose keys and values are cached. Their scales are factors for numbers of an fp8
    cache; a file has them only for such a cache."""

    def __init__(self):
        super().__init__()
        self.k_scale = nn.Buffer(torch.ones((), dtype=torch.float32), persistent=False)
        self.v_scale = nn.Buffer(torch.ones((), dtype=torch.float32), persistent=False)


class GatedLinear(nn.Module):
    """Linear layers of an MLP with a gate. A subclass activates the gate."""

    side_by_side = "gate_proj", "up_proj"

    def __init__(self, hidden: int, intermediate: int):
        super().__init__()
        self.gate_proj = nn.Linear(hidden, intermediate, bias=False)
        self.up_proj = nn.Linear(hidden, intermediate, bias=False)
        self.down_proj = nn.Linear(intermediate, hidden, bias=False)


def adjacent(layers: Sequence[nn.Module]) -> Tensor | None:
    """Return the weights of linear layers as one matrix, a view; None unless they are adjacent in
    memory."""
    if not all(isinstance(layer, nn.Linear) for layer in layers):
        return None
    weights = [layer.get_parameter("weight") for layer in layers]
    first = weights[0]
    rows, columns = 0, first.shape[1]
    memory, at = first.untyped_storage().data_ptr(), first.storage_offset()
    for weight in weights:
        here = weight.untyped_storage().data_ptr(), weight.storage_offset()
        if (
            here != (memory, at + rows * columns)
            or weight.shape[1] != columns
            or weight.dtype != first.dtype
            or not weight.is_contiguous()
        ):
            return None
        rows += len(weight)
    return first.as_strided((rows, columns), (columns, 1), at)


def products(x: Tensor, layers: Sequence[nn.Module]) -> tuple[Tensor, ...]:
    """Return the results of linear layers on the same `x`: by one product if weights are
    adjacent."""
    weight = adjacent(layers)
    if weight is None:
        return tuple(layer(x) for layer in layers)
    sizes = [len(layer.get_parameter("weight")) for layer in layers]
    return F.linear(x, weight).split(sizes, dim=-1)


def embedding(V: int, hidden: int) -> nn.Embedding:
    """Return an embedding with random weights. Drawing them on the meta device would import torch's
    compiler, which takes two seconds."""
    weight = torch.empty(V, hidden)
    if not weight.is_meta:
        nn.init.normal_(weight)
    return nn.Embedding.from_pretrained(weight, freeze=False)
