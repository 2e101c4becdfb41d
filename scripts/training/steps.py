"""Steps of training: the network, its optimisers, the choice of samples, and decoding.

The network is run without looking at the data: every expert runs on every token, and the router's
weights, zero for experts that were not chosen, select the outputs. That doubles the products of the
experts, which are small, and saves waiting for counts.

A step trains on the samples of a pool that the model does not know yet: after some hours a tenth of
the samples has most of what is left to learn. Asking the causal half first costs a seventh of a
step over the same sample.
"""

import types
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float, Float32, Int64
from torch import Tensor
from torch.nn import functional as F

from dlm.logits import sampling
from dlm.models import DiffusionGemma, ModelConfig
from dlm.models.diffusion_gemma.layers import Layer
from dlm.models.experts import Experts
from dlm.samplers import EntropyBound
from dlm.samplers.entropy_bound import surest
from training.batches import tokenizer_of
from training.objective import TrainingBatch

VARIANTS = 32  # of a layer: its kind, tokens or canvases, with and without gradient, and shapes


def prepare(model: DiffusionGemma, compiled: bool) -> None:
    """Make `model` run its layers this way, compiled or not; its parameters do not change."""
    if compiled:
        torch._dynamo.config.recompile_limit = VARIANTS
    for module in model.modules():
        if isinstance(module, Experts):
            module.forward = types.MethodType(all_experts, module)
        elif isinstance(module, Layer) and compiled:
            module.forward = torch.compile(module.forward, dynamic=True)


def all_experts(experts: Experts, x: Tensor, weight: Tensor, expert: Tensor) -> Tensor:
    """Run all experts: tokens `[N, hidden]`, weights and expert ids `[N, k]`."""
    stack, down = experts.get_parameter("gate_up_proj"), experts.get_parameter("down_proj")
    E, twice, _ = stack.shape
    chosen = torch.zeros(x.shape[0], E, dtype=weight.dtype, device=x.device)
    chosen = chosen.scatter(1, expert, weight)
    gate_up = F.linear(x, stack.flatten(0, 1)).view(-1, E, 2, twice // 2)
    inner = F.gelu(gate_up[:, :, 0], approximate="tanh") * gate_up[:, :, 1]
    inner = inner * chosen[:, :, None].type_as(inner)
    return F.linear(inner.flatten(1), down.permute(1, 0, 2).flatten(1))


OUTPUT_NORMS = ("post_attention_layernorm.weight", "post_feedforward_layernorm.weight")
INTO, OUT_OF = ("gate_proj.weight", "up_proj.weight"), "down_proj.weight"


def grown(model: DiffusionGemma, config: ModelConfig) -> DiffusionGemma:
    """Return `model` in the shapes of `config`, with the same outputs as before.

    New layers are copies after the first half (arXiv:2405.15319) that add nothing to the residual
    stream yet (arXiv:2401.02415). New neurons of MLPs are random and their outputs are multiplied
    by zero (LEMON, arXiv:2310.07999). Raises `ValueError` if the layers do not match those of
    `config`, or if neurons would have to be removed.
    """
    neurons, before = config.intermediate_size, model.config.intermediate_size
    if neurons < before:
        raise ValueError(f"{before} neurons cannot become {neurons}")
    state, larger = model.state_dict(), DiffusionGemma(config)
    whole = {name: tensor for name, tensor in state.items() if not name.startswith("layers.")}
    for to, (layer, silent) in enumerate(_sources(model.config, config)):
        for part, tensor in model.layers[layer].state_dict().items():
            mute = silent and part in OUTPUT_NORMS
            whole[f"layers.{to}.{part}"] = torch.zeros_like(tensor) if mute else tensor
    for name in whole:
        if name.endswith((*INTO, OUT_OF)):
            whole[name] = _widened(whole[name], neurons, name)
    larger.load_state_dict(whole)
    return larger


def _sources(before: ModelConfig, after: ModelConfig) -> list[tuple[int, bool]]:
    """Return for each layer of the new network its source, and whether it is an added layer."""
    old, new = before.layers, after.layers
    extra, cut = len(new) - len(old), len(old) // 2 + len(old) // 2 % 2
    source = [*range(cut), *range(cut - extra, cut), *range(cut, len(old))]
    if not 0 <= extra <= cut or [old[i] for i in source] != list(new):
        raise ValueError(f"{len(old)} layers cannot become {len(new)}: {old} {new}")
    return [(layer, cut <= to < cut + extra) for to, layer in enumerate(source)]


def _widened(matrix: Tensor, neurons: int, name: str) -> Tensor:
    """Return the matrix with more rows, as large as the others, or with more columns of zeros."""
    if name.endswith(OUT_OF):
        rows, columns = matrix.shape
        return torch.cat((matrix, matrix.new_zeros(rows, neurons - columns)), 1)
    rows = torch.randn(neurons - len(matrix), matrix.shape[1]).to(matrix)
    return torch.cat((matrix, rows * matrix.float().std().to(matrix)))


RISE = 100  # steps up to the peak rate, unless a run is too short for them


def initialised(config: ModelConfig) -> DiffusionGemma:
    """Return a model with random weights.

    Query and key gains start low: attention's scale is 1, and at a gain of 1 its softmax saturates.
    """
    model = DiffusionGemma(config)
    for name, parameter in model.named_parameters():
        if name.endswith(("q_norm.weight", "k_norm.weight")):
            torch.nn.init.constant_(parameter, parameter.numel() ** -0.25)
        elif parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.02)
    return model


MOMENTUM = 0.95
QUINTIC = (3.4445, -4.775, 2.0315)  # of Newton-Schulz: x to a x + b x^3 + c x^5
QUINTIC_ROUNDS = 5


class Muon(torch.optim.Optimizer):
    """Optimiser of matrices, with Nesterov momentum and decoupled weight decay, in fp32.

    Its update has singular values near 1 (arXiv:2502.16982). torch's own computes that update in
    bf16, which most CPUs emulate: it then takes four fifths of a step of training.
    """

    def __init__(self, groups: Iterable[dict[str, Any]], weight_decay: float):
        super().__init__(groups, {"lr": 0.0, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for matrix in group["params"]:
                if matrix.grad is None:
                    continue
                state = self.state[matrix]
                if not state:
                    state["momentum_buffer"] = torch.zeros_like(matrix)
                momentum = state["momentum_buffer"].lerp_(matrix.grad, 1 - MOMENTUM)
                update = orthogonal(matrix.grad.lerp(momentum, MOMENTUM))
                rows, columns = matrix.shape
                matrix.mul_(1 - group["lr"] * group["weight_decay"])
                matrix.sub_(update, alpha=group["lr"] * max(1, rows / columns) ** 0.5)


def orthogonal(matrix: Tensor) -> Tensor:
    """Return a matrix with the same singular vectors and singular values between 0.6 and 1.3."""
    a, b, c = QUINTIC
    tall = len(matrix) > matrix.shape[1]
    x = matrix.mT if tall else matrix
    x = x / x.norm().clamp(min=1e-7)
    for _ in range(QUINTIC_ROUNDS):
        gram = x @ x.mT
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x


NOT_BETWEEN = ("embed", "router", "head")  # matrices at a network's ends, or of choices


def optimisers(model: torch.nn.Module) -> list[torch.optim.Optimizer]:
    """Return Muon for the matrices between layers, AdamW for all others."""
    matrices, rest, gains = [], [], []
    for name, parameter in model.named_parameters():
        if parameter.dim() < 2:
            gains.append(parameter)
        elif parameter.dim() == 2 and not any(part in name for part in NOT_BETWEEN):
            matrices.append(parameter)
        else:
            rest.append(parameter)
    return [
        Muon([{"params": matrices, "peak": 0.02}], weight_decay=0.01),
        torch.optim.AdamW(
            [{"params": rest, "peak": 4e-3}, {"params": gains, "peak": 4e-3, "weight_decay": 0.0}],
            betas=(0.9, 0.98),
            weight_decay=0.01,
        ),
    ]


def rate(step: int, done: float, rise: int = RISE) -> float:
    """Return the share of the peak rate after a share `done` of the budget of steps or minutes.

    It falls to zero linearly (arXiv:2502.15938).
    """
    return min((step + 1) / rise, max(0.01, 1 - done))


def copied(first: int, last: int) -> Callable[[int], float]:
    """Return the share of plain copying by the step: most of it until step `first`, and none from
    step `last` on. It teaches to look values up."""
    return lambda step: 0.9 * min(1.0, max(0.0, (last - step) / (last - first)))


copying = copied(500, 1100)  # of the built-in model


FLOOR = 0.2  # the least score of a sample
ROUNDS = 20  # of rescaling the shares, to keep each below 1


def telling(directory: Path) -> Bool[Tensor, " V"]:
    """Return the tokens with content; the others belong to an answer's layout, which is free."""
    tokenizer = tokenizer_of(directory)
    texts = (tokenizer.decode([token]) for token in range(len(tokenizer)))
    return torch.tensor([any(map(str.isalnum, text)) and text != "json" for text in texts])


def mistakes(
    unsure: Float[Tensor, "B T"], batch: TrainingBatch, telling: Bool[Tensor, " V"]
) -> Float[Tensor, " B"]:
    """Return for each sample the expected number of wrong tokens with content, plus `FLOOR`."""
    return ((1 - (-unsure).exp()) * telling[batch.tokens]).sum(1) + FLOOR


def chosen(
    batch: TrainingBatch,
    scores: Float[Tensor, " B"],
    size: int,
    fairness: float,
    rng: torch.Generator,
) -> TrainingBatch:
    """Draw `size` of the samples by their scores, without repetition.

    At a `fairness` of 1 their weights undo the choice, so that the expected loss is that of all
    samples (importance sampling, arXiv:1803.00942); at 0 all weights are equal. In between they are
    those of prioritised experience replay (arXiv:1511.05952).
    """
    share = shares(scores.double(), size)
    ends = share.cumsum(0) + torch.rand((), generator=rng, device=share.device)
    samples = (ends.floor() > (ends - share).floor()).nonzero()[:, 0]
    weights = share[samples] ** -fairness
    some = batch.each(lambda tensor: tensor[samples])
    return replace(some, weights=(weights / weights.mean()).float())


def shares(scores: Float[Tensor, " B"], size: int) -> Float[Tensor, " B"]:
    """Return probabilities to be among `size` samples: in proportion to scores, at most 1."""
    share = torch.full_like(scores, 0.0)
    for _ in range(ROUNDS):
        free = share < 1
        share = torch.where(free, scores * (size - (~free).sum()) / scores[free].sum(), share)
        share = share.clamp(max=1)
    return share


def step_of(sampler: EntropyBound) -> Callable[[Tensor, torch.Generator], tuple[Tensor, Tensor]]:
    """Return a step of decoding without a constraint, as the engine takes it.

    Each canvas has another temperature of the schedule.
    """

    def step(
        logits: Float[Tensor, "*B L V"], rng: torch.Generator
    ) -> tuple[Int64[Tensor, "*B L"], Float32[Tensor, "*B L V"]]:
        """Return the next canvases, and the probabilities that they were drawn from."""
        *canvases, _, V = logits.shape
        heat = torch.rand(*canvases, 1, 1, generator=rng, device=logits.device)
        heat = sampler.t_min + (sampler.t_max - sampler.t_min) * heat
        log = (logits.float() / heat).log_softmax(-1)
        probabilities = log.exp()
        accepted = surest(-(probabilities * log).sum(-1), sampler.entropy_bound)
        noise = torch.randint(V, accepted.shape, generator=rng, device=logits.device)
        rows = log[accepted]
        uniform = torch.rand(len(rows), generator=rng, device=logits.device)
        drawn = sampling.sharpen(rows, torch.ones_like(uniform), uniform)
        return noise.masked_scatter(accepted, drawn), probabilities

    return step
