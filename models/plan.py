"""Estimates before a model is loaded: bytes on a device, and the least time of a step.

All of it is arithmetic on a config, except for `free_tokens`, which queries a GPU. The estimates
cover the text stack. They do not cover a vision tower, an allocator's waste and a grammar's masks.
GB are 10^9 bytes; contexts are the tokens that a slot has committed, prompt and answer.
"""

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

import torch

from dlm.kernels.gpus import Card
from dlm.models import ModelError, pages
from dlm.models.backends import Dispatch
from dlm.models.diffusion_gemma.config import LayerType, ModelConfig
from dlm.models.diffusion_gemma.layers import NVFP4Weight
from dlm.models.diffusion_gemma.layout import MODELOPT, adapt, tensor_name
from dlm.models.diffusion_gemma.model import DiffusionGemma
from dlm.models.pages import CHUNK

Weights = Literal["nvfp4", "bf16"]  # of experts; all others are bf16
CacheType = Literal["fp8", "bf16"]

RESERVED = 1_500_000_000  # bytes of a GPU for its context, libraries' workspaces and the allocator
_STORED: dict[CacheType, torch.dtype] = {"fp8": torch.float8_e4m3fn, "bf16": torch.bfloat16}
_FLOAT = torch.bfloat16.itemsize
_GATHERED = 64  # assumed number of tokens in a position's soft embedding


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Load of a model. Raises `ModelError` for impossible values."""

    slots: int
    context: int
    cache: CacheType = "fp8"
    weights: Weights = "nvfp4"
    activation_bits: int = 16  # or 4: those of experts in NVFP4

    def __post_init__(self) -> None:
        if self.slots < 1:
            raise ModelError(f"slots is {self.slots}: it takes at least 1")
        if self.context < 0:
            raise ModelError(f"context is {self.context}: it takes 0 or more tokens")
        for value, kind in ((self.cache, CacheType), (self.weights, Weights)):
            if value not in get_args(kind):
                raise ModelError(f"{value!r} is none of {get_args(kind)}")
        if self.activation_bits not in (4, 16):
            raise ModelError(f"activation_bits is {self.activation_bits!r}: it takes 4 or 16")
        if self.activation_bits == 4 and self.weights != "nvfp4":
            raise ModelError(f"activation_bits=4 is for experts in nvfp4, not in {self.weights}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PassWork:
    """Bytes and operations of a part of a step. Matrices are multiplied in bf16, also those of four
    bits, unless activations are `four_bit` too and the card multiplies these."""

    read: float  # bytes
    operations: float
    four_bit: bool = False

    def milliseconds(self, card: Card) -> dict[str, float]:
        """Return the time for memory and for arithmetic; the part takes at least the longer one."""
        rate = (card.four_bit if self.four_bit else None) or card.bf16
        return {
            "memory": 1e3 * self.read / card.bandwidth,
            "arithmetic": 1e3 * self.operations / rate,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """Capacity of a memory: slots at the load's context, and context at the load's slots."""

    slots: int
    context: int | None  # None: not even an empty one fits


def parameters(config: ModelConfig) -> dict[str, int]:
    """Return the number of the text stack's parameters, by part: experts, embedding, and dense."""
    model = unfilled(config, "bf16")
    return _by_part({name: tensor.numel() for name, tensor in model.state_dict().items()})


def weight_bytes(config: ModelConfig, weights: Weights) -> dict[str, int]:
    """Return the bytes of the weights on the device by part, including scales."""
    model = unfilled(config, weights)
    four_bit = {
        f"{name}.{part}"
        for name, module in model.named_modules()
        if isinstance(module, NVFP4Weight)
        for part in module.state_dict()
    }
    return _by_part(
        {
            name: tensor.numel() * (tensor.itemsize if name in four_bit else _FLOAT)
            for name, tensor in model.state_dict().items()
        }
    )


def unfilled(
    config: ModelConfig, weights: Weights, dispatch: Dispatch | None = None
) -> DiffusionGemma:
    """Return a model of such weights without data, adapted to `dispatch`."""
    with torch.device("meta"):
        model = DiffusionGemma(config)
        names: list[str] = []
        if weights == "nvfp4":
            experts = [tensor_name(f"layers.{i}.experts.0") for i in range(len(config.layers))]
            names = [f"{e}.{p}.{MODELOPT.scale}" for e in experts for p in ("up_proj", "down_proj")]
        adapt(model, names, MODELOPT, dispatch or Dispatch())
    return model


def _by_part(sizes: Mapping[str, int]) -> dict[str, int]:
    found = {"experts": 0, "dense": 0, "embedding": 0}
    for name, size in sizes.items():
        part = "experts" if ".experts." in name else "dense"
        found["embedding" if name.startswith("embed_tokens") else part] += size
    return found


def cache_per_token(config: ModelConfig, cache: CacheType) -> dict[LayerType, int]:
    """Return the bytes of a token's keys and values, in all layers of a kind together."""
    found: dict[LayerType, int] = {}
    for layer in config.layers:
        here = 2 * layer.kv_heads * layer.head_dim * _STORED[cache].itemsize
        found[layer.kind] = found.get(layer.kind, 0) + here
    return found


def cache_bytes(config: ModelConfig, context: int, cache: CacheType) -> int:
    """Return the maximum bytes of a slot's pages. Full layers keep all tokens; sliding ones their
    window, a canvas more, so that it can be taken back, and the tokens that a pass encodes."""
    return pages.cache_bytes(config, _STORED[cache], context, 1, CHUNK)


def state_bytes(config: ModelConfig) -> int:
    """Return the bytes of a slot between steps: its soft embedding and the tokens of its canvas."""
    return config.canvas_length * (config.hidden_size * _FLOAT + 8)


def transient_bytes(config: ModelConfig, slots: int) -> dict[str, int]:
    """Return the bytes of the largest parts of a step while they run, one after another. Logits are
    bf16, which a kernel reads; without one, fp32 copies of them are added."""
    rows = slots * config.canvas_length
    chosen = rows * config.experts_per_token
    widest = max(layer.head_dim for layer in config.layers) * config.heads
    return {
        "logits": rows * config.vocab_size * _FLOAT,
        "experts": chosen * (config.expert_size * _FLOAT + config.hidden_size * 4),
        "attention": rows * widest * _FLOAT * 3,
        "dense": rows * config.intermediate_size * _FLOAT * 3,
    }


def step_bytes(config: ModelConfig, slots: int) -> int:
    """Return the bytes of a step beside weights and cache."""
    return slots * state_bytes(config) + max(transient_bytes(config, slots).values())


def total_bytes(config: ModelConfig, load: Load) -> int:
    """Return all bytes on the device, without `RESERVED`."""
    cache = load.slots * cache_bytes(config, load.context, load.cache)
    return sum(weight_bytes(config, load.weights).values()) + cache + step_bytes(config, load.slots)


def capacity(config: ModelConfig, load: Load, memory: int) -> Capacity:
    """Return what fits `memory` bytes, less `RESERVED`."""
    weights = sum(weight_bytes(config, load.weights).values())
    left = memory - RESERVED - weights
    step = step_bytes(config, 1)  # for each slot
    slot = cache_bytes(config, load.context, load.cache) + step
    cache = left // load.slots - step
    return Capacity(slots=max(0, left // slot), context=_longest(config, cache, load.cache))


def _longest(config: ModelConfig, size: int, cache: CacheType) -> int | None:
    """Return the longest context, up to the model's, whose cache takes at most `size` bytes."""
    if size < 0:
        return None
    contexts = range(1, config.max_positions + 1)
    return bisect_right(contexts, size, key=lambda context: cache_bytes(config, context, cache))


def free_tokens(model: DiffusionGemma, slots: int, stored: torch.dtype) -> int | None:
    """Return the number of tokens, of all slots together, for which the model's GPU has memory. The
    cache has `stored` numbers, and the weights are loaded already. None on a CPU, which has no
    memory of its own. Raises `ModelError` if there is no memory for one."""
    if model.device.type != "cuda":
        return None
    torch.cuda.empty_cache()  # memory used while loading
    free, _ = torch.cuda.mem_get_info(model.device)
    if tokens := tokens_within(model.config, slots, stored, free):
        return tokens
    raise ModelError(
        f"{slots} slots: of the {free:,} bytes that are free on {model.device}, a step and what is "
        "reserved leave none for keys and values; ask for fewer slots"
    )


def tokens_within(config: ModelConfig, slots: int, stored: torch.dtype, free: int) -> int:
    """Return the number of tokens for `free` bytes; at most the model's whole context in each
    slot."""

    def size(tokens: int) -> int:
        return pages.cache_bytes(config, stored, tokens, slots, CHUNK)

    every = range(1, slots * config.max_positions + 1)
    return bisect_right(every, free - RESERVED - step_bytes(config, slots), key=size)


def step_work(config: ModelConfig, load: Load) -> dict[str, PassWork]:
    """Return what one denoising pass over the canvases of all slots reads and computes, by part."""
    rows, held = load.slots * config.canvas_length, weight_bytes(config, load.weights)
    count = parameters(config)
    k, E, V, H = config.experts_per_token, config.experts, config.vocab_size, config.hidden_size
    hit = 1 - (1 - k / E) ** rows  # share of experts that are used, if all are equally likely
    logits = transient_bytes(config, load.slots)["logits"]
    gathered = rows * _GATHERED * H * _FLOAT
    return {
        "experts": PassWork(
            read=held["experts"] * hit,
            operations=2 * rows * count["experts"] * k / E,
            four_bit=load.activation_bits == 4,
        ),
        "dense": PassWork(read=held["dense"], operations=2 * rows * count["dense"]),
        "vocabulary": PassWork(
            read=held["embedding"] + 2 * logits + gathered,
            operations=2 * rows * H * (V + _GATHERED),
        ),
        "attention": PassWork(
            read=load.slots * cache_bytes(config, load.context, load.cache),
            operations=sum(_attention(config, index, load) for index in range(len(config.layers))),
        ),
    }


def step_times(config: ModelConfig, load: Load, card: Card) -> dict[str, dict[str, float] | float]:
    """Return the least milliseconds of each part, and of the step: parts run one after another."""
    parts = {name: work.milliseconds(card) for name, work in step_work(config, load).items()}
    return {**parts, "step": sum(max(times.values()) for times in parts.values())}


def _attention(config: ModelConfig, index: int, load: Load) -> int:
    """Return the operations of a layer: each position sees its whole canvas and the cache."""
    layer, L = config.layers[index], config.canvas_length
    seen = load.context
    if layer.kind == "sliding_attention":
        seen = min(seen, config.window - 1)
    return 4 * load.slots * L * (seen + L) * config.heads * layer.head_dim
