"""DiffusionGemma's text stack: one set of weights, run causally to encode and both ways to denoise.

Tokens of several slots are packed into one axis, so that slots of different lengths need no
padding; attention alone looks at slots one by one. The reference is transformers'
`DiffusionGemmaForBlockDiffusion`.
"""

from collections.abc import Sequence
from typing import Literal

import torch
from jaxtyping import Bool, Float, Float32, Int
from torch import Tensor, nn
from torch.nn import functional as F

from dlm.kernels.expectation import Distributions
from dlm.models.cache import KVCache
from dlm.models.config import LayerType, ModelConfig
from dlm.models.layers import Attend, Layer, RMSNorm, SelfConditioning, rotary_angles

Mode = Literal["encode", "denoise"]


class DiffusionGemma(nn.Module):
    def __init__(self, config: ModelConfig):
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config, layer) for layer in config.layers)
        self.norm = RMSNorm(config.hidden_size, config.eps)
        self.self_conditioning = SelfConditioning(config)

    @property
    def vocab_size(self) -> int:
        return self.config.vocab_size

    @property
    def canvas_length(self) -> int:
        return self.config.canvas_length

    @property
    def max_positions(self) -> int:
        return self.config.max_positions

    @property
    def softcap(self) -> float:
        return self.config.softcap

    @property
    def device(self) -> torch.device:
        return self.embed_tokens.weight.device

    def new_cache(self, slots: int) -> KVCache:
        return KVCache(self.config, slots, self.embed_tokens.weight.dtype, self.device)

    def no_soft_embedding(self) -> Float[Tensor, "L hidden"]:
        """The soft embedding of a canvas's first step: nothing."""
        shape = self.canvas_length, self.config.hidden_size
        return torch.zeros(shape, dtype=self.embed_tokens.weight.dtype, device=self.device)

    @torch.inference_mode()
    def encode(
        self, tokens: Sequence[Sequence[int]], cache: KVCache, slots: Sequence[int]
    ) -> Float[Tensor, "total hidden"]:
        """Append `tokens[i]` to slot `slots[i]`; returns the normed states of all, packed.

        Causal over all that the slot has committed. The states of the last tokens, through
        `logits`, predict the next token: the same weights are an autoregressive model.
        """
        packed = torch.tensor([t for row in tokens for t in row], device=self.device)
        lengths = [len(row) for row in tokens]
        states = self._run(self.embed(packed), "encode", lengths, cache, slots)
        for slot, length in zip(slots, lengths, strict=True):
            cache.advance(slot, length)
        return states

    @torch.inference_mode()
    def denoise(
        self,
        canvas: Int[Tensor, "B L"],
        soft_embedding: Float[Tensor, "B L hidden"],
        cache: KVCache,
        slots: Sequence[int],
    ) -> Float[Tensor, "B L V"]:
        """Logits of one pass over the canvases of `slots`.

        `soft_embedding` is that of the previous step's logits, zeros at the first step.
        Each position sees its whole canvas and what its slot has committed; the cache is left as
        it was.
        """
        B, L = canvas.shape
        x = self.self_conditioning(self.embed(canvas), soft_embedding).flatten(0, 1)
        return self.logits(self._run(x, "denoise", [L] * B, cache, slots)).view(B, L, -1)

    def embed(self, tokens: Int[Tensor, "*batch"]) -> Float[Tensor, "*batch hidden"]:
        """Embeddings of token ids, scaled by sqrt(hidden) rounded to the dtype."""
        return self._scaled(self.embed_tokens(tokens))

    def expected_embedding(self, distributions: Distributions) -> Float[Tensor, "n hidden"]:
        """The embeddings expected under distributions of tokens.

        They are what is carried between steps, instead of `[L, V]` of probabilities a slot.
        """
        return self._scaled(distributions.expected(self.embed_tokens.weight))

    def soft_embedding(
        self, probabilities: Float[Tensor, "*batch V"]
    ) -> Float[Tensor, "*batch hidden"]:
        """The same of probabilities that are there already."""
        weight = self.embed_tokens.weight
        return self._scaled(probabilities.type_as(weight) @ weight)

    def logits(self, states: Float[Tensor, "*batch hidden"]) -> Float[Tensor, "*batch V"]:
        """Logits of normed states, before the softcap."""
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
        """All layers and the last norm; one attention and one scalar a layer."""
        kinds: dict[LayerType, int] = {c.kind: c.head_dim for c in self.config.layers}
        angles = {
            kind: rotary_angles(self.config.rotary[kind], head_dim, positions)
            for kind, head_dim in kinds.items()
        }
        for layer, c, attend, scalar in zip(
            self.layers, self.config.layers, attends, scalars, strict=True
        ):
            x = layer(x, *angles[c.kind], attend, scalar)
        return self.norm(x)

    def _scaled(self, embedding: Tensor) -> Tensor:
        scale = torch.tensor(self.config.hidden_size**0.5, dtype=embedding.dtype)
        return embedding * scale.item()

    def _run(
        self, x: Tensor, mode: Mode, lengths: list[int], cache: KVCache, slots: Sequence[int]
    ) -> Tensor:
        starts = [cache.length(slot) for slot in slots]
        positions = torch.cat(
            [torch.arange(s, s + n, device=x.device) for s, n in zip(starts, lengths, strict=True)]
        )
        attends = [
            _cached_attention(cache, index, slots, lengths, mode, self.window(index))
            for index in range(len(self.layers))
        ]
        return self.run_layers(x, positions, attends, self.scalars(mode))

    def scalars(self, mode: Mode) -> list[Float[Tensor, "1"]]:
        """What each layer's output is multiplied by: all that sets encoder and decoder apart."""
        name = "encoder_scalar" if mode == "encode" else "layer_scalar"
        return [layer.get_buffer(name) for layer in self.layers]

    def window(self, layer: int) -> int | None:
        """Tokens that a sliding layer sees, the current one included; None for a full layer."""
        sliding = self.config.layers[layer].kind == "sliding_attention"
        return self.config.window if sliding else None


def _cached_attention(
    cache: KVCache,
    layer: int,
    slots: Sequence[int],
    lengths: Sequence[int],
    mode: Mode,
    window: int | None,
) -> Attend:
    """Attention over packed tokens, slot by slot, each over its own cached tokens and itself."""

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out = torch.empty_like(q)
        end = 0
        for slot, length in zip(slots, lengths, strict=True):
            here = slice(end, end := end + length)
            past = cache.length(slot)
            keys, values = cache.stage(slot, layer, k[here], v[here])
            first = 0 if window is None else max(0, past - (window - 1))
            mask = causal_mask(past - first, length, window, q.device) if mode == "encode" else None
            out[here] = F.scaled_dot_product_attention(
                q[here].transpose(0, 1)[None],
                keys[None, :, first:],
                values[None, :, first:],
                attn_mask=mask,
                scale=1.0,
                enable_gqa=True,
            )[0].transpose(0, 1)
        return out

    return attend


def causal_mask(
    past: int, length: int, window: int | None, device: torch.device
) -> Bool[Tensor, "{length} {past+length}"]:
    """Who may see whom, for `length` tokens after `past` others."""
    query = torch.arange(past, past + length, device=device)[:, None]
    key = torch.arange(past + length, device=device)
    seen = key <= query
    return seen if window is None else seen & (query - key < window)
