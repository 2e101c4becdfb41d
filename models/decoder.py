"""Plain decoder that families share: pre-norm layers of grouped-query attention and an MLP.

Encoded tokens are causal (or in whole blocks, as the config caches them), canvases bidirectional.
A family chooses norms of queries and keys, the rotary embedding, a tied or separate head, and the
MLP of each layer. Logits of a position of a canvas predict that position; logits of an encoded
token predict the next one. `forward` of a module is plain torch, except for products and attention;
`by_kernels` computes the same, up to rounding, with Triton kernels between products. It knows no
file.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeVar, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from dlm.kernels.norms import LayerOutput, gated
from dlm.kernels.residual import add_and_norm
from dlm.kernels.rotary import rotate_and_scale, turned
from dlm.models.decoder_costs import DecoderCosts
from dlm.models.modules import Attend, CachedAttention, GatedLinear, RMSNorm, embedding, products
from dlm.models.packed_stack import PackedStack
from dlm.models.rotary import RotaryEmbedding
from dlm.models.shape import LayerConfig, ModelShape

# Operations that kernels may compute.
OPERATIONS = "experts", "nvfp4", "attention", "layers", "vocabulary"


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderConfig(ModelShape):
    """Geometry of a plain decoder. Every number comes from the checkpoint."""

    intermediate_size: int  # of a dense MLP
    rotary: RotaryEmbedding
    eps: float  # added to the mean square in every RMSNorm
    qk_norm: bool = False  # whether each head of queries and keys is normed
    tied: bool = False  # whether the embedding is also the head


class MLPOutput(NamedTuple):
    """Result of an MLP as kernels add it to the residual: the sum of both."""

    result: Float[Tensor, "n hidden"] | None = None
    choices: Float[Tensor, "n k hidden"] | None = None  # results of each token's experts


class MLPByKernels(Protocol):
    """MLP of a layer, which maps `[n, hidden]` to the same."""

    def output_by_kernels(self, x: Tensor) -> MLPOutput:
        """Return the result of the MLP, up to rounding."""
        ...


class SiluMLP(GatedLinear):
    """MLP whose gate is activated by SiLU."""

    def forward(self, x: Tensor) -> Tensor:
        gate, up = products(x, [self.gate_proj, self.up_proj])
        return self.down_proj(F.silu(gate) * up)

    def by_kernels(self, x: Tensor) -> Tensor:
        gate, up = products(x, [self.gate_proj, self.up_proj])
        return self.down_proj(gated(gate, up, "silu", by_kernel=True))

    def output_by_kernels(self, x: Tensor) -> MLPOutput:
        return MLPOutput(result=self.by_kernels(x))


class PlainAttention(CachedAttention):
    """Projections around attention. Queries get its scale, `head_dim ** -0.5`, when they are
    rotated."""

    side_by_side = "q_proj", "k_proj", "v_proj"

    def __init__(self, config: DecoderConfig, layer: LayerConfig):
        super().__init__()
        hidden, D = config.hidden_size, layer.head_dim
        self.head_dim = D
        self.q_proj = nn.Linear(hidden, config.heads * D, bias=False)
        self.k_proj = nn.Linear(hidden, layer.kv_heads * D, bias=False)
        self.v_proj = nn.Linear(hidden, layer.kv_heads * D, bias=False)
        self.o_proj = nn.Linear(config.heads * D, hidden, bias=False)
        self.q_norm = RMSNorm(D, config.eps) if config.qk_norm else None
        self.k_norm = RMSNorm(D, config.eps) if config.qk_norm else None

    def forward(
        self, x: Tensor, cos: Tensor, sin: Tensor, query_scale: Tensor, attend: Attend
    ) -> Tensor:
        """Return the results of attention before `o_proj`, `[n, heads * D]`."""
        q, k, v = self._projected(x)
        q = q if self.q_norm is None else self.q_norm(q)
        k = k if self.k_norm is None else self.k_norm(k)
        q = (turned(q, cos, sin) * query_scale).type_as(x)
        return attend(q, turned(k, cos, sin).type_as(x), v.contiguous()).flatten(-2)

    def by_kernels(
        self, x: Tensor, cos: Tensor, sin: Tensor, query_scale: Tensor, attend: Attend
    ) -> Tensor:
        """Return what `forward` returns, for `[n, hidden]`."""
        gains, eps = None, 0.0
        if self.q_norm is not None and self.k_norm is not None:
            gains, eps = (self.q_norm.gain, self.k_norm.gain), self.q_norm.eps
        angles = cos, sin, query_scale
        heads = rotate_and_scale(*self._projected(x), gains, *angles, eps, by_kernel=True)
        return attend(*heads).flatten(-2)

    def _projected(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values, in heads."""
        q, k, v = (
            each.unflatten(-1, (-1, self.head_dim))
            for each in products(x, [self.q_proj, self.k_proj, self.v_proj])
        )
        return q, k, v


class PlainLayer(nn.Module):
    def __init__(self, config: DecoderConfig, layer: LayerConfig, mlp: nn.Module):
        super().__init__()
        self.self_attn = PlainAttention(config, layer)
        self.mlp = mlp
        self.input_layernorm = RMSNorm(config.hidden_size, config.eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.eps)

    def forward(
        self,
        x: Tensor,
        cos: Tensor,
        sin: Tensor,
        query_scale: Tensor,
        attend: Attend,
        drafted: Tensor | None,
    ) -> Tensor:
        attended = self.self_attn(self.input_layernorm(x), cos, sin, query_scale, attend)
        x = x + self.output(attended, drafted)
        return x + self.mlp(self.post_attention_layernorm(x))

    def by_kernels(
        self,
        x: Tensor,
        normed: Tensor,
        cos: Tensor,
        sin: Tensor,
        query_scale: Tensor,
        attend: Attend,
        drafted: Tensor | None,
        following: RMSNorm,
    ) -> LayerOutput:
        """Return the result of `forward`, and its norm by `following`. `normed` is the norm of `x`
        by `input_layernorm`; both are `[n, hidden]`."""
        attended = self.self_attn.by_kernels(normed, cos, sin, query_scale, attend)
        norm = self.post_attention_layernorm
        added = self.output(attended, drafted)
        x, normed = add_and_norm(x, added, None, norm.gain, norm.eps, by_kernel=True)
        output = cast(MLPByKernels, self.mlp).output_by_kernels(normed)
        return add_and_norm(x, *output, following.gain, following.eps, by_kernel=True)

    def output(self, attended: Tensor, drafted: Tensor | None) -> Tensor:
        """Project the results of attention. `drafted` marks the rows of drafts, `[n, 1]`; None:
        there are none."""
        return self.self_attn.o_proj(attended)


D = TypeVar("D", bound=DecoderConfig)


def dense(config: DecoderConfig, index: int) -> nn.Module:
    """Return the MLP of a layer without experts."""
    return SiluMLP(config.hidden_size, config.intermediate_size)


class PlainDecoder(PackedStack[D]):
    """Plain decoder. A subclass may have other layers."""

    def __init__(self, config: D, mlp: Callable[[D, int], nn.Module] = dense):
        """`mlp` returns the MLP of each layer, by its index: a module with the methods of
        `MLPByKernels`."""
        super().__init__(config, OPERATIONS)
        self.embed_tokens = embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(
            self.layer(layer, mlp(config, i)) for i, layer in enumerate(config.layers)
        )
        self.norm = RMSNorm(config.hidden_size, config.eps)
        self.lm_head = None
        if not config.tied:
            self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def layer(self, layer: LayerConfig, mlp: nn.Module) -> PlainLayer:
        """Return a new layer."""
        return PlainLayer(self.config, layer, mlp)

    @property
    def costs(self) -> DecoderCosts:
        return DecoderCosts(self, self.config)

    @property
    def softcap(self) -> None:
        return None

    def embed(self, tokens: Int[Tensor, "*batch"]) -> Float[Tensor, "*batch hidden"]:
        return self.embed_tokens(tokens)

    def canvas_embeddings(
        self,
        canvas: Int[Tensor, "B L"],
        soft_embedding: Float[Tensor, "B L hidden"] | None,
    ) -> Float[Tensor, "B L hidden"]:
        """Return the embeddings of canvases. Raises `ValueError` for soft embeddings."""
        if soft_embedding is not None:
            raise ValueError("a plain decoder reads no soft embeddings")
        return self.embed(canvas)

    def logits(self, states: Float[Tensor, "*batch hidden"]) -> Float[Tensor, "*batch V"]:
        head = self.embed_tokens if self.lm_head is None else self.lm_head
        return F.linear(states, head.get_parameter("weight"))

    def run_pass(
        self,
        x: Float[Tensor, "n hidden"],
        positions: Int[Tensor, " n"],
        attends: Sequence[Attend],
        encoded: Bool[Tensor, "n 1"],
        drafting: bool,
    ) -> Float[Tensor, "n hidden"]:
        rotary = self.config.rotary
        angles = rotary.angles(positions)[:, None]
        angles = torch.cat((angles, angles), dim=-1)
        cos, sin = angles.cos(), angles.sin()
        (head_dim,) = {layer.head_dim for layer in self.config.layers}
        scale = torch.full((len(x), 1, 1), head_dim**-0.5, device=x.device)
        if rotary.query_scale is not None:
            scale = scale * rotary.query_scale.at(positions)[:, None, None]
        drafted = ~encoded if drafting else None
        layers = cast(Sequence[PlainLayer], self.layers)
        if self.backends["layers"] == "torch":
            for layer, attend in zip(layers, attends, strict=True):
                x = layer(x, cos, sin, scale, attend, drafted)
            return self.norm(x)
        norms = [*(layer.input_layernorm for layer in layers), self.norm]
        normed = norms[0](x)
        for layer, attend, norm in zip(layers, attends, norms[1:], strict=True):
            x, normed = layer.by_kernels(x, normed, cos, sin, scale, attend, drafted, norm)
        return normed
