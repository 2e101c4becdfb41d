"""Plain decoders with routed experts: a router, an MLP of experts, and what they cost.

With softmax scores, a token's experts are the likeliest ones. With sigmoid scores, each expert has
a score of its own; a bias is added for the choice alone, and only experts of a token's best groups
may be chosen (arXiv:2412.19437).
"""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Float32, Int64
from torch import Tensor, nn
from torch.nn import functional as F

from dlm.kernels.routing import choose, choose_in_groups
from dlm.kernels.tiles import ordered
from dlm.models.decoder import DecoderConfig, MLPOutput, PlainDecoder, SiluMLP
from dlm.models.decoder_costs import DecoderCosts
from dlm.models.experts import Experts
from dlm.models.plan import FLOAT, Load, PassWork


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """Routed experts of a layer, and how tokens choose among them."""

    experts: int
    per_token: int  # experts
    size: int  # inner size of an expert
    scores: Literal["softmax", "sigmoid"] = "softmax"
    groups: int = 1
    groups_per_token: int = 1
    scale: float = 1.0  # of a token's weights, whose sum is 1 before
    shared: int = 0  # inner size of the expert that all tokens pass; 0: there is none


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutedConfig(DecoderConfig):
    """Geometry of a plain decoder that may have experts."""

    routing: Routing | None = None
    dense_layers: int = 0  # leading layers with a dense MLP, where others have experts

    def routing_of(self, layer: int) -> Routing | None:
        """Return the experts of a layer; None if its MLP is dense."""
        return self.routing if layer >= self.dense_layers else None


class ExpertRouter(nn.Module):
    """Router of tokens to experts. Scores and weights are fp32."""

    def __init__(self, hidden: int, routing: Routing):
        super().__init__()
        self.routing = routing
        self.weight = nn.Parameter(torch.empty(routing.experts, hidden))
        biased = routing.scores == "sigmoid"
        self.expert_bias = nn.Parameter(torch.zeros(routing.experts)) if biased else None

    def forward(
        self, x: Float[Tensor, "n hidden"]
    ) -> tuple[Float32[Tensor, "n k"], Int64[Tensor, "n k"]]:
        """Return weights and experts of tokens."""
        if self.expert_bias is None:
            scores = F.linear(x, self.weight).softmax(dim=-1, dtype=torch.float32)
            choice = scores
        else:
            scores = F.linear(x.float(), self.weight.float()).sigmoid()
            choice = self._in_best_groups(scores + self.expert_bias)
        expert = choice.topk(self.routing.per_token, dim=-1).indices
        weight = scores.gather(-1, expert)
        return weight / (weight.sum(dim=-1, keepdim=True) + 1e-20) * self.routing.scale, expert

    def by_kernels(
        self, x: Float[Tensor, "n hidden"]
    ) -> tuple[Float32[Tensor, "n k"], Int64[Tensor, "n k"]]:
        """Return what `forward` returns."""
        routing = self.routing
        if self.expert_bias is None:
            choice = choose(F.linear(x, self.weight), None, routing.per_token, by_kernel=True)
            weight = choice.weight if routing.scale == 1 else choice.weight * routing.scale
            return weight, choice.expert
        logits = F.linear(x.float(), self.weight.float())
        groups = routing.groups, routing.groups_per_token
        options = self.expert_bias, routing.per_token, *groups, routing.scale
        return choose_in_groups(logits, *options, by_kernel=True)

    def _in_best_groups(self, scores: Float32[Tensor, "n E"]) -> Float32[Tensor, "n E"]:
        """Return the scores of experts in a token's best groups, and -inf for all others. A group
        is as good as the sum of its two best scores."""
        groups = scores.unflatten(-1, (self.routing.groups, -1))
        best = groups.topk(min(2, groups.shape[-1]), dim=-1).values.sum(-1)
        chosen = best.topk(self.routing.groups_per_token, dim=-1).indices
        barred = torch.ones_like(best, dtype=torch.bool).scatter(-1, chosen, False)
        return groups.masked_fill(barred[..., None], -torch.inf).flatten(-2)


class RoutedMLP(nn.Module):
    """Experts that a router chooses for each token, and the one that all tokens pass, if there is
    one."""

    def __init__(self, hidden: int, routing: Routing):
        super().__init__()
        self.gate = ExpertRouter(hidden, routing)
        self.experts = Experts(routing.experts, hidden, routing.size, "silu")
        self.shared_experts = SiluMLP(hidden, routing.shared) if routing.shared else None

    def forward(self, x: Float[Tensor, "n hidden"]) -> Float[Tensor, "n hidden"]:
        y = self.experts(x, *self.gate(x))
        return y if self.shared_experts is None else y + self.shared_experts(x)

    def output_by_kernels(self, x: Float[Tensor, "n hidden"]) -> MLPOutput:
        """Return the result of the shared expert and those of each token's experts."""
        rows = ordered(x) if self.experts.order_of_tiles else x
        routed = self.experts.by_kernels(rows, *self.gate.by_kernels(x))
        result = None if self.shared_experts is None else self.shared_experts.by_kernels(x)
        if self.experts.backend == "triton":
            return MLPOutput(result, routed)
        return MLPOutput(routed if result is None else routed + result)


def mlp_of(config: RoutedConfig, index: int) -> nn.Module:
    """Return the MLP of a layer."""
    routing = config.routing_of(index)
    if routing is None:
        return SiluMLP(config.hidden_size, config.intermediate_size)
    return RoutedMLP(config.hidden_size, routing)


class RoutedDecoder(PlainDecoder[RoutedConfig]):
    """Plain decoder that may have experts."""

    def __init__(self, config: RoutedConfig):
        super().__init__(config, mlp_of)

    @property
    def costs(self) -> "RoutedCosts":
        return RoutedCosts(self, self.config)


class RoutedCosts(DecoderCosts):
    """Costs of a decoder that may have experts."""

    config: RoutedConfig

    def part_of(self, tensor: str) -> str:
        return "experts" if ".experts." in tensor else super().part_of(tensor)

    def transient_bytes(self, slots: int) -> dict[str, int]:
        sizes, routing = super().transient_bytes(slots), self.config.routing
        if routing is not None:
            chosen = slots * self.config.canvas_length * routing.per_token
            sizes["experts"] = chosen * (routing.size * FLOAT + self.config.hidden_size * 4)
        return sizes

    def step_work(self, load: Load) -> dict[str, PassWork]:
        work, routing = super().step_work(load), self.config.routing
        if routing is None:
            return work
        rows, share = load.slots * self.config.canvas_length, routing.per_token / routing.experts
        hit = 1 - (1 - share) ** rows  # share of experts that are used, if all are equally likely
        experts = PassWork(
            read=self.weight_bytes()["experts"] * hit,
            operations=2 * rows * self.parameters()["experts"] * share,
            four_bit=load.activation_bits == 4,
        )
        return {"experts": experts, **work}
