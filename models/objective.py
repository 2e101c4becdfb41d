"""The training objective: uniform-state diffusion on canvases, next token on what they answer.

One pass over each sample's clean tokens (the encoder's part, causal), then passes over noisy
canvases (the decoder's part), which see the keys and values of the tokens before them.
A canvas of random tokens is all noise: there is no mask token (arXiv:2107.03006, the uniform case).
They are scored as decoding finds them, too: a step or more after the noise, with the model's own
mistakes in them and what it expected then (step-unrolled denoising, arXiv:2112.06749).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from einops import rearrange, repeat
from jaxtyping import Bool, Float, Int, Int32
from torch import Tensor
from torch.nn import functional as F

from dlm.models.layers import Attend
from dlm.models.model import DiffusionGemma

Memory = Sequence[tuple[Tensor, Tensor]]  # keys and values of each layer
# Runs the layers of a model over `[B, N, hidden]`; arguments and results are those of `plainly`.
Layers = Callable[..., tuple[Tensor, Memory]]
# What a decoder makes of logits `[B, K, L, V]`: the next canvases, and what it expects of them as
# probabilities.
Step = Callable[[Tensor, torch.Generator], tuple[Tensor, Tensor]]

LEAST_NOISE = 0.02  # share of a canvas that is corrupted at the least, on average
RISING = 0.7  # share of canvases whose noise rises from left to right
UNSURE = 0.5  # nats; what a place counts for at the most where noise is to begin
ANYWHERE = 0.02  # nats; and at the least
PLAUSIBLE = 0.6  # share of corrupted tokens at the most that are no random ones
NEAR = 6  # places that tell most about the next one
FLOOR = 0.25  # nats; what a place counts for at the most is the inverse of it
SLOPE = 12  # positions over which it rises at the most


@dataclass(frozen=True, kw_only=True)
class TrainingBatch:
    """`B` samples of up to `T` clean tokens, each with `K` canvases of `L` positions."""

    tokens: Int[Tensor, "B T"]  # clean prompt and answer, padded at the end
    lengths: Int[Tensor, " B"]  # clean tokens of each
    answers: Int[Tensor, " B"]  # where each answer starts
    canvases: Int[Tensor, "B K L"]  # what each canvas should become
    starts: Int[Tensor, "B K"]  # position of each canvas's first token, which sees those before it
    given: Bool[Tensor, "B T"]  # tokens of answers that a grammar says, and nobody has to know
    weights: Float[Tensor, " B"]  # what each counts for in the loss, 1 on average

    @property
    def answered(self) -> Bool[Tensor, "B T"]:
        """Which tokens are of an answer, and not given."""
        column = torch.arange(self.tokens.shape[1], device=self.tokens.device)
        within = (column >= self.answers[:, None]) & (column < self.lengths[:, None])
        return within & ~self.given

    @property
    def columns(self) -> Int[Tensor, "B K L"]:
        """The position of each place of the canvases."""
        L = self.canvases.shape[2]
        return self.starts[..., None] + torch.arange(L, device=self.starts.device)

    def each(self, change: Callable[[Tensor], Tensor]) -> "TrainingBatch":
        """All of its tensors changed alike: some of the samples, say, or on another device."""
        return TrainingBatch(**{name: change(tensor) for name, tensor in vars(self).items()})


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
    memory: Memory | None = None,
) -> tuple[Float[Tensor, "B N hidden"], Memory]:
    """Normed states by the model's own layers, under masks, and their keys and values.

    Tokens see those of `memory` and, behind them, each other: `spans[window]` are the two ranges
    that each token sees: first, end, first, end."""
    said: list[tuple[Tensor, Tensor]] = []
    before = memory or [None] * len(model.config.layers)
    keys = x.shape[1] + (0 if memory is None else memory[0][0].shape[1])
    masks = {window: _seen(each, keys) for window, each in spans.items()}
    attends = [
        _masked_attention(masks[model.config.window_of(layer.kind)], of, said)
        for layer, of in zip(model.config.layers, before, strict=True)
    ]
    return model.run_layers(x, positions, attends, scalars), said


def loss(
    model: DiffusionGemma,
    batch: TrainingBatch,
    steps: int,
    step: Step,
    rng: torch.Generator,
    layers: Layers = plainly,
) -> Loss:
    """Corrupt every canvas at its own random rates, score the model's view of it, and so again
    after each of `steps` steps of denoising. No gradient passes through a step."""
    B, K, L = batch.canvases.shape
    device = batch.canvases.device
    layout = _Layout(model, batch, layers)
    token_states, memory = layout.encoded()
    causal, answered = _next_tokens(model, batch, token_states), batch.answered
    given = at_canvases(batch.given, batch)
    rate = noise_rates(at_canvases(causal.detach(), batch), rng)
    noise = noise_tokens(model.vocab_size, batch, rng)
    corrupt = torch.rand(B, K, L, generator=rng, device=device) < rate
    noisy = told(torch.where(corrupt, noise, batch.canvases), batch.canvases, given)
    belief = torch.zeros(B, K, L, model.config.hidden_size, device=device)
    wanted = batch.canvases.flatten()
    entropies: list[Tensor] = []
    kinds: list[Tensor] = []

    for again in range(steps + 1):
        states = layout.denoised(noisy, belief, memory)
        logits = model.softcapped(model.logits(states))
        entropies.append(F.cross_entropy(logits.flatten(0, -2), wanted, reduction="none"))
        kinds.append(clutter(noisy != batch.canvases).flatten())
        if again < steps:
            with torch.no_grad():
                after, probabilities = step(logits, rng)
                noisy = told(after, batch.canvases, given)
                belief = model.soft_embedding(probabilities)

    diffusion = torch.cat(entropies)
    weights = repeat(batch.weights[:, None, None] * ~given, "b k l -> (s b k l)", s=steps + 1)
    total = balanced(diffusion, torch.cat(kinds), weights)
    causal, weights = causal[answered], batch.weights[answered.nonzero()[:, 0]]
    total = total + balanced(causal, torch.zeros_like(weights, dtype=torch.long), weights)
    return Loss(total=total, diffusion=diffusion.mean(), next_token=causal.mean())


@torch.no_grad()
def unsure(
    model: DiffusionGemma, batch: TrainingBatch, layers: Layers = plainly
) -> Float[Tensor, "B T"]:
    """Cross-entropy in nats of each token of the answers, by those before it; 0 elsewhere."""
    return _next_tokens(model, batch, _Layout(model, batch, layers).encoded()[0])


def _next_tokens(
    model: DiffusionGemma, batch: TrainingBatch, states: Float[Tensor, "B T hidden"]
) -> Float[Tensor, "B T"]:
    """What `unsure` is, of `states` and differentiable."""
    answered = batch.answered
    logits = model.softcapped(model.logits(states[:, :-1][answered[:, 1:]]))
    entropies = F.cross_entropy(logits, batch.tokens[answered], reduction="none")
    nothing = torch.zeros_like(batch.tokens, dtype=entropies.dtype)
    return nothing.masked_scatter(answered, entropies)


def told(
    noisy: Int[Tensor, "B K L"], canvases: Int[Tensor, "B K L"], given: Bool[Tensor, "B K L"]
) -> Int[Tensor, "B K L"]:
    """Noisy canvases, and in them the given tokens that a grammar says by now: those behind nothing
    that is wrong. Where the others begin is not known before."""
    behind = (given | (noisy == canvases)).cumprod(-1).bool()
    return torch.where(given & behind, canvases, noisy)


def clutter(corrupt: Bool[Tensor, "B K L"]) -> Int[Tensor, "B K L"]:
    """How little the places before each one say: the corrupted ones among the `NEAR` to its left,
    and behind all those of places that are corrupted themselves, those of places that are not."""
    before = F.pad(corrupt.cumsum(-1), (NEAR, 0))
    near = before[..., NEAR:] - before[..., :-NEAR]  # itself included
    return torch.where(corrupt, near - 1, near + NEAR)


def balanced(
    entropies: Float[Tensor, " n"], kinds: Int[Tensor, " n"], weights: Float[Tensor, " n"]
) -> Float[Tensor, ""]:
    """Mean cross-entropy by weights, and each kind of place by the inverse of its own mean: places
    that nothing can be known about would drown what can be learned at the others."""
    counts = kinds.bincount(minlength=2 * NEAR)
    sums = torch.zeros_like(counts, dtype=entropies.dtype).index_add(0, kinds, entropies.detach())
    scales = 1 / (sums / counts.clamp(min=1) + FLOOR)
    return (entropies * scales[kinds] * weights).mean()


def at_canvases(
    values: Float[Tensor, "B T"] | Bool[Tensor, "B T"], batch: TrainingBatch
) -> Float[Tensor, "B K L"] | Bool[Tensor, "B K L"]:
    """Those of the tokens that each place of the canvases should become; 0 behind the last."""
    B, K, L = batch.canvases.shape
    padded = F.pad(values, (0, L))
    return padded.gather(1, batch.columns.flatten(1)).view(B, K, L)


def noise_rates(unsure: Float[Tensor, "B K L"], rng: torch.Generator) -> Float[Tensor, "B K L"]:
    """How likely each position is to be corrupted.

    Some canvases have one rate for all positions. The others are as decoding finds them, where what
    is known grows from the left: little noise up to some position, all noise behind it, and a rise
    of up to `SLOPE` positions between. Noise begins the more often at a place the more it is
    `unsure`, the cross-entropy in nats of the next token, what is on its left being known: there is
    little to be learned at others.
    """
    B, K, L = unsure.shape
    device = unsure.device
    even, slope, kind, ahead = torch.rand(4, B, K, 1, generator=rng, device=device)
    weights = unsure.clamp(ANYWHERE, UNSURE).flatten(0, 1)
    start = torch.multinomial(weights, 1, generator=rng).view(B, K, 1)
    width = 1 + slope * SLOPE
    rising = (torch.arange(L, device=device) - start + ahead * width / 2) / width + 0.5
    rate = torch.where(kind < RISING, rising, even * (1 - LEAST_NOISE) + LEAST_NOISE)
    return rate.clamp(LEAST_NOISE, 1)


def noise_tokens(
    vocab_size: int, batch: TrainingBatch, rng: torch.Generator
) -> Int[Tensor, "B K L"]:
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
    """Where the tokens of a batch and its canvases lie, and who sees whom: behind `T` tokens come
    `K` canvases of `L` positions."""

    def __init__(self, model: DiffusionGemma, batch: TrainingBatch, layers: Layers = plainly):
        self._model, self._batch, self._layers = model, batch, layers
        self._windows = {model.config.window_of(layer.kind) for layer in model.config.layers}

    def encoded(self) -> tuple[Float[Tensor, "B T hidden"], Memory]:
        """Normed states of the clean tokens, and what canvases see of them."""
        tokens = self._batch.tokens
        column = torch.arange(tokens.shape[1], device=tokens.device)
        scalars = self._model.scalars(torch.ones_like(column, dtype=torch.bool)[:, None])
        x, positions = self._model.embed(tokens), column.expand_as(tokens)
        spans = {window: self._before_tokens(window) for window in self._windows}
        return self._layers(self._model, x, positions, spans, scalars)

    @cached_property
    def _of_canvases(self) -> dict[int | None, Int32[Tensor, "B N 4"]]:
        """For every pass over canvases the same; where only tokens are encoded, none."""
        return {window: self._around_canvases(window) for window in self._windows}

    def denoised(
        self, noisy: Int[Tensor, "B K L"], belief: Float[Tensor, "B K L hidden"], memory: Memory
    ) -> Float[Tensor, "B K L hidden"]:
        """Normed states of the canvases."""
        K, L = noisy.shape[1:]
        positions = rearrange(self._batch.columns, "b k l -> b (k l)")
        scalars = self._model.scalars(torch.zeros(K * L, 1, dtype=torch.bool, device=noisy.device))
        x = self._model.self_conditioning(self._model.embed(noisy), belief)
        x = rearrange(x, "b k l h -> b (k l) h")
        states, _ = self._layers(self._model, x, positions, self._of_canvases, scalars, memory)
        return rearrange(states, "b (k l) h -> b k l h", k=K)

    def _before_tokens(self, window: int | None) -> Int32[Tensor, "B T 4"]:
        """Those up to itself, for each clean token."""
        B, T = self._batch.tokens.shape
        column = torch.arange(T, device=self._batch.tokens.device)
        spans = torch.stack((_behind(column, window), column + 1, column * 0, column * 0), -1)
        return spans.expand(B, T, 4).int().contiguous()

    def _around_canvases(self, window: int | None) -> Int32[Tensor, "B N 4"]:
        """The tokens before a canvas and the canvas itself, for each of the `N = K * L`."""
        B, K, L = self._batch.canvases.shape
        starts = repeat(self._batch.starts, "b k -> b (k l)", l=L)
        own = torch.arange(K, device=starts.device).repeat_interleave(L) * L
        own = (own + self._batch.tokens.shape[1]).expand(B, -1)
        return torch.stack((_behind(starts, window), starts, own, own + L), -1).int()


def _behind(last: Int[Tensor, "*shape"], window: int | None) -> Int[Tensor, "*shape"]:
    """The first of the tokens that a window up to `last` still holds."""
    return torch.zeros_like(last) if window is None else (last - window + 1).clamp(min=0)


def _seen(spans: Int32[Tensor, "B N 4"], keys: int) -> Bool[Tensor, "B 1 N keys"]:
    key = torch.arange(keys, device=spans.device)
    first, end, own, own_end = spans[..., None].unbind(2)
    return (((key >= first) & (key < end)) | ((key >= own) & (key < own_end)))[:, None]


def _masked_attention(
    mask: Bool[Tensor, "B 1 N keys"],
    before: tuple[Tensor, Tensor] | None,
    said: list[tuple[Tensor, Tensor]],
) -> Attend:
    """Attention written out, also to keys and values from `before`; its own are `said`.

    With a mask for each sample, that is faster to differentiate on a CPU than the fused kernel, and
    a compiler can fuse it with what is around it."""

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        said.append((k, v))
        if before is not None:
            k, v = torch.cat((before[0], k), 1), torch.cat((before[1], v), 1)
        N, heads, shared = q.shape[1], q.shape[2], q.shape[2] // k.shape[2]
        q = rearrange(q.type_as(v), "b n (h g) d -> b h (g n) d", g=shared)
        k, v = (rearrange(x.type_as(v), "b n h d -> b h n d") for x in (k, v))
        scores = (q @ k.transpose(-1, -2)).unflatten(2, (shared, N)).flatten(1, 2)
        weights = scores.float().masked_fill(~mask, -torch.inf).softmax(-1).type_as(v)
        out = weights.unflatten(1, (heads // shared, shared)).flatten(2, 3) @ v
        return rearrange(out, "b h (g n) d -> b n (h g) d", g=shared)

    return attend
