"""Layers as training runs them: the same maths without looking at the data.

Every expert runs on every token and the router's weights, zero for those not chosen, say what
counts: twice the products of the experts, which are small, and no waiting for counts.
"""

import types

import torch
from torch import Tensor
from torch.nn import functional as F

from dlm.models import DiffusionGemma
from dlm.models.layers import Experts, Layer

VARIANTS = 32  # of a layer: its kind, tokens or canvases, with and without gradient, and shapes


def prepare(model: DiffusionGemma, compiled: bool) -> None:
    """Make the layers of `model` run so, compiled or not; its parameters stay what they are."""
    if compiled:
        torch._dynamo.config.recompile_limit = VARIANTS
    for module in model.modules():
        if isinstance(module, Experts):
            module.forward = types.MethodType(all_experts, module)
        elif isinstance(module, Layer) and compiled:
            module.forward = torch.compile(module.forward, dynamic=True)


def all_experts(experts: Experts, x: Tensor, weight: Tensor, expert: Tensor) -> Tensor:
    """`Experts.forward`: tokens `[N, hidden]`, weights and expert ids `[N, k]`."""
    stack, down = experts.get_parameter("gate_up_proj"), experts.get_parameter("down_proj")
    E, twice, _ = stack.shape
    chosen = torch.zeros(x.shape[0], E, dtype=weight.dtype, device=x.device)
    chosen = chosen.scatter(1, expert, weight)
    gate_up = F.linear(x, stack.flatten(0, 1)).view(-1, E, 2, twice // 2)
    inner = F.gelu(gate_up[:, :, 0], approximate="tanh") * gate_up[:, :, 1]
    inner = inner * chosen[:, :, None].type_as(inner)
    return F.linear(inner.flatten(1), down.permute(1, 0, 2).flatten(1))
