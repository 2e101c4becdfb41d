"""Text stack whose passes are packed: tokens to encode and canvases to denoise, in one axis.

A pass has segments of several slots, of any lengths. Encoded tokens are causal, canvases see both
directions; all of them run through the same layers. This module does not know the layers.
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import accumulate
from types import MappingProxyType
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from dlm.kernels.gpus import ROWS
from dlm.models.cache import KVCache
from dlm.models.image_tokens import FIRST
from dlm.models.modules import Attend
from dlm.models.pages import Pass
from dlm.models.text_stack import C, TextStack

# Numbers of rows between which configurations of products change.
_ROWS = 32, 64, 128, 256, 512, 1024


class PackedStack(TextStack[C]):
    """Text stack with `layers`, each of which has a `self_attn` with the scales of an fp8 cache."""

    layers: nn.ModuleList

    @abstractmethod
    def embed(self, tokens: Int[Tensor, "*batch"]) -> Float[Tensor, "*batch hidden"]:
        """Return the embeddings of token ids."""

    @abstractmethod
    def canvas_embeddings(
        self,
        canvas: Int[Tensor, "B L"],
        soft_embedding: Float[Tensor, "B L hidden"] | None,
    ) -> Float[Tensor, "B L hidden"]:
        """Return what the layers read of canvases."""

    @abstractmethod
    def logits(self, states: Float[Tensor, "*batch hidden"]) -> Float[Tensor, "*batch V"]:
        """Return logits of normed states, before a softcap."""

    @abstractmethod
    def run_pass(
        self,
        x: Float[Tensor, "n hidden"],
        positions: Int[Tensor, " n"],
        attends: Sequence[Attend],
        encoded: Bool[Tensor, "n 1"],
        drafting: bool,
    ) -> Float[Tensor, "n hidden"]:
        """Run all layers and the last norm, with one attention per layer. Rows that are not
        `encoded` belong to canvases, or are padding; `drafting`: these are drafts, which a later
        pass verifies."""

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
        soft_embedding: Float[Tensor, "B L hidden"] | None,
        cache: KVCache,
        slots: Sequence[int],
        encode: Mapping[int, Sequence[int]] = MappingProxyType({}),
    ) -> Float[Tensor, "B L V"]:
        """Return the logits of one pass over the canvases of `slots`, which also appends
        `encode[slot]`.

        `soft_embedding` is that of the previous step's logits, zeros at the first step; None for a
        model that carries none. Each position sees its whole canvas and all that its slot has
        committed, including the tokens appended by this pass. A canvas leaves nothing in the cache.
        """
        B, L = canvas.shape
        x = self.canvas_embeddings(canvas, soft_embedding).flatten(0, 1)
        states = self._run(encode, x, slots, cache)
        return self.logits(states[len(states) - B * L :]).view(B, L, self.vocab_size)

    @torch.inference_mode()
    def predict_and_denoise(
        self,
        tokens: Mapping[int, Sequence[int]],
        last: Mapping[int, int],
        canvas: Int[Tensor, "B L"],
        soft_embedding: Float[Tensor, "B L hidden"] | None,
        cache: KVCache,
    ) -> tuple[Float[Tensor, "n V"], Float[Tensor, "B L V"]]:
        """Run `predict`, and in the same pass `denoise` a canvas after each slot of `last`."""
        B, L = canvas.shape
        x = self.canvas_embeddings(canvas, soft_embedding).flatten(0, 1)
        states = self._run(tokens, x, list(last), cache, drafting=True)
        canvases = self.logits(states[len(states) - B * L :]).view(B, L, self.vocab_size)
        return self._next_logits(states, tokens, last), canvases

    def _embedded(self, tokens: Sequence[int]) -> Float[Tensor, "n hidden"]:
        """Return the embeddings of tokens to encode, some of which may stand for images."""
        soft = [i for i, token in enumerate(tokens) if token >= FIRST]
        ids = [token if token < FIRST else 0 for token in tokens]
        x = self.embed(torch.tensor(ids, dtype=torch.long).to(self.device))
        if soft:
            x[soft] = self.images.embeddings([tokens[i] for i in soft]).to(x)
        return x

    def _run(
        self,
        encode: Mapping[int, Sequence[int]],
        canvases: Float[Tensor, "canvas_tokens hidden"],
        slots: Sequence[int],
        cache: KVCache,
        drafting: bool = False,
    ) -> Float[Tensor, "total hidden"]:
        """Return the states of the tokens to encode, then those of the canvases of `slots`."""
        plan = cache.plan(encode, slots, len(canvases) // max(1, len(slots)))
        run = partial(self._states, cache=cache, drafting=drafting)
        if self.graphs is not None and not drafting and self.graphs.accepts(plan, cache):
            return self.graphs.states(run, canvases, plan)
        new = self._embedded([t for tokens in encode.values() for t in tokens])
        states = run(torch.cat((new, canvases)), plan)
        cache.advance(plan)
        return states

    def _states(
        self,
        x: Float[Tensor, "total hidden"],
        plan: Pass,
        cache: KVCache,
        drafting: bool = False,
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
        x = self.run_pass(x, positions, attends, causal, drafting)
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
