"""Modules of a DiffusionGemma layer. They know no cache and no mask: attention is passed in.

Tensors are `[..., hidden]`: the model packs the tokens of all slots into one axis, training keeps
batch and length apart. `forward` is plain torch except for the experts. `by_kernels` computes the
same, up to rounding, for `[N, hidden]` only: Triton kernels do everything between matrix products.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dlm.kernels.norms import (
    AttentionGains,
    LayerGains,
    LayerOutput,
    add_attention,
    end_layer,
    gated,
)
from dlm.kernels.rotary import norm_and_rotate, rotated
from dlm.kernels.routing import choose
from dlm.models.diffusion_gemma.config import ModelConfig, Rotary
from dlm.models.experts import Experts
from dlm.models.modules import Attend, CachedAttention, GatedLinear, RMSNorm, products
from dlm.models.shape import LayerConfig


def rotary_angles(rotary: Rotary, head_dim: int, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Return cosines and sines `[..., 1, head_dim]` in fp32 for `positions [...]`."""
    pairs = head_dim // 2
    exponent = torch.arange(pairs, device=positions.device) * (2 / head_dim)
    turns = torch.arange(pairs, device=positions.device) < int(rotary.fraction * pairs)
    frequency = torch.where(turns, 1.0 / rotary.theta**exponent, 0.0)  # not theta**-x: it rounds
    frequency /= rotary.factor
    angle = positions[..., None, None].float() * frequency
    angle = torch.cat((angle, angle), dim=-1)
    return angle.cos(), angle.sin()


class Attention(CachedAttention):
    """Projections and norms around attention whose scale is 1, since queries and keys are normed. A
    full layer has no value projection: its values are the keys before norm and rotation."""

    def __init__(self, config: ModelConfig, layer: LayerConfig):
        super().__init__()
        hidden, D = config.hidden_size, layer.head_dim
        self.head_dim = D
        self.q_proj = nn.Linear(hidden, config.heads * D, bias=False)
        self.k_proj = nn.Linear(hidden, layer.kv_heads * D, bias=False)
        sliding = layer.kind == "sliding_attention"
        self.v_proj = nn.Linear(hidden, layer.kv_heads * D, bias=False) if sliding else None
        self.o_proj = nn.Linear(config.heads * D, hidden, bias=False)
        self.q_norm = RMSNorm(D, config.eps)
        self.k_norm = RMSNorm(D, config.eps)
        self.v_norm = RMSNorm(D, config.eps, gain=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, attend: Attend) -> Tensor:
        heads = (*x.shape[:-1], -1, self.head_dim)
        k = self.k_proj(x).view(heads)
        v = k if self.v_proj is None else self.v_proj(x).view(heads)
        q = rotated(self.q_norm(self.q_proj(x).view(heads)), cos, sin)
        k = rotated(self.k_norm(k), cos, sin)
        return self.o_proj(attend(q, k, self.v_norm(v)).flatten(-2))

    @property
    def side_by_side(self) -> list[str]:
        """Names of the linear layers that read the same input."""
        return ["q_proj", "k_proj"] + ["v_proj"] * (self.v_proj is not None)

    def by_kernels(self, x: Tensor, cos: Tensor, sin: Tensor, attend: Attend) -> Tensor:
        q, k, *rest = (
            each.unflatten(-1, (-1, self.head_dim))
            for each in products(x, [self.get_submodule(name) for name in self.side_by_side])
        )
        v, gains = rest[0] if rest else k, (self.q_norm.gain, self.k_norm.gain)
        heads = norm_and_rotate(q, k, v, *gains, cos, sin, self.q_norm.eps, by_kernel=True)
        return self.o_proj(attend(*heads).flatten(-2))


class GatedMLP(GatedLinear):
    """MLP whose gate is activated by GELU."""

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.gelu(self.gate_proj(x), approximate="tanh") * self.up_proj(x))

    def by_kernels(self, x: Tensor) -> Tensor:
        gate, up = products(x, [self.gate_proj, self.up_proj])
        return self.down_proj(gated(gate, up, by_kernel=True))


class Router(nn.Module):
    """Router to experts: softmax over all of them in fp32, top k, renormalised, scaled."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.k = config.experts_per_token
        self.norm = RMSNorm(config.hidden_size, config.eps, gain=False)
        self.proj = nn.Linear(config.hidden_size, config.experts, bias=False)
        self.scale = nn.Parameter(torch.ones(config.hidden_size))
        self.per_expert_scale = nn.Parameter(torch.ones(config.experts))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return weights (fp32) and expert ids, both `[N, k]`, for tokens `[N, hidden]`."""
        scores = self.proj(self.norm(x) * self.scale * self.scale.numel() ** -0.5)
        weight, expert = scores.softmax(dim=-1, dtype=torch.float32).topk(self.k, dim=-1)
        weight = weight / weight.sum(dim=-1, keepdim=True)
        return weight * self.per_expert_scale[expert], expert

    def by_kernels(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return what `forward` returns, for an `x` that is normed and scaled already."""
        return choose(self.proj(x), self.per_expert_scale, self.k, by_kernel=True)


class Layer(nn.Module):
    """Layer of attention, then a dense MLP and routed experts in parallel on the same residual.
    `scalar` multiplies the result: encoder and decoder share all weights but this one."""

    def __init__(self, config: ModelConfig, layer: LayerConfig):
        super().__init__()
        hidden, eps = config.hidden_size, config.eps
        self.self_attn = Attention(config, layer)
        self.mlp = GatedMLP(hidden, config.intermediate_size)
        self.router = Router(config)
        self.experts = Experts(config.experts, hidden, config.expert_size)
        self.input_layernorm = RMSNorm(hidden, eps)
        self.post_attention_layernorm = RMSNorm(hidden, eps)
        self.pre_feedforward_layernorm = RMSNorm(hidden, eps)
        self.post_feedforward_layernorm = RMSNorm(hidden, eps)
        self.post_feedforward_layernorm_1 = RMSNorm(hidden, eps)
        self.post_feedforward_layernorm_2 = RMSNorm(hidden, eps)
        self.pre_feedforward_layernorm_2 = RMSNorm(hidden, eps)
        self.layer_scalar = nn.Buffer(torch.ones(1))  # the decoder's
        self.encoder_scalar = nn.Buffer(torch.ones(1))

    def forward(
        self, x: Tensor, cos: Tensor, sin: Tensor, attend: Attend, scalar: Tensor
    ) -> Tensor:
        attended = self.self_attn(self.input_layernorm(x), cos, sin, attend)
        x = x + self.post_attention_layernorm(attended)
        dense = self.post_feedforward_layernorm_1(self.mlp(self.pre_feedforward_layernorm(x)))
        flat = x.flatten(0, -2)
        routed = self.experts(self.pre_feedforward_layernorm_2(flat), *self.router(flat))
        routed = self.post_feedforward_layernorm_2(routed.view_as(x))
        return (x + self.post_feedforward_layernorm(dense + routed)) * scalar

    def by_kernels(
        self,
        x: Tensor,
        normed: Tensor,
        cos: Tensor,
        sin: Tensor,
        attend: Attend,
        scalar: Tensor,
        following: RMSNorm,
    ) -> LayerOutput:
        """Return the result of `forward`, and its norm by `following`. `normed` is the norm of `x`
        by `input_layernorm`; both are `[N, hidden]`."""
        eps = following.eps
        attended = self.self_attn.by_kernels(normed, cos, sin, attend)
        gains = AttentionGains(
            attended=self.post_attention_layernorm.gain,
            dense=self.pre_feedforward_layernorm.gain,
            routed=self.pre_feedforward_layernorm_2.gain,
            router=self.router.scale,
        )
        order = self.experts.order_of_tiles
        x, dense, routed, router = add_attention(x, attended, gains, eps, True, order)
        dense = self.mlp.by_kernels(dense)
        routed = self.experts.by_kernels(routed, *self.router.by_kernels(router))
        gains = LayerGains(
            dense=self.post_feedforward_layernorm_1.gain,
            routed=self.post_feedforward_layernorm_2.gain,
            both=self.post_feedforward_layernorm.gain,
            next=following.gain,
        )
        return end_layer(x, dense, routed, gains, scalar, eps, by_kernel=True)


class SelfConditioning(GatedMLP):
    """Self-conditioning: adds the previous step's soft embedding to the canvas."""

    def __init__(self, config: ModelConfig):
        super().__init__(config.hidden_size, config.intermediate_size)
        self.pre_norm = RMSNorm(config.hidden_size, config.eps)
        self.post_norm = RMSNorm(config.hidden_size, config.eps, gain=False)

    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, canvas: Tensor, soft_embedding: Tensor
    ) -> Tensor:
        """Both are `[..., L, hidden]`; at a canvas's first step the soft embedding is zero."""
        return self.post_norm(canvas + super().forward(self.pre_norm(soft_embedding)))
