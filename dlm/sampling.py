"""What the sampler decides, from entropies and draws: pure functions of tensors, no state.

The reference is transformers' `generation_diffusion_gemma` (EntropyBoundSampler,
LinearTemperatureScheduleLogitsProcessor, StableAndConfidentStoppingCriteria).
"""

import torch
from jaxtyping import Bool, Float, Float32, Int64
from torch import Tensor

COLDEST = 1e-4  # a temperature under this counts as this one: its inverse is to stay a number


def temperature(remaining: int, steps: int, t_min: float, t_max: float) -> float:
    """Linear schedule: `t_max` with all `steps` remaining, toward `t_min` with none.

    Past the last step (`remaining < 1`) it stays where the last step left it.
    """
    return t_min + (t_max - t_min) * max(1, remaining) / steps


def accept(entropies: Float[Tensor, "*B L"], bound: float) -> Bool[Tensor, "*B L"]:
    """The surest positions, while all surer ones together cost at most `bound` nats.

    A position's own entropy does not count, so at least one is accepted: this bounds the mutual
    information that sampling them independently ignores (arXiv:2505.24857).
    """
    cost, order = entropies.sort(-1)
    within = cost.cumsum(-1) - cost <= bound
    return torch.zeros_like(within).scatter(-1, order, within)


def renoise(noise: Int64[Tensor, "*B L"], kept: Int64[Tensor, "*B L"]) -> Int64[Tensor, "*B L"]:
    """The next canvas: what is drawn and kept, and noise where `kept` is -1."""
    return torch.where(kept < 0, noise, kept)


def sharpen(
    x: Float[Tensor, "n K"], temperatures: Float32[Tensor, " n"], uniform: Float32[Tensor, " n"]
) -> Int64[Tensor, " n"]:
    """One of `K` each, drawn by `uniform` from the softmax of x / temperature.

    x is finite for one of them at least. Temperatures of 0 count as very small ones.
    """
    heat = 1 / temperatures.clamp(min=COLDEST)
    mass = ((x - x.amax(-1, keepdim=True)) * heat[:, None]).softmax(-1).cumsum(-1)
    return (mass <= uniform[:, None] * mass[:, -1:]).sum(-1).clamp(max=x.shape[-1] - 1)


def settled(stable: bool, mean_entropy: float, threshold: float) -> bool:
    """A canvas is done when its guess repeats and its mean entropy (nats) is under `threshold`."""
    return stable and mean_entropy < threshold
