"""The training objective: uniform-state diffusion on canvases, next token on what they answer.

One pass over each sample's clean tokens (the encoder's part, causal) and, behind them, noisy
canvases (the decoder's part), under a mask that gives both what they see when they are run apart.
A canvas of random tokens is all noise: there is no mask token (arXiv:2107.03006, the uniform case).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from einops import rearrange, repeat
from jaxtyping import Bool, Float, Int, Int32
from torch import Tensor
from torch.nn import functional as F

from dlm.models.layers import Attend
from dlm.models.model import DiffusionGemma

# Runs the layers of a model over `[B, N, hidden]`; arguments and result are those of `plainly`.
Layers = Callable[..., Tensor]

LEAST_NOISE = 0.02  # share of a canvas that is corrupted at the least, on average
RISING = 0.5  # share of canvases whose noise rises from left to right
PLAUSIBLE = 0.6  # share of corrupted tokens at the most that are no random ones
NEAR = 6  # places that tell most about the next one
FLOOR = 0.25  # nats; what a place counts for at the most is the inverse of it
SLOPE = 12  # positions over which it rises at the most


@dataclass(frozen=True, kw_only=True)
class Batch:
    """`B` samples of up to `T` clean tokens, each with `K` canvases of `L` positions."""

    tokens: Int[Tensor, "B T"]  # clean prompt and answer, padded at the end
    lengths: Int[Tensor, " B"]  # clean tokens of each
    answers: Int[Tensor, " B"]  # where each answer starts
    canvases: Int[Tensor, "B K L"]  # what each canvas should become
    starts: Int[Tensor, "B K"]  # position of each canvas's first token, which sees those before it


@dataclass(frozen=True, kw_only=True)
class Loss:
    """`total` is what to descend; the others are mean cross-entropies in nats a token."""

    total: Float[Tensor, ""]
    diffusion: Float[Tensor, ""]
    next_token: Float[Tensor, ""]


def plainly(
    model: DiffusionGemma,
    x: Float[Tensor, "B N hidden"],
    positions: Int[Tensor, "B N"],
    spans: Mapping[int | None, Int32[Tensor, "B N 4"]],
    scalars: Sequence[Float[Tensor, "N 1"]],
) -> Float[Tensor, "B N hidden"]:
    """Normed states by the model's own layers, under masks. `spans[window]` are the two ranges of
    tokens that each token sees: first, end, first, end."""
    attend = {window: _masked_attention(_seen(each)) for window, each in spans.items()}
    windows = [model.config.window_of(layer.kind) for layer in model.config.layers]
    return model.run_layers(x, positions, [attend[window] for window in windows], scalars)


def loss(
    model: DiffusionGemma,
    batch: Batch,
    self_condition: bool,
    rng: torch.Generator,
    layers: Layers = plainly,
) -> Loss:
    """Corrupt every canvas at its own random rates and score the model's view of it.

    `self_condition` runs a first pass without gradient, whose beliefs the second pass is shown.
    """
    B, K, L = batch.canvases.shape
    device = batch.canvases.device
    rate = noise_rates(B, K, L, rng, device)
    noise = noise_tokens(model.vocab_size, batch, rng)
    corrupt = torch.rand(B, K, L, generator=rng, device=device) < rate
    noisy = torch.where(corrupt, noise, batch.canvases)

    layout = _Layout(model, batch, layers)
    belief = torch.zeros(B, K, L, model.config.hidden_size, device=device)
    if self_condition:
        with torch.no_grad():
            _, canvas_states = layout.states(noisy, belief)
            logits = model.softcapped(model.logits(canvas_states))
            belief = model.soft_embedding(logits.softmax(-1))
    token_states, canvas_states = layout.states(noisy, belief)

    column = torch.arange(batch.tokens.shape[1], device=device)
    answered = (column >= batch.answers[:, None]) & (column < batch.lengths[:, None])
    next_tokens, answered = batch.tokens[:, 1:], answered[:, 1:]
    logits = model.softcapped(model.logits(canvas_states))
    diffusion = F.cross_entropy(logits.flatten(0, -2), batch.canvases.flatten(), reduction="none")
    logits = model.softcapped(model.logits(token_states[:, :-1][answered]))
    causal = F.cross_entropy(logits, next_tokens[answered], reduction="none")
    total = balanced(diffusion, clutter(corrupt).flatten())
    total = total + balanced(causal, torch.zeros_like(next_tokens[answered]))
    return Loss(total=total, diffusion=diffusion.mean(), next_token=causal.mean())


def clutter(corrupt: Bool[Tensor, "B K L"]) -> Int[Tensor, "B K L"]:
    """How little the places before each one say: the corrupted ones among the `NEAR` to its left,
    and behind all those of places that are corrupted themselves, those of places that are not."""
    before = F.pad(corrupt.cumsum(-1), (NEAR, 0))
    near = before[..., NEAR:] - before[..., :-NEAR]  # itself included
    return torch.where(corrupt, near - 1, near + NEAR)


def balanced(entropies: Float[Tensor, " n"], kinds: Int[Tensor, " n"]) -> Float[Tensor, ""]:
    """Mean cross-entropy, each kind of place by the inverse of its own mean: places that nothing
    can be known about would drown what can be learned at the others."""
    counts = kinds.bincount(minlength=2 * NEAR)
    sums = torch.zeros_like(counts, dtype=entropies.dtype).index_add(0, kinds, entropies.detach())
    weights = 1 / (sums / counts.clamp(min=1) + FLOOR)
    return (entropies * weights[kinds]).mean()


def noise_rates(
    B: int, K: int, L: int, rng: torch.Generator, device: torch.device
) -> Float[Tensor, "B K L"]:
    """How likely each position is to be corrupted.

    Half of the canvases have one rate for all positions. The others are as decoding finds them,
    where what is known grows from the left: little noise up to some position, all noise behind it,
    and a rise of up to `SLOPE` positions between.
    """
    even, start, slope, kind = torch.rand(4, B, K, 1, generator=rng, device=device)
    position = torch.arange(L, device=device)
    rising = (position - start * L) / (1 + slope * SLOPE) + 0.5
    rate = torch.where(kind < RISING, rising, even * (1 - LEAST_NOISE) + LEAST_NOISE)
    return rate.clamp(LEAST_NOISE, 1).expand(B, K, L)


def noise_tokens(vocab_size: int, batch: Batch, rng: torch.Generator) -> Int[Tensor, "B K L"]:
    """What takes the place of corrupted tokens: any token, or one that a decoder could err with.

    Up to `PLAUSIBLE` of a canvas's are tokens of what comes before it, or its own a place or two
    aside, as they are where two answers were mixed or a length was misjudged.
    """
    B, K, L = batch.canvases.shape
    device = batch.canvases.device
    anything = torch.randint(vocab_size, (B, K, L), generator=rng, device=device)
    pick, which, share = torch.rand(3, B, K, L, generator=rng, device=device)
    earlier = (pick * batch.starts[..., None]).long()
    said = batch.tokens.gather(1, earlier.flatten(1)).view(B, K, L)
    aside = torch.randint(1, 3, (B, K, 1), generator=rng, device=device)
    aside = torch.where(pick[..., :1] < 0.5, -aside, aside) + torch.arange(L, device=device)
    moved = batch.canvases.gather(2, aside.clamp(0, L - 1))
    share = share[..., :1] * PLAUSIBLE
    return torch.where(which < share, torch.where(which < share * 0.6, said, moved), anything)


class _Layout:
    """Where everything of a batch lies in one sequence of `T + K * L`, and who sees whom."""

    def __init__(self, model: DiffusionGemma, batch: Batch, layers: Layers = plainly):
        self._model, self._tokens, self._layers = model, batch.tokens, layers
        B, T = batch.tokens.shape
        _, self._K, self._L = batch.canvases.shape
        device = batch.tokens.device
        column = torch.arange(T, device=device)
        canvas = batch.starts[..., None] + torch.arange(self._L, device=device)
        self._positions = torch.cat((column.expand(B, T), rearrange(canvas, "b k l -> b (k l)")), 1)
        windows = {model.config.window_of(layer.kind) for layer in model.config.layers}
        self._spans = {window: self._seen_from(batch, window) for window in windows}
        clean = torch.arange(T + self._K * self._L, device=device)[:, None] < T
        self._scalars = model.scalars(clean)

    def states(
        self, noisy: Int[Tensor, "B K L"], belief: Float[Tensor, "B K L hidden"]
    ) -> tuple[Float[Tensor, "B T hidden"], Float[Tensor, "B K L hidden"]]:
        """Normed states of the clean tokens and of the canvases."""
        canvas = self._model.self_conditioning(self._model.embed(noisy), belief)
        tokens = self._model.embed(self._tokens)
        x = torch.cat((tokens, rearrange(canvas, "b k l h -> b (k l) h").type_as(tokens)), dim=1)
        states = self._layers(self._model, x, self._positions, self._spans, self._scalars)
        T = tokens.shape[1]
        return states[:, :T], rearrange(states[:, T:], "b (k l) h -> b k l h", k=self._K)

    def _seen_from(self, batch: Batch, window: int | None) -> Int32[Tensor, "B N 4"]:
        """What each of the `N = T + K * L` sees: clean tokens those up to themselves, canvases the
        tokens before them, and themselves."""
        B, T = batch.tokens.shape
        column = torch.arange(T, device=batch.tokens.device)
        tokens = torch.stack((_behind(column, window), column + 1, column * 0, column * 0), -1)
        starts = repeat(batch.starts, "b k -> b (k l)", l=self._L)
        own = torch.arange(self._K, device=starts.device).repeat_interleave(self._L) * self._L + T
        own = own.expand(B, -1)
        canvases = torch.stack((_behind(starts, window), starts, own, own + self._L), -1)
        return torch.cat((tokens.expand(B, T, 4), canvases), dim=1).int()


def _behind(last: Int[Tensor, "*shape"], window: int | None) -> Int[Tensor, "*shape"]:
    """The first of the tokens that a window up to `last` still holds."""
    return torch.zeros_like(last) if window is None else (last - window + 1).clamp(min=0)


def _seen(spans: Int32[Tensor, "B N 4"]) -> Bool[Tensor, "B 1 N N"]:
    key = torch.arange(spans.shape[1], device=spans.device)
    first, end, own, own_end = spans[..., None].unbind(2)
    return (((key >= first) & (key < end)) | ((key >= own) & (key < own_end)))[:, None]


def _masked_attention(mask: Bool[Tensor, "B 1 N N"]) -> Attend:
    """Attention written out: with a mask for each sample, that is faster to differentiate on a CPU
    than the fused kernel, and a compiler can fuse it with what is around it."""

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        N, heads, shared = q.shape[1], q.shape[2], q.shape[2] // k.shape[2]
        q = rearrange(q.type_as(v), "b n (h g) d -> b h (g n) d", g=shared)
        k, v = (rearrange(x.type_as(v), "b n h d -> b h n d") for x in (k, v))
        scores = (q @ k.transpose(-1, -2)).unflatten(2, (shared, N)).flatten(1, 2)
        weights = scores.float().masked_fill(~mask, -torch.inf).softmax(-1).type_as(v)
        out = weights.unflatten(1, (heads // shared, shared)).flatten(2, 3) @ v
        return rearrange(out, "b h (g n) d -> b n (h g) d", g=shared)

    return attend
