"""Muon in fp32: momentum whose update has singular values near 1 (arXiv:2502.16982).

torch's own computes that update in bf16, which most CPUs emulate: it then takes four fifths of a
step of training.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

MOMENTUM = 0.95
ROUNDS = 5
QUINTIC = (3.4445, -4.775, 2.0315)  # of Newton-Schulz: x to a x + b x^3 + c x^5


class Muon(torch.optim.Optimizer):
    """Optimiser of matrices, with Nesterov momentum and decoupled weight decay."""

    def __init__(self, groups: Iterable[dict[str, Any]], weight_decay: float):
        super().__init__(groups, {"lr": 0.0, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for matrix in group["params"]:
                if matrix.grad is None:
                    continue
                state = self.state[matrix]
                if not state:
                    state["momentum_buffer"] = torch.zeros_like(matrix)
                momentum = state["momentum_buffer"].lerp_(matrix.grad, 1 - MOMENTUM)
                update = orthogonal(matrix.grad.lerp(momentum, MOMENTUM))
                rows, columns = matrix.shape
                matrix.mul_(1 - group["lr"] * group["weight_decay"])
                matrix.sub_(update, alpha=group["lr"] * max(1, rows / columns) ** 0.5)


def orthogonal(matrix: Tensor) -> Tensor:
    """Return a matrix with the same singular vectors and singular values between 0.6 and 1.3."""
    a, b, c = QUINTIC
    tall = len(matrix) > matrix.shape[1]
    x = matrix.mT if tall else matrix
    x = x / x.norm().clamp(min=1e-7)
    for _ in range(ROUNDS):
        gram = x @ x.mT
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x
