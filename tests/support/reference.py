"""transformers' DiffusionGemma, tiny and random: the oracle that ours is compared with.

Weights that could hide a mistake by being 0, 1 or equal to their neighbours are random: gains,
router scales, the layer scalars of encoder and decoder.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import DiffusionGemmaConfig, DiffusionGemmaForBlockDiffusion, DynamicCache
from transformers.initialization import no_init_weights
from transformers.utils import logging

from dlm.integrations.causal_lm import cache_name
from dlm.logits.distributions import TokenDistributions
from dlm.logits.masks import MaskTable
from dlm.models import DiffusionGemma, KVCache, checkpoint

logging.disable_progress_bar()

VOCAB, HIDDEN = 64, 32
CANVAS, WINDOW = 8, 6  # a canvas is not windowed within itself: it must be longer to show that
KINDS = ["sliding_attention", "full_attention"] * 2

# Both sides work in fp32 and differ in the order of sums: at most a few hundred terms of size 1
# in each of 4 layers, so a few units of 6e-8 * sqrt(hundreds) * layers. Observed: 4e-6.
CLOSE = {"rtol": 1e-5, "atol": 1e-5}


def make(directory: Path, **text: Any) -> DiffusionGemmaForBlockDiffusion:
    """Return a model with fields of `text_config` replaced by `text`, saved in `directory`."""
    config = DiffusionGemmaConfig(
        text_config={
            "vocab_size": VOCAB,
            "hidden_size": HIDDEN,
            "intermediate_size": 48,
            "num_hidden_layers": len(KINDS),
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "global_head_dim": 32,
            "num_global_key_value_heads": 1,
            "sliding_window": WINDOW,
            "num_experts": 4,
            "top_k_experts": 2,
            "moe_intermediate_size": 24,
            "layer_types": KINDS,
            "max_position_embeddings": 1024,
        }
        | text,
        vision_config={
            "model_type": "gemma4_vision",
            "hidden_size": 16,
            "intermediate_size": 16,
            "num_hidden_layers": 1,
            "num_attention_heads": 1,
            "num_key_value_heads": 1,
            "head_dim": 16,
        },
        canvas_length=CANVAS,
        image_token_id=3,
        boi_token_id=3,
        eoi_token_id=3,
    )
    with no_init_weights():  # they are drawn below
        model = DiffusionGemmaForBlockDiffusion(config).eval()
    model.tie_weights()
    rng = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if name.endswith(("q_norm.weight", "k_norm.weight")):
                tensor.uniform_(0.25, 0.75, generator=rng)  # saturated attention magnifies errors
            elif tensor.dim() == 1:
                tensor.uniform_(0.5, 1.5, generator=rng)
            else:
                std = 0.5 if "router" in name or "embed_tokens" in name else 0.1
                tensor.normal_(0, std, generator=rng)
    model.save_pretrained(directory)
    return model


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Models of transformers and ours with the same weights, and their directory."""

    theirs: DiffusionGemmaForBlockDiffusion
    ours: DiffusionGemma
    directory: Path


def make_pair(directory: Path, **text: Any) -> Pair:
    theirs = make(directory, **text)
    return Pair(theirs=theirs, ours=checkpoint.load(directory), directory=directory)


class Theirs:
    """One conversation with transformers' model, with the methods of ours."""

    def __init__(self, model: DiffusionGemmaForBlockDiffusion):
        self._model = model
        self._encoder = model.model.encoder.language_model
        self._cache = DynamicCache(config=model.config.get_text_config())
        self._past = {cache_name(model): self._cache}

    @torch.no_grad()
    def encode(self, tokens: Sequence[int]) -> Tensor:
        """Return normed states `[tokens, hidden]`."""
        ids = torch.tensor([list(tokens)])
        return self._encoder(
            input_ids=ids, **{cache_name(self._encoder): self._cache}
        ).last_hidden_state[0]

    @torch.no_grad()
    def denoise(self, canvas: Tensor, previous: Tensor | None = None) -> Tensor:
        """Return logits `[L, V]` for a canvas `[L]` and the logits of the step before."""
        return self._model(
            **self._past,
            decoder_input_ids=canvas[None],
            self_conditioning_logits=None if previous is None else previous[None],
        ).logits[0]

    def cached(self, layer: int) -> tuple[Tensor, Tensor]:
        """Return keys and values `[kv_heads, tokens, D]`; of a sliding layer only its window."""
        stored = self._cache.layers[layer]
        return stored.keys[0], stored.values[0]


def assert_parity(
    ours: DiffusionGemma,
    theirs: DiffusionGemmaForBlockDiffusion,
    prompt: list[int],
    canvas: Tensor,
    steps: int = 1,
    **close: float,
) -> None:
    """Assert that states of a prompt, and logits of some steps of a canvas `[L]`, are the same in
    both models. Each step has the soft embedding of the step before."""
    close = close or CLOSE
    conversation, cache = Theirs(theirs), ours.new_cache(1)
    states = ours.encode([prompt], cache, [0])
    torch.testing.assert_close(states, conversation.encode(prompt), **close)
    embedding, previous = ours.no_soft_embedding()[None], None
    for _ in range(steps):
        logits = ours.denoise(canvas[None], embedding, cache, [0])
        expected = conversation.denoise(canvas, previous)
        torch.testing.assert_close(ours.softcapped(logits[0]), expected, **close)
        embedding, previous = soft_embedding(ours, logits), expected


def cached(cache: KVCache, slot: int, layer: int) -> tuple[Tensor, Tensor]:
    """Return keys and values `[kv_heads, n, D]` of a slot's last tokens that a layer holds."""
    kind, index = cache._layers[layer]
    held = cache._slots[slot].held[kind]
    tokens = cache.length(slot) - held.first * cache._page
    keys, values = (
        pool[held.pages].flatten(0, 1)[:tokens].transpose(0, 1).clone()
        for pool in cache._pools[kind].layer(index)
    )
    return keys, values


def assert_same_cached(cache: KVCache, other: KVCache, slot: int) -> None:
    """Assert that both caches hold the same tokens of a slot, to the bit."""
    assert cache.length(slot) == other.length(slot)
    for layer in range(len(KINDS)):
        found, expected = cached(cache, slot, layer), cached(other, slot, layer)
        torch.testing.assert_close(found, expected, rtol=0, atol=0)


def model_without_data(directory: Path, experts: str = "triton") -> tuple[DiffusionGemma, KVCache]:
    """Return a model, whose backends are kernels, and a cache of two slots, on a device without
    data: an operation that reads a number raises there."""
    make(directory, hidden_size=64, moe_intermediate_size=64)
    with torch.device("meta"):
        model = DiffusionGemma(checkpoint.config_of(directory)).to(torch.bfloat16)
        model.backends |= {"attention": "triton", "layers": "triton"}
        for layer in model.layers:
            layer.experts.backend = experts
            for name in ("k_scale", "v_scale"):
                setattr(layer.self_attn, name, torch.ones(()))
        return model, model.new_cache(2, torch.float8_e4m3fn, capacity=256, segment=64)


@torch.inference_mode()
def soft_embedding(model: DiffusionGemma, logits: Tensor) -> Tensor:
    """Return the engine's soft embedding of `logits [B, L, V]` at a temperature of 1."""
    B, L, V = logits.shape
    table, uniform = MaskTable(-(-V // 32)), torch.zeros(B, L)
    distributions = TokenDistributions(logits, [1.0] * B, uniform, model.softcap, table)
    return model.expected_embedding(distributions.distributions()).view(B, L, -1).clone()


def no_soft_embedding(*shape: int) -> Tensor:
    """The soft embedding of a first step for canvases `shape`."""
    return torch.zeros(*shape, HIDDEN)


def draw(rng: torch.Generator, *shape: int) -> Tensor:
    """Random token ids."""
    return torch.randint(VOCAB, shape, generator=rng)


def edit_config(directory: Path, **text: Any) -> None:
    """Set fields of `text_config` in `directory`; a field set to None is removed."""
    path = directory / "config.json"
    config = json.loads(path.read_text())
    merged = config["text_config"] | text
    config["text_config"] = {name: value for name, value in merged.items() if value is not None}
    path.write_text(json.dumps(config))
