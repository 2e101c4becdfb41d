"""The training objective: uniform-state diffusion on canvases, next token on what they answer.

One pass over each sample's clean tokens (the encoder's part, causal) and, behind them, noisy
canvases (the decoder's part), under a mask that gives both what they see when they are run apart.
A canvas of random tokens is all noise: there is no mask token (arXiv:2107.03006, the uniform case).
"""

from dataclasses import dataclass

import torch
from einops import rearrange, repeat
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from dlm.models.layers import Attend
from dlm.models.model import DiffusionGemma, causal_mask

LEAST_NOISE = 0.02  # share of a canvas that is corrupted at the least, on average


@dataclass(frozen=True, kw_only=True)
class Batch:
    """`B` samples of up to `T` clean tokens, each with `K` canvases of `L` positions."""

    tokens: Int[Tensor, "B T"]  # clean prompt and answer, padded at the end
    lengths: Int[Tensor, "B"]  # clean tokens of each
    answers: Int[Tensor, "B"]  # where each answer starts
    canvases: Int[Tensor, "B K L"]  # what each canvas should become
    starts: Int[Tensor, "B K"]  # position of each canvas's first token, which sees those before it


@dataclass(frozen=True, kw_only=True)
class Loss:
    """Mean cross-entropies in nats a token."""

    diffusion: Float[Tensor, ""]
    next_token: Float[Tensor, ""]


def loss(model: DiffusionGemma, batch: Batch, self_condition: bool, rng: torch.Generator) -> Loss:
    """Corrupt every canvas at its own random rate and score the model's view of it.

    `self_condition` runs a first pass without gradient; the second is shown its soft embedding.
    """
    B, K, L = batch.canvases.shape
    device = batch.canvases.device
    rate = torch.rand(B, K, 1, generator=rng, device=device) * (1 - LEAST_NOISE) + LEAST_NOISE
    noise = torch.randint(model.vocab_size, (B, K, L), generator=rng, device=device)
    corrupt = torch.rand(B, K, L, generator=rng, device=device) < rate
    noisy = torch.where(corrupt, noise, batch.canvases)

    layout = _Layout(model, batch)
    soft_embedding = torch.zeros(B, K, L, model.config.hidden_size, device=device)
    if self_condition:
        with torch.no_grad():
            _, canvas_states = layout.states(noisy, soft_embedding)
            soft_embedding = model.soft_embedding(model.logits(canvas_states))
    token_states, canvas_states = layout.states(noisy, soft_embedding)

    column = torch.arange(batch.tokens.shape[1], device=device)
    answered = (column >= batch.answers[:, None]) & (column < batch.lengths[:, None])
    next_tokens, answered = batch.tokens[:, 1:], answered[:, 1:]
    return Loss(
        diffusion=F.cross_entropy(
            model.logits(canvas_states).flatten(0, -2), batch.canvases.flatten()
        ),
        next_token=F.cross_entropy(
            model.logits(token_states[:, :-1][answered]), next_tokens[answered]
        ),
    )


class _Layout:
    """Where everything of a batch lies in one sequence of `T + K * L`, and who sees whom."""

    def __init__(self, model: DiffusionGemma, batch: Batch):
        self._model, self._tokens = model, batch.tokens
        B, T = batch.tokens.shape
        _, self._K, self._L = batch.canvases.shape
        device = batch.tokens.device
        column = torch.arange(T, device=device)
        canvas = batch.starts[..., None] + torch.arange(self._L, device=device)
        self._positions = torch.cat((column.expand(B, T), rearrange(canvas, "b k l -> b (k l)")), 1)
        windows = [model.window(i) for i in range(len(model.layers))]
        attend = {window: _masked_attention(self._mask(batch, window)) for window in set(windows)}
        self._attends = [attend[window] for window in windows]
        clean = torch.arange(T + self._K * self._L, device=device)[:, None] < T
        self._scalars = [
            torch.where(clean, layer.encoder_scalar, layer.layer_scalar) for layer in model.layers
        ]

    def states(
        self, noisy: Int[Tensor, "B K L"], soft_embedding: Float[Tensor, "B K L hidden"]
    ) -> tuple[Float[Tensor, "B T hidden"], Float[Tensor, "B K L hidden"]]:
        """Normed states of the clean tokens and of the canvases."""
        canvas = self._model.self_conditioning(self._model.embed(noisy), soft_embedding)
        tokens = self._model.embed(self._tokens)
        x = torch.cat((tokens, rearrange(canvas, "b k l h -> b (k l) h").type_as(tokens)), dim=1)
        states = self._model.run_layers(x, self._positions, self._attends, self._scalars)
        T = tokens.shape[1]
        return states[:, :T], rearrange(states[:, T:], "b (k l) h -> b k l h", k=self._K)

    def _mask(self, batch: Batch, window: int | None) -> Bool[Tensor, "B 1 N N"]:
        """Who sees whom among the `N = T + K * L`."""
        B, T = batch.tokens.shape
        key = torch.arange(T, device=batch.tokens.device)
        causal = causal_mask(0, T, window, key.device)
        committed = key < batch.starts[..., None]  # [B, K, T]
        if window is not None:
            committed = committed & (key >= batch.starts[..., None] - (window - 1))
        own = torch.block_diag(*[torch.ones(self._L, self._L, dtype=torch.bool)] * self._K)
        tokens = F.pad(causal.expand(B, T, T), (0, self._K * self._L))
        canvases = torch.cat(
            (
                repeat(committed, "b k t -> b (k l) t", l=self._L),
                own.to(key.device).expand(B, -1, -1),
            ),
            dim=2,
        )
        return torch.cat((tokens, canvases), dim=1)[:, None]


def _masked_attention(mask: Tensor) -> Attend:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (rearrange(x, "b n h d -> b h n d") for x in (q, k, v))
        out = F.scaled_dot_product_attention(
            q.type_as(v), k.type_as(v), v, attn_mask=mask, scale=1.0, enable_gqa=True
        )
        return rearrange(out, "b h n d -> b n h d")

    return attend
