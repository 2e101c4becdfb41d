"""A step of decoding, as training takes it: what the engine makes of logits where nothing is asked.

The temperature is any that the schedule passes through, for each canvas another.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float, Float32, Int64
from torch import Tensor

from dlm import DecodeConfig
from dlm.logits import sampling


def step_of(config: DecodeConfig) -> Callable[[Tensor, torch.Generator], tuple[Tensor, Tensor]]:
    def step(
        logits: Float[Tensor, "*B L V"], rng: torch.Generator
    ) -> tuple[Int64[Tensor, "*B L"], Float32[Tensor, "*B L V"]]:
        """The next canvases, and what was drawn from."""
        *canvases, _, V = logits.shape
        heat = torch.rand(*canvases, 1, 1, generator=rng, device=logits.device)
        heat = config.t_min + (config.t_max - config.t_min) * heat
        log = (logits.float() / heat).log_softmax(-1)
        probabilities = log.exp()
        accepted = sampling.accept(-(probabilities * log).sum(-1), config.entropy_bound)
        noise = torch.randint(V, accepted.shape, generator=rng, device=logits.device)
        rows = log[accepted]
        uniform = torch.rand(len(rows), generator=rng, device=logits.device)
        drawn = sampling.sharpen(rows, torch.ones_like(uniform), uniform)
        return noise.masked_scatter(accepted, drawn), probabilities

    return step
