"""Training objective of a masked model: masked diffusion on canvases, next tokens on answers.

The network is transformers' Ministral 3, whose weights are those of Nemotron-Labs-Diffusion by
other names. One pass reads a sample's clean tokens causally, and after them its masked canvases,
which see the clean tokens before their first position and each other: the two passes of decoding
at once. The logits of a masked position predict that position, those of a clean token the next.

Shapes: `B` samples of `T` clean tokens and `K` canvases of `L` positions.
"""

from typing import Any

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from training.objective import (
    Loss,
    TrainingBatch,
    at_canvases,
    balanced,
    clutter,
    noise_rates,
    reveal_given,
)


def unsure(network: Any, batch: TrainingBatch) -> Float[Tensor, "B T"]:
    """Return the cross-entropy in nats of each answer token given those before it; 0 elsewhere."""
    with torch.no_grad():
        T = batch.tokens.shape[1]
        column = torch.arange(T, device=batch.tokens.device)
        mask = (column[:, None] >= column).expand(len(batch.tokens), 1, T, T)
        states = run(network, batch.tokens, column.expand_as(batch.tokens), mask)
        return next_tokens(network, batch, states)


def loss(network: Any, batch: TrainingBatch, mask_token: int, rng: torch.Generator) -> Loss:
    """Return the loss of a batch, every canvas masked at its own random rates."""
    T, K = batch.tokens.shape[1], batch.canvases.shape[1]
    device, given = batch.tokens.device, at_canvases(batch.given, batch)
    rates = noise_rates(at_canvases(unsure(network, batch), batch), rng)
    hidden = torch.rand(rates.shape, generator=rng, device=device) < rates
    masked = torch.full_like(batch.canvases, mask_token)
    canvases = reveal_given(torch.where(hidden, masked, batch.canvases), batch.canvases, given)
    tokens = torch.cat((batch.tokens, rearrange(canvases, "b k l -> b (k l)")), 1)
    column = torch.arange(T, device=device).expand_as(batch.tokens)
    positions = torch.cat((column, rearrange(batch.columns, "b k l -> b (k l)")), 1)
    states = run(network, tokens, positions, seen(batch))
    causal = next_tokens(network, batch, states[:, :T])
    answered = batch.answered

    rows = canvases == mask_token
    logits = network.lm_head(rearrange(states[:, T:], "b (k l) h -> b k l h", k=K)[rows])
    diffusion = F.cross_entropy(logits, batch.canvases[rows], reduction="none")
    kinds = clutter(rows)[rows]
    weights = (batch.weights[:, None, None] * ~given)[rows] * evened(kinds)
    total = balanced(diffusion, kinds, weights)
    causal, weights = causal[answered], batch.weights[answered.nonzero()[:, 0]]
    total = total + balanced(causal, torch.zeros_like(weights, dtype=torch.long), weights)
    return Loss(total=total, diffusion=diffusion.mean(), next_token=causal.mean())


def evened(kinds: Int[Tensor, " n"]) -> Float[Tensor, " n"]:
    """Return weights, 1 on average, by which every kind of position weighs the same. Most masks are
    far from all that is known, and little can be known about them."""
    weights = 1 / kinds.bincount()[kinds]
    return weights / weights.mean()


def next_tokens(
    network: Any, batch: TrainingBatch, states: Float[Tensor, "B T hidden"]
) -> Float[Tensor, "B T"]:
    """Return what `unsure` returns, from the states of its pass, differentiably."""
    answered = batch.answered
    logits = network.lm_head(states[:, :-1][answered[:, 1:]])
    entropies = F.cross_entropy(logits, batch.tokens[answered], reduction="none")
    nothing = torch.zeros_like(batch.tokens, dtype=entropies.dtype)
    return nothing.masked_scatter(answered, entropies)


def seen(batch: TrainingBatch) -> Bool[Tensor, "B 1 N N"]:
    """Return which of the `N = T + K * L` tokens each of them sees."""
    B, T = batch.tokens.shape
    K, L = batch.canvases.shape[1:]
    device = batch.tokens.device
    column = torch.arange(T, device=device)
    mask = torch.zeros(B, T + K * L, T + K * L, dtype=torch.bool, device=device)
    mask[:, :T, :T] = column[:, None] >= column
    starts = batch.starts.repeat_interleave(L, 1)
    mask[:, T:, :T] = column < starts[..., None]
    own = torch.arange(K, device=device).repeat_interleave(L)
    mask[:, T:, T:] = own[:, None] == own
    return mask[:, None]


def run(
    network: Any,
    tokens: Int[Tensor, "B N"],
    positions: Int[Tensor, "B N"],
    mask: Bool[Tensor, "B 1 N N"],
) -> Float[Tensor, "B N hidden"]:
    """Return normed states."""
    model = network.model
    x = model.embed_tokens(tokens)
    rotary = model.rotary_emb(x, positions)
    for layer in model.layers[: model.config.num_hidden_layers]:
        x = layer(x, attention_mask=mask, position_ids=positions, position_embeddings=rotary)
    return model.norm(x)
