"""How the weights begin, what moves them, and how fast."""

import torch

from dlm.models import DiffusionGemma, ModelConfig

RISE = 100  # steps up to the peak rate
COPIED = (
    500,
    1100,
)  # steps until which there is little but plain copying, and after which there is none


def initialised(config: ModelConfig) -> DiffusionGemma:
    """Random weights. Query and key gains start low: attention's scale is 1, and at a gain of 1
    its softmax saturates."""
    model = DiffusionGemma(config)
    for name, parameter in model.named_parameters():
        if name.endswith(("q_norm.weight", "k_norm.weight")):
            torch.nn.init.constant_(parameter, parameter.numel() ** -0.25)
        elif parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.02)
    return model


def optimisers(model: DiffusionGemma) -> list[torch.optim.Optimizer]:
    """Muon for the matrices between layers (arXiv:2502.16982), AdamW for all the rest."""
    matrices, rest, gains = [], [], []
    for name, parameter in model.named_parameters():
        if parameter.dim() < 2:
            gains.append(parameter)
        elif parameter.dim() == 2 and "embed" not in name and "router" not in name:
            matrices.append(parameter)
        else:
            rest.append(parameter)
    return [
        torch.optim.Muon([{"params": matrices, "peak": 0.02}], weight_decay=0.01),
        torch.optim.AdamW(
            [{"params": rest, "peak": 4e-3}, {"params": gains, "peak": 4e-3, "weight_decay": 0.0}],
            betas=(0.9, 0.98),
            weight_decay=0.01,
        ),
    ]


def rate(step: int, done: float) -> float:
    """Share of the peak rate where a share `done` of the budget, in steps or minutes, is spent.

    It falls to nothing along a line (arXiv:2502.15938).
    """
    return min((step + 1) / RISE, max(0.01, 1 - done))


def copying(step: int) -> float:
    """Share of plain copying, which teaches to look values up; later tasks bring it along."""
    first, last = COPIED
    return 0.9 * min(1.0, max(0.0, (last - step) / (last - first)))
