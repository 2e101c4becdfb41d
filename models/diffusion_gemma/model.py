"""DiffusionGemma's text stack: one set of weights, causal to encode and bidirectional to denoise.

Only attention distinguishes the segments of a pass, and only the layers' scalars distinguish
encoding from denoising. The reference is transformers' `DiffusionGemmaForBlockDiffusion`.
"""

from collections.abc import Sequence
from typing import cast

import torch
from jaxtyping import Bool, Float, Float32, Int
from torch import Tensor, nn
from torch.nn import functional as F

from dlm.kernels.expectation import Distributions
from dlm.models.diffusion_gemma.config import ModelConfig
from dlm.models.diffusion_gemma.costs import NetworkCosts
from dlm.models.diffusion_gemma.layers import Layer, SelfConditioning, rotary_angles
from dlm.models.modules import Attend, RMSNorm, embedding
from dlm.models.packed_stack import PackedStack
from dlm.models.shape import LayerType

_OPERATIONS = "experts", "attention", "layers", "vocabulary"  # operations that kernels may compute


class DiffusionGemma(PackedStack[ModelConfig]):
    def __init__(self, config: ModelConfig):
        super().__init__(config, _OPERATIONS)
        self.embed_tokens = embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config, layer) for layer in config.layers)
        self.norm = RMSNorm(config.hidden_size, config.eps)
        self.self_conditioning = SelfConditioning(config)

    @property
    def costs(self) -> NetworkCosts:
        return NetworkCosts(self, self.config)

    @property
    def softcap(self) -> float:
        return self.config.softcap

    def no_soft_embedding(self) -> Float[Tensor, "L hidden"]:
        """Return the soft embedding of a canvas's first step: zeros."""
        shape = self.canvas_length, self.config.hidden_size
        return torch.zeros(shape, dtype=self.dtype, device=self.device)

    def canvas_embeddings(
        self,
        canvas: Int[Tensor, "B L"],
        soft_embedding: Float[Tensor, "B L hidden"] | None,
    ) -> Float[Tensor, "B L hidden"]:
        """Return what the layers read of canvases. Raises `ValueError` without soft embeddings."""
        if soft_embedding is None:
            raise ValueError("a DiffusionGemma reads soft embeddings, zeros at a first step")
        return self.self_conditioning(self.embed(canvas), soft_embedding)

    def embed(self, tokens: Int[Tensor, "*batch"]) -> Float[Tensor, "*batch hidden"]:
        """Return embeddings of token ids, scaled by sqrt(hidden) rounded to the dtype."""
        return self._scaled(self.embed_tokens(tokens))

    def expected_embedding(self, distributions: Distributions) -> Float[Tensor, "n hidden"]:
        """Return the embeddings expected under distributions of tokens. These are carried between
        steps instead of `[L, V]` probabilities per slot."""
        return self._scaled(distributions.expected(self.embed_tokens.weight))

    def soft_embedding(
        self, probabilities: Float[Tensor, "*batch V"]
    ) -> Float[Tensor, "*batch hidden"]:
        """Return the embeddings expected under given probabilities."""
        weight = self.embed_tokens.weight
        return self._scaled(probabilities.type_as(weight) @ weight)

    def logits(self, states: Float[Tensor, "*batch hidden"]) -> Float[Tensor, "*batch V"]:
        """Return logits of normed states, before the softcap."""
        return F.linear(states, self.embed_tokens.weight)

    def softcapped(self, logits: Float[Tensor, "*batch V"]) -> Float32[Tensor, "*batch V"]:
        cap = self.config.softcap
        return torch.tanh(logits.float() / cap) * cap

    def run_pass(
        self,
        x: Float[Tensor, "n hidden"],
        positions: Int[Tensor, " n"],
        attends: Sequence[Attend],
        encoded: Bool[Tensor, "n 1"],
        drafting: bool,
    ) -> Float[Tensor, "n hidden"]:
        return self.run_layers(x, positions, attends, self.scalars(encoded))

    def run_layers(
        self,
        x: Float[Tensor, "*batch hidden"],
        positions: Int[Tensor, "*batch"],
        attends: Sequence[Attend],
        scalars: Sequence[Tensor],
    ) -> Float[Tensor, "*batch hidden"]:
        """Run all layers and the last norm, with one attention and one scalar per layer."""
        kinds: dict[LayerType, int] = {c.kind: c.head_dim for c in self.config.layers}
        angles = {
            kind: rotary_angles(self.config.rotary[kind], head_dim, positions)
            for kind, head_dim in kinds.items()
        }
        layers = cast(Sequence[Layer], self.layers)
        each = zip(layers, self.config.layers, attends, scalars, strict=True)
        if self.backends["layers"] == "triton" and x.dim() == 2:
            norms = [*(layer.input_layernorm for layer in layers), self.norm]
            normed = norms[0](x)
            for (layer, c, attend, scalar), norm in zip(each, norms[1:], strict=True):
                x, normed = layer.by_kernels(x, normed, *angles[c.kind], attend, scalar, norm)
            return normed
        for layer, c, attend, scalar in each:
            x = layer(x, *angles[c.kind], attend, scalar)
        return self.norm(x)

    def _scaled(self, embedding: Tensor) -> Tensor:
        scale = torch.tensor(self.config.hidden_size**0.5, dtype=embedding.dtype, device="cpu")
        return embedding * scale.item()

    def scalars(self, encoded: Bool[Tensor, "n 1"]) -> list[Float[Tensor, "n 1"]]:
        """Return the factor of each layer's output, for `encoded` tokens and for those of canvases:
        the only difference between encoder and decoder."""
        encoder, decoder = (
            torch.stack([layer.get_buffer(name) for layer in self.layers])[:, None]
            for name in ("encoder_scalar", "layer_scalar")
        )
        return [*torch.where(encoded, encoder, decoder)]
