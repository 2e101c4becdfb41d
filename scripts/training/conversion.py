"""Weights of a masked model in Nemotron-Labs-Diffusion's layout, from a DiffusionGemma's.

Both have embeddings, layers of attention and a gated MLP, and a head. What is the same in both is
copied: embeddings, gains of the norms before attention and MLP, the projections of queries, keys
and values. What the plain decoder lacks is folded into these: gains and mean inverse sizes of the
norms of heads, and the scale of attention. Pairs of a head move to the places whose rotary
frequencies are nearest; where slow pairs are too many, the directions in which queries and keys
correlate most stay. The neurons that contribute most stay.

What cannot be copied is fitted: the matrices at the ends of attention and MLP, `o_proj` and
`down_proj`, are those by which the states after them come nearest to the DiffusionGemma's, by least
squares on tokens and masks of some lessons. So the norms after attention and MLP, the experts and
the removed neurons are in them as far as a linear map can hold them.
"""

import math
from dataclasses import dataclass
from typing import Any, cast

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from dlm.models import DiffusionGemma
from dlm.models.diffusion_gemma.layers import Attention, GatedMLP, Layer, rotary_angles
from training import masked
from training.objective import TrainingBatch

RIDGE = 1e-3  # of the mean square of a feature
GELU = 1.702  # gelu(x) is nearly x * sigmoid(1.702 x)
SLOW = 5e-3  # radians a position; pairs below are taken for standing still
SPARE = 0.02  # standard deviation of rows that have no source
JITTER = 1e-5  # of a diagonal's mean; rounding in fp32 leaves some moments not positive definite


@dataclass(frozen=True)
class PassInput:
    """Input of a pass over clean tokens and, after them, canvases."""

    tokens: Int[Tensor, "B N"]
    positions: Int[Tensor, "B N"]
    window_ends: Int[Tensor, "B N"]  # where the window of each ends: a canvas's at its first token
    encoded: Bool[Tensor, "N 1"]  # which are clean
    mask: Bool[Tensor, "B 1 N N"]  # which tokens each of them sees, without a window


def pass_input(batch: TrainingBatch, canvases: Int[Tensor, "B K L"]) -> PassInput:
    """Return the input of a pass over a batch's tokens and over these canvases in place of its."""
    T, (K, L) = batch.tokens.shape[1], canvases.shape[1:]
    column = torch.arange(T).expand_as(batch.tokens)
    return PassInput(
        tokens=torch.cat((batch.tokens, canvases.flatten(1)), 1),
        positions=torch.cat((column, batch.columns.flatten(1)), 1),
        window_ends=torch.cat((column, batch.starts.repeat_interleave(L, 1)), 1),
        encoded=torch.arange(T + K * L)[:, None] < T,
        mask=masked.seen(batch),
    )


@torch.no_grad()
def convert(model: DiffusionGemma, network: Any, batch: TrainingBatch, mask_token: int) -> None:
    """Set the weights of `network` to those nearest to `model`, as measured on `batch`, half of
    whose canvas positions are masked."""
    T = batch.tokens.shape[1]
    column = torch.arange(T).expand_as(batch.tokens)
    hidden = torch.rand(batch.canvases.shape) < torch.rand(*batch.starts.shape, 1)
    read = pass_input(batch, torch.where(hidden, mask_token, batch.canvases))
    table = embeddings(model, mask_token)
    inner = network.model
    inner.embed_tokens.weight.copy_(table)
    inner.norm.weight.copy_(model.norm.gain)
    network.lm_head.weight.copy_(model.embed_tokens.weight)
    measured = torch.cat((column < batch.lengths[:, None], hidden.flatten(1)), 1)
    x = table[read.tokens]
    source = torch.cat((x[:, :T], model.self_conditioning.post_norm(x[:, T:])), 1)
    rotary = inner.rotary_emb(x, read.positions)
    frequencies = inner.rotary_emb.inv_freq
    for index, (layer, to) in enumerate(zip(model.layers, inner.layers, strict=True)):
        layer = cast(Layer, layer)
        between, after = run_layer(model, index, source, read)
        to.input_layernorm.weight.copy_(layer.input_layernorm.gain)
        to.post_attention_layernorm.weight.copy_(layer.pre_feedforward_layernorm.gain)
        normed, turns = to.input_layernorm(x), frequencies_of(model, index)
        fold_heads(layer.self_attn, to.self_attn, normed[measured], turns, frequencies)
        attended = features_of(
            to.self_attn.o_proj,
            to.self_attn,
            normed,
            attention_mask=read.mask,
            position_ids=read.positions,
            position_embeddings=rotary,
        )
        to.self_attn.o_proj.weight.copy_(fitted(attended[measured], (between - x)[measured]))
        x = x + to.self_attn.o_proj(attended)
        normed = to.post_attention_layernorm(x)
        keep_neurons(layer.mlp, to.mlp, normed[measured])
        neurons = features_of(to.mlp.down_proj, to.mlp, normed)
        to.mlp.down_proj.weight.copy_(fitted(neurons[measured], (after - x)[measured]))
        x, source = x + to.mlp.down_proj(neurons), after


def embeddings(model: DiffusionGemma, mask_token: int) -> Float[Tensor, "V hidden"]:
    """Return the scaled embeddings. That of the mask is their mean, of the size of a canvas's."""
    table = model.embed(torch.arange(model.vocab_size))
    table[mask_token] = model.self_conditioning.post_norm(table.mean(0))
    return table


def run_layer(
    model: DiffusionGemma, index: int, x: Float[Tensor, "B N hidden"], read: PassInput
) -> tuple[Float[Tensor, "B N hidden"], Float[Tensor, "B N hidden"]]:
    """Return the states after a layer's attention and after the layer."""
    layer, config = cast(Layer, model.layers[index]), model.config.layers[index]
    angles = rotary_angles(model.config.rotary[config.kind], config.head_dim, read.positions)
    window = model.config.window_of(config.kind)
    apart = read.window_ends[:, None, :, None] - read.positions[:, None, None]
    mask = read.mask if window is None else read.mask & (apart < window)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (rearrange(each, "b n h d -> b h n d") for each in (q, k, v))
        out = F.scaled_dot_product_attention(q, k, v, mask, scale=1.0, enable_gqa=True)
        return rearrange(out, "b h n d -> b n h d")

    attended = layer.self_attn(layer.input_layernorm(x), *angles, attend)
    between = x + layer.post_attention_layernorm(attended)
    return between, layer(x, *angles, attend, model.scalars(read.encoded)[index])


def frequencies_of(model: DiffusionGemma, index: int) -> Float[Tensor, " p"]:
    """Return the angles of a layer's pairs at position 1."""
    config = model.config.layers[index]
    cos, sin = rotary_angles(model.config.rotary[config.kind], config.head_dim, torch.tensor(1))
    return torch.atan2(sin, cos).flatten()[: config.head_dim // 2]


def features_of(linear: Any, module: Any, *inputs: Tensor, **options: Any) -> Tensor:
    """Return what a linear layer of a module reads when the module runs."""
    seen: list[Tensor] = []
    hook = linear.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    module(*inputs, **options)
    hook.remove()
    return seen[0]


def fitted(
    features: Float[Tensor, "n inner"], results: Float[Tensor, "n outer"]
) -> Float[Tensor, "outer inner"]:
    """Return the matrix that maps features to results, by least squares with a ridge."""
    features, results = features.double(), results.double()
    gram = features.T @ features
    gram += RIDGE * gram.diagonal().mean() * torch.eye(len(gram), dtype=gram.dtype)
    return torch.linalg.solve(gram, features.T @ results).T.float()


def keep_neurons(source: GatedMLP, to: Any, normed: Float[Tensor, "n hidden"]) -> None:
    """Copy the gates and inputs of the neurons that contribute most, in their order."""
    gate, up = source.gate_proj(normed), source.up_proj(normed)
    inner = F.gelu(gate, approximate="tanh") * up
    contribution = inner.square().mean(0) * source.down_proj.weight.square().sum(0)
    kept = contribution.topk(len(to.gate_proj.weight)).indices.sort().values
    to.gate_proj.weight.copy_(source.gate_proj.weight[kept] * GELU)
    to.up_proj.weight.copy_(source.up_proj.weight[kept] / GELU)


def fold_heads(
    source: Attention,
    to: Any,
    normed: Float[Tensor, "n hidden"],
    source_frequencies: Float[Tensor, " p"],
    frequencies: Float[Tensor, " pairs"],
) -> None:
    """Set the projections of queries, keys and values.

    Rows without a source are zero in queries and random in keys, so that they add nothing to
    products but can be trained. In values they are random: `o_proj`, which is fitted afterwards,
    reads them as further features.
    """
    D, d = to.head_dim, source.head_dim
    turning, standing = places(source_frequencies, frequencies)
    values = source.k_proj if source.v_proj is None else source.v_proj
    q, k, v = (
        rearrange(linear.weight, "(h d) x -> h d x", d=d)
        for linear in (source.q_proj, source.k_proj, values)
    )
    q, k, v = (each * mean_inverse_size(each, normed) for each in (q, k, v))
    q = q * source.q_norm.gain[:, None] * D**0.25  # attention's scale is 1 there, D**-0.5 here
    k = k * source.k_norm.gain[:, None] * D**0.25
    queries = torch.zeros(len(q), D, q.shape[-1])
    keys, contents = (torch.randn(len(k), D, k.shape[-1]) * SPARE for _ in range(2))
    contents[:, :d] = v
    shared = len(q) // len(k)
    for g in range(len(k)):
        own = slice(g * shared, (g + 1) * shared)
        queries[own, turning.to], keys[g, turning.to] = q[own, turning.of], k[g, turning.of]
        of_queries, of_keys = correlated(
            q[own, standing.of], k[g, standing.of], normed, len(standing.to)
        )
        at = standing.to[: len(of_keys)]
        queries[own, at], keys[g, at] = of_queries, of_keys
    for linear, rows in ((to.q_proj, queries), (to.k_proj, keys), (to.v_proj, contents)):
        linear.weight.copy_(rows.flatten(0, 1))


def mean_inverse_size(
    rows: Float[Tensor, "h d hidden"], normed: Float[Tensor, "n hidden"]
) -> Float[Tensor, "h 1 1"]:
    """Return for each head the mean inverse root mean square of its numbers."""
    numbers = torch.einsum("nx,hdx->nhd", normed, rows)
    return numbers.square().mean(-1).rsqrt().mean(0)[:, None, None]


@dataclass(frozen=True)
class Places:
    """Numbers of a head in the DiffusionGemma, and those of the new head that they become."""

    of: Int[Tensor, " a"]
    to: Int[Tensor, " b"]


def places(
    source: Float[Tensor, " p"], frequencies: Float[Tensor, " pairs"]
) -> tuple[Places, Places]:
    """Return the places of pairs that turn, each at the nearest free frequency, and the numbers
    that stand still. Raises `ValueError` if more pairs turn than have a place."""
    free = [j for j, f in enumerate(frequencies.tolist()) if f >= SLOW]
    turning_pairs = int((source >= SLOW).sum())
    if turning_pairs > len(free):
        raise ValueError(
            f"`frequencies` must have a place of at least {SLOW} radians a position for each of "
            f"{turning_pairs} pairs that turn, got {len(free)}"
        )
    of, to = [], []
    for i, f in enumerate(source.tolist()):
        if f >= SLOW:
            ratios = {j: abs(math.log(frequencies[j].item() / f)) for j in free}
            to.append(min(free, key=ratios.__getitem__))
            free.remove(to[-1])
            of.append(i)
    turning = Places(both(of, len(source)), both(to, len(frequencies)))
    slow, places_of_slow = (
        both([i for i, f in enumerate(each.tolist()) if f < SLOW], len(each))
        for each in (source, frequencies)
    )
    return turning, Places(slow, places_of_slow)


def both(pairs: list[int], halves: int) -> Int[Tensor, " numbers"]:
    """Return the two numbers of each pair: a head's halves are turned against each other."""
    return torch.tensor([*pairs, *(halves + pair for pair in pairs)], dtype=torch.long)


def correlated(
    q: Float[Tensor, "h a hidden"],
    k: Float[Tensor, "a hidden"],
    normed: Float[Tensor, "n hidden"],
    most: int,
) -> tuple[Float[Tensor, "h b hidden"], Float[Tensor, "b hidden"]]:
    """Return rows with the same products of queries and keys; of more than `most` the directions
    that contribute most to products on average."""
    if len(k) <= most:
        return q, k
    moment = normed.T @ normed / len(normed)
    roots = [
        torch.linalg.cholesky(m + JITTER * m.diagonal().mean() * torch.eye(len(m)))
        for m in ((q @ moment @ q.mT).mean(0), k @ moment @ k.T)
    ]
    u, s, vh = torch.linalg.svd(roots[0].T @ roots[1])
    size = s[:most, None].sqrt()
    of_queries = size * torch.linalg.solve(roots[0].T, u[:, :most]).T
    of_keys = size * torch.linalg.solve(roots[1].T, vh[:most].T).T
    return of_queries @ q, of_keys @ k
