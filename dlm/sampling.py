"""What the sampler does with a step's logits: pure functions of tensors, no state.

The reference is transformers' `generation_diffusion_gemma` (EntropyBoundSampler,
LinearTemperatureScheduleLogitsProcessor, StableAndConfidentStoppingCriteria).
"""

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor


def temperature(remaining: int, steps: int, t_min: float, t_max: float) -> float:
    """Linear schedule: `t_max` with all `steps` remaining, toward `t_min` with none.

    Past the last step (`remaining < 1`) it stays where the last step left it.
    """
    return t_min + (t_max - t_min) * max(1, remaining) / steps


def entropy(logits: Float[Tensor, "*B L V"]) -> Float[Tensor, "*B L"]:
    """Nats per position. A forbidden token (-inf) adds nothing."""
    return torch.special.entr(logits.softmax(-1, dtype=torch.float32)).sum(-1)


def accept(entropies: Float[Tensor, "*B L"], bound: float) -> Bool[Tensor, "*B L"]:
    """The surest positions, while all surer ones together cost at most `bound` nats.

    A position's own entropy does not count, so at least one is accepted: this bounds the mutual
    information that sampling them independently ignores (arXiv:2505.24857).
    """
    cost, order = entropies.sort(-1)
    within = cost.cumsum(-1) - cost <= bound
    return torch.zeros_like(within).scatter(-1, order, within)


def draw(logits: Float[Tensor, "N V"], uniform: Float[Tensor, "N"]) -> Int64[Tensor, "N"]:
    """One token per position by inverse transform, from numbers in [0, 1).

    One random number a position, whatever the vocabulary; a forbidden token is never drawn.
    """
    mass = logits.softmax(-1, dtype=torch.float32).cumsum(-1)
    aim = uniform[:, None] * mass[:, -1:]
    drawn = torch.searchsorted(mass, aim, right=True)[:, 0]
    # `uniform` just under 1 can round up to the whole mass, and so behind every token.
    return torch.where(drawn < logits.shape[-1], drawn, logits.argmax(-1))


def renoise(
    noise: Int64[Tensor, "*B L"], accepted: Bool[Tensor, "*B L"], drawn: Int64[Tensor, "N"]
) -> Int64[Tensor, "*B L"]:
    """The next canvas: the `N` drawn tokens at the `N` accepted positions, noise elsewhere."""
    return noise.masked_scatter(accepted, drawn)


def settled(stable: bool, mean_entropy: float, threshold: float) -> bool:
    """A canvas is done when its guess repeats and its mean entropy (nats) is under `threshold`."""
    return stable and mean_entropy < threshold
