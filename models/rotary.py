"""Rotary embeddings of plain decoders (arXiv:2104.09864): angles of positions, stretched by YaRN
(arXiv:2309.00071), and factors of queries far from the beginning."""

from dataclasses import dataclass
from math import ceil, floor, log, pi

import torch
from jaxtyping import Float32, Int
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Yarn:
    """Stretch of slow angles by `factor`. Its attention factor is 1: a config must have equal
    `mscale` and `mscale_all_dim`."""

    factor: float
    original: int  # positions of the training before the stretch
    beta_fast: float = 32.0  # turns within these from which an angle stays as it is
    beta_slow: float = 1.0  # turns up to which an angle is divided by the whole factor


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryScale:
    """Factor of queries at a position: `1 + beta * log(1 + position // original)` (Llama 4)."""

    beta: float
    original: int  # positions

    def at(self, positions: Int[Tensor, "*n"]) -> Float32[Tensor, "*n"]:
        return 1 + self.beta * torch.log(1 + (positions // self.original).float())


@dataclass(frozen=True, slots=True, kw_only=True)
class RotaryEmbedding:
    """Rotary embedding of all layers. It turns the first `dim` numbers of a head, whose halves are
    pairs; the others stay."""

    theta: float
    dim: int
    yarn: Yarn | None = None
    query_scale: QueryScale | None = None

    def angles(self, positions: Int[Tensor, "*n"]) -> Float32[Tensor, "*n pairs"]:
        pairs = torch.arange(0, self.dim, 2, device=positions.device).float()
        period = self.theta ** (pairs / self.dim)
        frequency = 1.0 / period  # not theta**-x: it rounds
        if self.yarn is not None:
            kept, slow = self._kept(self.yarn, positions.device), 1.0 / (self.yarn.factor * period)
            frequency = slow * (1 - kept) + frequency * kept
        return positions[..., None].float() * frequency

    def _kept(self, yarn: Yarn, device: torch.device) -> Float32[Tensor, " pairs"]:
        """Return for each pair how much of its frequency stays: from 1, fast, to 0, slow."""
        low, high = (
            self.dim * log(yarn.original / (turns * 2 * pi)) / (2 * log(self.theta))
            for turns in (yarn.beta_fast, yarn.beta_slow)
        )
        low, high = max(floor(low), 0), min(ceil(high), self.dim - 1)
        pairs = torch.arange(self.dim // 2, device=device).float()
        return 1 - ((pairs - low) / ((high - low) or 0.001)).clamp(0, 1)
