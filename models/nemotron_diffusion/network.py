"""Nemotron-Labs-Diffusion's network: a plain decoder, whose drafts an adapter may improve.

It is Ministral 3 with another head. The adapter is a product of low rank beside each `o_proj`. It
is added to the rows of drafts alone: encoded tokens, which verify them, are computed without it.
"""

from dataclasses import dataclass
from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from dlm.models.decoder import DecoderConfig, PlainDecoder, PlainLayer
from dlm.models.shape import LayerConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class LowRank:
    """Product of low rank that is added to the results of a linear layer."""

    down: Float[Tensor, "r inner"]
    up: Float[Tensor, "outer r"]  # times the adapter's scale

    def __call__(self, x: Float[Tensor, "n inner"]) -> Float[Tensor, "n outer"]:
        return F.linear(F.linear(x, self.down), self.up)


class NemotronLayer(PlainLayer):
    adapter: LowRank | None = None  # of `o_proj`, for drafts

    def output(self, attended: Tensor, drafted: Tensor | None) -> Tensor:
        projected = super().output(attended, drafted)
        if drafted is None or self.adapter is None:
            return projected
        return torch.where(drafted, projected + self.adapter(attended), projected)


class NemotronDiffusion(PlainDecoder[DecoderConfig]):
    def layer(self, layer: LayerConfig, mlp: nn.Module) -> NemotronLayer:
        return NemotronLayer(self.config, layer, mlp)

    def adapt_drafts(self, adapters: list[LowRank]) -> None:
        """Use `adapters`, one for each layer, for drafts."""
        for layer, adapter in zip(self.layers, adapters, strict=True):
            cast(NemotronLayer, layer).adapter = adapter
