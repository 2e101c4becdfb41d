"""DiffusionGemma's text stack: one set of weights, causal to encode and bidirectional to denoise.

A pass packs segments into one axis: tokens to encode and canvases to denoise, of several slots and
of any lengths. Only attention distinguishes segments, and only the layers' scalars distinguish
encoding from denoising. The reference is transformers' `DiffusionGemmaForBlockDiffusion`.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import accumulate
from types import MappingProxyType
from typing import Any, cast

import torch
from jaxtyping import Bool, Float, Float32, Int
from torch import Tensor, nn
from torch.nn import functional as F

from dlm.kernels.expectation import Distributions
from dlm.kernels.gpus import ROWS
from dlm.models.cache import KVCache
from dlm.models.diffusion_gemma.config import ModelConfig
from dlm.models.diffusion_gemma.costs import NetworkCosts
from dlm.models.diffusion_gemma.layers import (
    Attend,
    Layer,
    RMSNorm,
    SelfConditioning,
    rotary_angles,
)
from dlm.models.image_tokens import FIRST
from dlm.models.pages import Pass
from dlm.models.shape import LayerType
from dlm.models.text_stack import TextStack

# Numbers of rows between which configurations of products change.
_ROWS = 32, 64, 128, 256, 512, 1024
_OPERATIONS = "experts", "attention", "layers", "vocabulary"  # operations that kernels may compute


class DiffusionGemma(TextStack[ModelConfig]):
    def __init__(self, config: ModelConfig):
        super().__init__(config, _OPERATIONS)
        self.embed_tokens = _embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config, layer) for layer in config.layers)
        self.norm = RMSNorm(config.hidden_size, config.eps)
        self.self_conditioning = SelfConditioning(config)

    @property
    def costs(self) -> NetworkCosts:
        return NetworkCosts(self, self.config)

    @property
    def softcap(self) -> float:
        return self.config.softcap

    def warm_up(self, cache: KVCache, slots: int) -> list[Callable[[], Any]]:
        """Return the parts of a warm-up over `cache`, each to be called once; they store nothing.

        The first ones run passes over one token at each kind of context, and over more rows, since
        the configurations of products depend on their number: their kernels are compiled. The
        others capture the passes over canvases alone that up to `slots` slots can lead to, if
        passes are captured. There are none for a cache that grows: it has no pages yet.
        """
        if cache.capacity is None:
            return []
        run = torch.inference_mode()(partial(self._states, cache=cache))
        by_kernel = self.backends["attention"] == "triton"  # only kernels have launches that differ
        plans = cache.imagined_passes(1, 1) if by_kernel else []
        plans += [cache.imagined(1, rows, 0) for rows in _ROWS if rows <= self.config.max_positions]
        parts: list[Callable[[], Any]] = [partial(run, self._zeros(plan), plan) for plan in plans]
        if self.graphs is not None and self.graphs.captures:
            plans = cache.imagined_passes(slots, self.canvas_length)
            captures = self.graphs.captures_of(run, self._zeros, plans)
            parts += [torch.inference_mode()(part) for part in captures]
        return parts

    def _zeros(self, plan: Pass) -> Float[Tensor, "N hidden"]:
        """Return embeddings for a pass whose results do not matter."""
        shape = len(plan.positions), self.config.hidden_size
        return torch.zeros(shape, dtype=self.dtype, device=self.device)

    def no_soft_embedding(self) -> Float[Tensor, "L hidden"]:
        """Return the soft embedding of a canvas's first step: zeros."""
        shape = self.canvas_length, self.config.hidden_size
        return torch.zeros(shape, dtype=self.dtype, device=self.device)

    @torch.inference_mode()
    def encode(
        self, tokens: Sequence[Sequence[int]], cache: KVCache, slots: Sequence[int]
    ) -> Float[Tensor, "total hidden"]:
        """Append `tokens[i]` to slot `slots[i]`; returns the normed states of all, packed. Each
        token sees what its slot has committed before it. `logits` of the last states predict the
        next tokens: the same weights are an autoregressive model."""
        none = torch.empty(0, self.config.hidden_size, dtype=self.dtype, device=self.device)
        return self._run(dict(zip(slots, tokens, strict=True)), none, (), cache)

    @torch.inference_mode()
    def predict(
        self, tokens: Mapping[int, Sequence[int]], last: Mapping[int, int], cache: KVCache
    ) -> Float[Tensor, "n V"]:
        """Append `tokens[slot]` to each slot and predict. Returns the logits, before the softcap,
        of the next token after each of the last `last[slot]` tokens, slot by slot in the order of
        `last`."""
        states = self.encode(list(tokens.values()), cache, list(tokens))
        return self._next_logits(states, tokens, last)

    @torch.inference_mode()
    def denoise(
        self,
        canvas: Int[Tensor, "B L"],
        soft_embedding: Float[Tensor, "B L hidden"],
        cache: KVCache,
        slots: Sequence[int],
        encode: Mapping[int, Sequence[int]] = MappingProxyType({}),
    ) -> Float[Tensor, "B L V"]:
        """Return the logits of one pass over the canvases of `slots`, which also appends
        `encode[slot]`.

        `soft_embedding` is that of the previous step's logits, zeros at the first step. Each
        position sees its whole canvas and all that its slot has committed, including the tokens
        appended by this pass. A canvas leaves nothing in the cache.
        """
        B, L = canvas.shape
        x = self.self_conditioning(self.embed(canvas), soft_embedding).flatten(0, 1)
        states = self._run(encode, x, slots, cache)
        return self.logits(states[len(states) - B * L :]).view(B, L, self.vocab_size)

    @torch.inference_mode()
    def predict_and_denoise(
        self,
        tokens: Mapping[int, Sequence[int]],
        last: Mapping[int, int],
        canvas: Int[Tensor, "B L"],
        soft_embedding: Float[Tensor, "B L hidden"],
        cache: KVCache,
    ) -> tuple[Float[Tensor, "n V"], Float[Tensor, "B L V"]]:
        """Run `predict`, and in the same pass `denoise` a canvas after each slot of `last`."""
        B, L = canvas.shape
        x = self.self_conditioning(self.embed(canvas), soft_embedding).flatten(0, 1)
        states = self._run(tokens, x, list(last), cache)
        canvases = self.logits(states[len(states) - B * L :]).view(B, L, self.vocab_size)
        return self._next_logits(states, tokens, last), canvases

    def embed(self, tokens: Int[Tensor, "*batch"]) -> Float[Tensor, "*batch hidden"]:
        """Return embeddings of token ids, scaled by sqrt(hidden) rounded to the dtype."""
        return self._scaled(self.embed_tokens(tokens))

    def expected_embedding(self, distributions: Distributions) -> Float[Tensor, "n hidden"]:
        """Return the embeddings expected under distributions of tokens. These are carried between
        steps instead of `[L, V]` probabilities per slot."""
        return self._scaled(distributions.expected(self.embed_tokens.weight))

    def soft_embedding(
        self, probabilities: Float[Tensor, "*batch V"]
    ) -> Float[Tensor, "*batch hidden"]:
        """Return the embeddings expected under given probabilities."""
        weight = self.embed_tokens.weight
        return self._scaled(probabilities.type_as(weight) @ weight)

    def logits(self, states: Float[Tensor, "*batch hidden"]) -> Float[Tensor, "*batch V"]:
        """Return logits of normed states, before the softcap."""
        return F.linear(states, self.embed_tokens.weight)

    def softcapped(self, logits: Float[Tensor, "*batch V"]) -> Float32[Tensor, "*batch V"]:
        cap = self.config.softcap
        return torch.tanh(logits.float() / cap) * cap

    def run_layers(
        self,
        x: Float[Tensor, "*batch hidden"],
        positions: Int[Tensor, "*batch"],
        attends: Sequence[Attend],
        scalars: Sequence[Tensor],
    ) -> Float[Tensor, "*batch hidden"]:
        """Run all layers and the last norm, with one attention and one scalar per layer."""
        kinds: dict[LayerType, int] = {c.kind: c.head_dim for c in self.config.layers}
        angles = {
            kind: rotary_angles(self.config.rotary[kind], head_dim, positions)
            for kind, head_dim in kinds.items()
        }
        layers = cast(Sequence[Layer], self.layers)
        each = zip(layers, self.config.layers, attends, scalars, strict=True)
        if self.backends["layers"] == "triton" and x.dim() == 2:
            norms = [*(layer.input_layernorm for layer in layers), self.norm]
            normed = norms[0](x)
            for (layer, c, attend, scalar), norm in zip(each, norms[1:], strict=True):
                x, normed = layer.by_kernels(x, normed, *angles[c.kind], attend, scalar, norm)
            return normed
        for layer, c, attend, scalar in each:
            x = layer(x, *angles[c.kind], attend, scalar)
        return self.norm(x)

    def _embedded(self, tokens: Sequence[int]) -> Float[Tensor, "n hidden"]:
        """Return the embeddings of tokens to encode, some of which may stand for images."""
        soft = [i for i, token in enumerate(tokens) if token >= FIRST]
        ids = [token if token < FIRST else 0 for token in tokens]
        x = self.embed(torch.tensor(ids, dtype=torch.long).to(self.device))
        if soft:
            x[soft] = self.images.embeddings([tokens[i] for i in soft]).to(x)
        return x

    def _scaled(self, embedding: Tensor) -> Tensor:
        scale = torch.tensor(self.config.hidden_size**0.5, dtype=embedding.dtype, device="cpu")
        return embedding * scale.item()

    def _run(
        self,
        encode: Mapping[int, Sequence[int]],
        canvases: Float[Tensor, "canvas_tokens hidden"],
        slots: Sequence[int],
        cache: KVCache,
    ) -> Float[Tensor, "total hidden"]:
        """Return the states of the tokens to encode, then those of the canvases of `slots`."""
        plan = cache.plan(encode, slots, len(canvases) // max(1, len(slots)))
        run = partial(self._states, cache=cache)
        if self.graphs is not None and self.graphs.accepts(plan, cache):
            return self.graphs.states(run, canvases, plan)
        new = self._embedded([t for tokens in encode.values() for t in tokens])
        states = run(torch.cat((new, canvases)), plan)
        cache.advance(plan)
        return states

    def _states(
        self, x: Float[Tensor, "total hidden"], plan: Pass, cache: KVCache
    ) -> Float[Tensor, "total hidden"]:
        """Return the states of the tokens of `plan`, whose embeddings are `x`. Kernels wait for
        nothing here, and nothing comes from the host, so it can be captured."""
        encoded, padding = sum(len(tokens) for _, tokens in plan.encode), -len(x) % ROWS
        positions = F.pad(plan.positions, (0, padding))
        causal = torch.arange(len(positions), device=self.device)[:, None] < encoded
        attends = []
        for index, layer in enumerate(self.layers):
            scales = {n: layer.get_buffer(f"self_attn.{n}") for n in ("k_scale", "v_scale")}
            attends.append(partial(cache.attend, index, plan=plan, **scales))
        x = F.pad(x, (0, 0, 0, padding))
        x = self.run_layers(x, positions, attends, self.scalars(causal))
        return x[: len(x) - padding]

    def _next_logits(
        self,
        states: Float[Tensor, "total hidden"],
        tokens: Mapping[int, Sequence[int]],
        last: Mapping[int, int],
    ) -> Float[Tensor, "n V"]:
        """Return the logits after the last `last[slot]` tokens of slots; `states` are in the order
        of `tokens`. Rows are padded as in a pass: rounding must not depend on their number."""
        ends = dict(zip(tokens, accumulate(map(len, tokens.values())), strict=True))
        rows = [at for slot, n in last.items() for at in range(ends[slot] - n, ends[slot])]
        padded = F.pad(states[rows], (0, 0, 0, -len(rows) % ROWS))
        return self.logits(padded)[: len(rows)]

    def scalars(self, encoded: Bool[Tensor, "n 1"]) -> list[Float[Tensor, "n 1"]]:
        """Return the factor of each layer's output, for `encoded` tokens and for those of canvases:
        the only difference between encoder and decoder."""
        encoder, decoder = (
            torch.stack([layer.get_buffer(name) for layer in self.layers])[:, None]
            for name in ("encoder_scalar", "layer_scalar")
        )
        return [*torch.where(encoded, encoder, decoder)]


def _embedding(V: int, hidden: int) -> nn.Embedding:
    """Return an embedding with random weights. Drawing them on the meta device would import torch's
    compiler, which takes two seconds."""
    weight = torch.empty(V, hidden)
    if not weight.is_meta:
        nn.init.normal_(weight)
    return nn.Embedding.from_pretrained(weight, freeze=False)
