"""Training objective: uniform-state diffusion on canvases, next-token prediction on answers.

One causal pass over each sample's clean tokens (the encoder's part) is followed by passes over
noisy canvases (the decoder's part), which see the keys and values of the tokens before them. A
canvas of random tokens is all noise: there is no mask token (arXiv:2107.03006, the uniform case).
Canvases are also scored as they are during decoding: one or more steps after the noise, with the
model's own mistakes and soft embeddings (step-unrolled denoising, arXiv:2112.06749).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from einops import rearrange, repeat
from jaxtyping import Bool, Float, Int, Int32
from torch import Tensor
from torch.nn import functional as F

from dlm.models.diffusion_gemma.model import DiffusionGemma
from dlm.models.modules import Attend

Memory = Sequence[tuple[Tensor, Tensor]]  # keys and values of each layer
# Maps logits `[B, K, L, V]` to the next canvases and the probabilities of their soft
# embeddings.
Step = Callable[[Tensor, torch.Generator], tuple[Tensor, Tensor]]

LEAST_NOISE = 0.02  # least share of a canvas that is corrupted, on average
RISING = 0.7  # share of canvases whose noise rises from left to right
UNSURE = 0.5  # nats; highest weight of a position as the beginning of noise
ANYWHERE = 0.02  # nats; lowest weight
PLAUSIBLE = 0.6  # highest share of corrupted tokens that are not random
NEAR = 6  # number of positions to the left that matter most
FLOOR = 0.25  # nats; the highest weight of a position is the inverse
SLOPE = 12  # most positions over which noise rises


@dataclass(frozen=True, kw_only=True)
class TrainingBatch:
    """Batch of `B` samples of up to `T` clean tokens, each with `K` canvases of `L` positions."""

    tokens: Int[Tensor, "B T"]  # clean prompt and answer, padded at the end
    lengths: Int[Tensor, " B"]  # number of clean tokens of each
    answers: Int[Tensor, " B"]  # where each answer starts
    canvases: Int[Tensor, "B K L"]  # targets of the canvases
    starts: Int[Tensor, "B K"]  # position of each canvas's first token
    given: Bool[Tensor, "B T"]  # tokens of answers that a grammar forces, which need not be learned
    weights: Float[Tensor, " B"]  # weights in the loss, 1 on average

    @property
    def answered(self) -> Bool[Tensor, "B T"]:
        """Whether each token belongs to an answer and is not given."""
        column = torch.arange(self.tokens.shape[1], device=self.tokens.device)
        within = (column >= self.answers[:, None]) & (column < self.lengths[:, None])
        return within & ~self.given

    @property
    def columns(self) -> Int[Tensor, "B K L"]:
        """Position of each token of the canvases."""
        L = self.canvases.shape[2]
        return self.starts[..., None] + torch.arange(L, device=self.starts.device)

    def each(self, change: Callable[[Tensor], Tensor]) -> "TrainingBatch":
        """Return a batch with all tensors changed alike: to select samples or move them to a
        device."""
        return TrainingBatch(**{name: change(tensor) for name, tensor in vars(self).items()})


@dataclass(frozen=True, kw_only=True)
class Loss:
    """Loss of a batch: `total` is to be minimised; the others are mean cross-entropies in nats per
    token."""

    total: Float[Tensor, ""]
    diffusion: Float[Tensor, ""]
    next_token: Float[Tensor, ""]


def run_layers(
    model: DiffusionGemma,
    x: Float[Tensor, "B N hidden"],
    positions: Int[Tensor, "B N"],
    spans: Mapping[int | None, Int32[Tensor, "B N 4"]],
    scalars: Sequence[Float[Tensor, "N 1"]],
    memory: Memory | None = None,
) -> tuple[Float[Tensor, "B N hidden"], Memory]:
    """Return normed states by the model's layers, under masks, and their keys and values.

    Tokens see those of `memory` and, after them, each other: `spans[window]` has two ranges that
    each token sees: first, end, first, end.
    """
    stored: list[tuple[Tensor, Tensor]] = []
    before = memory or [None] * len(model.config.layers)
    keys = x.shape[1] + (0 if memory is None else memory[0][0].shape[1])
    masks = {window: _seen(each, keys) for window, each in spans.items()}
    attends = [
        _masked_attention(masks[model.config.window_of(layer.kind)], of, stored)
        for layer, of in zip(model.config.layers, before, strict=True)
    ]
    return model.run_layers(x, positions, attends, scalars), stored


def loss(
    model: DiffusionGemma,
    batch: TrainingBatch,
    steps: int,
    step: Step,
    rng: torch.Generator,
) -> Loss:
    """Return the loss of a batch. Every canvas is corrupted at its own random rates and scored, and
    scored again after each of `steps` steps of denoising. No gradient passes through a step."""
    B, K, L = batch.canvases.shape
    device = batch.canvases.device
    layout = _Layout(model, batch)
    token_states, memory = layout.encoded()
    causal, answered = _next_tokens(model, batch, token_states), batch.answered
    given = at_canvases(batch.given, batch)
    rate = noise_rates(at_canvases(causal.detach(), batch), rng)
    noise = noise_tokens(model.vocab_size, batch, rng)
    corrupt = torch.rand(B, K, L, generator=rng, device=device) < rate
    noisy = reveal_given(torch.where(corrupt, noise, batch.canvases), batch.canvases, given)
    soft_embedding = torch.zeros(B, K, L, model.config.hidden_size, device=device)
    wanted = batch.canvases.flatten()
    entropies: list[Tensor] = []
    place_kinds: list[Tensor] = []

    for repetition in range(steps + 1):
        states = layout.denoised(noisy, soft_embedding, memory)
        logits = model.softcapped(model.logits(states))
        entropies.append(F.cross_entropy(logits.flatten(0, -2), wanted, reduction="none"))
        place_kinds.append(clutter(noisy != batch.canvases).flatten())
        if repetition < steps:
            with torch.no_grad():
                after, probabilities = step(logits, rng)
                noisy = reveal_given(after, batch.canvases, given)
                soft_embedding = model.soft_embedding(probabilities)

    diffusion = torch.cat(entropies)
    weights = repeat(batch.weights[:, None, None] * ~given, "b k l -> (s b k l)", s=steps + 1)
    total = balanced(diffusion, torch.cat(place_kinds), weights)
    causal, weights = causal[answered], batch.weights[answered.nonzero()[:, 0]]
    total = total + balanced(causal, torch.zeros_like(weights, dtype=torch.long), weights)
    return Loss(total=total, diffusion=diffusion.mean(), next_token=causal.mean())


@torch.no_grad()
def unsure(model: DiffusionGemma, batch: TrainingBatch) -> Float[Tensor, "B T"]:
    """Return the cross-entropy in nats of each answer token given those before it; 0 elsewhere."""
    return _next_tokens(model, batch, _Layout(model, batch).encoded()[0])


def _next_tokens(
    model: DiffusionGemma, batch: TrainingBatch, states: Float[Tensor, "B T hidden"]
) -> Float[Tensor, "B T"]:
    """Return what `unsure` returns, from the states of its pass, differentiably."""
    answered = batch.answered
    logits = model.softcapped(model.logits(states[:, :-1][answered[:, 1:]]))
    entropies = F.cross_entropy(logits, batch.tokens[answered], reduction="none")
    nothing = torch.zeros_like(batch.tokens, dtype=entropies.dtype)
    return nothing.masked_scatter(answered, entropies)


def reveal_given(
    noisy: Int[Tensor, "B K L"], canvases: Int[Tensor, "B K L"], given: Bool[Tensor, "B K L"]
) -> Int[Tensor, "B K L"]:
    """Return noisy canvases with those given tokens that a grammar forces already. These come after
    no wrong token: where later ones begin is not known yet."""
    known_before = (given | (noisy == canvases)).cumprod(-1).bool()
    return torch.where(given & known_before, canvases, noisy)


def clutter(corrupt: Bool[Tensor, "B K L"]) -> Int[Tensor, "B K L"]:
    """Return a kind of each position: how many of the `NEAR` positions to its left are corrupted.
    Kinds of positions that are not corrupted themselves come after those of corrupted ones."""
    before = F.pad(corrupt.cumsum(-1), (NEAR, 0))
    near = before[..., NEAR:] - before[..., :-NEAR]  # itself included
    return torch.where(corrupt, near - 1, near + NEAR)


def balanced(
    entropies: Float[Tensor, " n"], place_kinds: Int[Tensor, " n"], weights: Float[Tensor, " n"]
) -> Float[Tensor, ""]:
    """Return the weighted mean cross-entropy, with each kind of position scaled by the inverse of
    its mean. Otherwise positions about which nothing can be known would drown the others."""
    counts = place_kinds.bincount(minlength=2 * NEAR)
    sums = torch.zeros_like(counts, dtype=entropies.dtype).index_add(
        0, place_kinds, entropies.detach()
    )
    scales = 1 / (sums / counts.clamp(min=1) + FLOOR)
    return (entropies * scales[place_kinds] * weights).mean()


def at_canvases(
    values: Float[Tensor, "B T"] | Bool[Tensor, "B T"], batch: TrainingBatch
) -> Float[Tensor, "B K L"] | Bool[Tensor, "B K L"]:
    """Return the values of the tokens that canvas positions should become; 0 after the last
    token."""
    B, K, L = batch.canvases.shape
    padded = F.pad(values, (0, L))
    return padded.gather(1, batch.columns.flatten(1)).view(B, K, L)


def noise_rates(unsure: Float[Tensor, "B K L"], rng: torch.Generator) -> Float[Tensor, "B K L"]:
    """Return the probability that each position is corrupted.

    Some canvases have one rate for all positions. The others are like canvases during decoding,
    which become known from the left: little noise up to some position, all noise after it, and a
    rise over up to `SLOPE` positions between. Noise begins more often at positions that are
    `unsure`, the cross-entropy in nats of the next token given those to its left: there is little
    to learn at others.
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
    """Return replacements for corrupted tokens: random tokens, or plausible mistakes of a decoder.
    Up to `PLAUSIBLE` of a canvas's are earlier tokens of the text, or the canvas's own shifted by a
    position or two, as if two answers were mixed or a length was misjudged."""
    B, K, L = batch.canvases.shape
    device = batch.canvases.device
    random_tokens = torch.randint(vocab_size, (B, K, L), generator=rng, device=device)
    pick, which, share = torch.rand(3, B, K, L, generator=rng, device=device)
    earlier = (pick * batch.starts[..., None]).long()
    stored = batch.tokens.gather(1, earlier.flatten(1)).view(B, K, L)
    offset = torch.randint(1, 3, (B, K, 1), generator=rng, device=device)
    offset = torch.where(pick[..., :1] < 0.5, -offset, offset) + torch.arange(L, device=device)
    shifted = batch.canvases.gather(2, offset.clamp(0, L - 1))
    share = share[..., :1] * PLAUSIBLE
    return torch.where(
        which < share, torch.where(which < share * 0.6, stored, shifted), random_tokens
    )


class _Layout:
    """Layout of a batch: `T` tokens, then `K` canvases of `L` positions, and which of them see
    which."""

    def __init__(self, model: DiffusionGemma, batch: TrainingBatch):
        self._model, self._batch = model, batch
        self._windows = {model.config.window_of(layer.kind) for layer in model.config.layers}

    def encoded(self) -> tuple[Float[Tensor, "B T hidden"], Memory]:
        """Return normed states of the clean tokens, and the keys and values for canvases."""
        tokens = self._batch.tokens
        column = torch.arange(tokens.shape[1], device=tokens.device)
        scalars = self._model.scalars(torch.ones_like(column, dtype=torch.bool)[:, None])
        x, positions = self._model.embed(tokens), column.expand_as(tokens)
        spans = {window: self._before_tokens(window) for window in self._windows}
        return run_layers(self._model, x, positions, spans, scalars)

    @cached_property
    def _of_canvases(self) -> dict[int | None, Int32[Tensor, "B N 4"]]:
        """Ranges that canvases see, the same in every pass."""
        return {window: self._around_canvases(window) for window in self._windows}

    def denoised(
        self,
        noisy: Int[Tensor, "B K L"],
        soft_embedding: Float[Tensor, "B K L hidden"],
        memory: Memory,
    ) -> Float[Tensor, "B K L hidden"]:
        """Return normed states of the canvases."""
        K, L = noisy.shape[1:]
        positions = rearrange(self._batch.columns, "b k l -> b (k l)")
        scalars = self._model.scalars(torch.zeros(K * L, 1, dtype=torch.bool, device=noisy.device))
        x = self._model.self_conditioning(self._model.embed(noisy), soft_embedding)
        x = rearrange(x, "b k l h -> b (k l) h")
        states, _ = run_layers(self._model, x, positions, self._of_canvases, scalars, memory)
        return rearrange(states, "b (k l) h -> b k l h", k=K)

    def _before_tokens(self, window: int | None) -> Int32[Tensor, "B T 4"]:
        """Return the ranges that clean tokens see: those up to themselves."""
        B, T = self._batch.tokens.shape
        column = torch.arange(T, device=self._batch.tokens.device)
        spans = torch.stack((_first_seen(column, window), column + 1, column * 0, column * 0), -1)
        return spans.expand(B, T, 4).int().contiguous()

    def _around_canvases(self, window: int | None) -> Int32[Tensor, "B N 4"]:
        """Return the ranges that the `N = K * L` canvas tokens see: the tokens before their canvas,
        and itself."""
        B, K, L = self._batch.canvases.shape
        starts = repeat(self._batch.starts, "b k -> b (k l)", l=L)
        own = torch.arange(K, device=starts.device).repeat_interleave(L) * L
        own = (own + self._batch.tokens.shape[1]).expand(B, -1)
        return torch.stack((_first_seen(starts, window), starts, own, own + L), -1).int()


def _first_seen(last: Int[Tensor, "*shape"], window: int | None) -> Int[Tensor, "*shape"]:
    """Return the first token within a window that ends at `last`."""
    return torch.zeros_like(last) if window is None else (last - window + 1).clamp(min=0)


def _seen(spans: Int32[Tensor, "B N 4"], keys: int) -> Bool[Tensor, "B 1 N keys"]:
    key = torch.arange(keys, device=spans.device)
    first, end, own, own_end = spans[..., None].unbind(2)
    return (((key >= first) & (key < end)) | ((key >= own) & (key < own_end)))[:, None]


def _masked_attention(
    mask: Bool[Tensor, "B 1 N keys"],
    before: tuple[Tensor, Tensor] | None,
    stored: list[tuple[Tensor, Tensor]],
) -> Attend:
    """Return attention under `mask`, also to keys and values from `before`; its own are appended to
    `stored`. With a mask for each sample this is faster to differentiate on a CPU than the fused
    kernel, and a compiler can fuse it with its surroundings."""

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        stored.append((k, v))
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
