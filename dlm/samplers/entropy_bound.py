"""Entropy bound: noisy canvases, of which a pass accepts the surest positions and noises the rest.

Its reference is transformers' EntropyBoundSampler, LinearTemperatureScheduleLogitsProcessor and
StableAndConfidentStoppingCriteria.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from dlm.errors import DlmError
from dlm.grammar import Guidance
from dlm.logits.distributions import TokenDistributions
from dlm.numbers import is_number
from dlm.samplers.sampler import Passes


@dataclass(frozen=True, slots=True, kw_only=True)
class EntropyBound:
    """Settings of the sampler; defaults are those of transformers. Raises `DlmError` for impossible
    values."""

    max_steps: int = 48  # passes per canvas before positions are pinned one after another
    entropy_bound: float = 0.1  # nats that a step may accept together (arXiv:2505.24857)
    t_min: float = 0.4  # temperature approached at the last step
    t_max: float = 0.8  # temperature of the first step
    confidence: float = 0.005  # mean nats per position below which a repeated guess is settled

    def __post_init__(self) -> None:
        if not is_number(self.max_steps, int) or self.max_steps < 1:
            raise DlmError(f"max_steps must be at least 1, got {self.max_steps!r:.40}")
        for name in ("entropy_bound", "confidence"):
            if not is_number(getattr(self, name)) or not getattr(self, name) > 0:
                raise DlmError(f"{name} must be more than 0 nats, got {getattr(self, name)!r:.40}")
        for name in ("t_min", "t_max"):
            if not is_number(getattr(self, name)):
                raise DlmError(f"{name} must be a finite number, got {getattr(self, name)!r:.40}")
        if not 0 < self.t_min <= self.t_max:
            raise DlmError(
                f"t_min and t_max must satisfy 0 < t_min <= t_max, got {self.t_min} and "
                f"{self.t_max}"
            )

    @property
    def carries(self) -> bool:
        return True

    @property
    def mask(self) -> None:
        return None

    @property
    def edit_threshold(self) -> None:
        return None

    def start(self, rng: torch.Generator, length: int, vocab_size: int) -> Int64[Tensor, " L"]:
        """Return uniform noise."""
        return torch.randint(vocab_size, (length,), generator=rng, device=rng.device)

    def temperature(self, step: int) -> float:
        """Return the temperature of a linear schedule, from `t_max` toward `t_min`. It stays
        constant from the last step on."""
        remaining = max(1, self.max_steps - step)
        return self.t_min + (self.t_max - self.t_min) * remaining / self.max_steps

    def accept(self, rows: TokenDistributions, free: Bool[Tensor, "B L"]) -> Bool[Tensor, "B L"]:
        return surest(rows.entropies, self.entropy_bound)

    def next(
        self,
        tokens: Int64[Tensor, "B L"],
        kept: Int64[Tensor, "B L"],
        rngs: Sequence[torch.Generator | None],
        vocab_size: int,
    ) -> Int64[Tensor, "B L"]:
        """Return the kept tokens, and new noise elsewhere."""
        noise = torch.empty_like(kept)
        for row, rng in zip(noise, rngs, strict=True):
            if rng is not None:
                torch.randint(vocab_size, row.shape, generator=rng, out=row)
        return torch.where(kept < 0, noise, kept)

    def settled(self, passes: Passes, guidance: Guidance, entropy: float) -> bool:
        """Whether the guess repeats and is confident."""
        return passes.stable and entropy < self.confidence


def surest(entropies: Float[Tensor, "*B L"], bound: float) -> Bool[Tensor, "*B L"]:
    """Return the surest positions, while all surer ones together have at most `bound` nats. A
    position's own entropy does not count, so at least one is accepted. This bounds the mutual
    information that independent sampling ignores (arXiv:2505.24857)."""
    cost, order = entropies.sort(-1)
    within = cost.cumsum(-1) - cost <= bound
    return torch.zeros_like(within).scatter(-1, order, within)
