"""Estimates before a model is loaded: bytes on a device, and the least time of a step.

All of it is arithmetic on a network without weights, except for `free_tokens`, which queries a GPU.
The estimates cover the text stack. They do not cover a vision tower, an allocator's waste and a
grammar's masks. GB are 10^9 bytes; contexts are the tokens that a slot has committed, prompt and
answer.
"""

from abc import ABC, abstractmethod
from bisect import bisect_right
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import nn

from dlm.kernels.gpus import Card
from dlm.models import ModelError, pages
from dlm.models.nvfp4 import NVFP4Weight
from dlm.models.pages import CHUNK
from dlm.models.shape import ModelShape

Weights = Literal["nvfp4", "bf16"]  # of the matrices that quantisation is for; others are bf16
CacheType = Literal["fp8", "bf16"]

RESERVED = 1_500_000_000  # bytes of a GPU for its context, libraries' workspaces and the allocator
_STORED: dict[CacheType, torch.dtype] = {"fp8": torch.float8_e4m3fn, "bf16": torch.bfloat16}
FLOAT = torch.bfloat16.itemsize


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
            raise ModelError(f"slots must be at least 1, got {self.slots}")
        if self.context < 0:
            raise ModelError(f"context must be at least 0 tokens, got {self.context}")
        for value, kind in ((self.cache, CacheType), (self.weights, Weights)):
            if value not in get_args(kind):
                raise ModelError(f"{value!r} is none of {get_args(kind)}")
        if self.activation_bits not in (4, 16):
            raise ModelError(f"activation_bits must be 4 or 16, got {self.activation_bits!r}")
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


class Costs(ABC):
    """Memory and work of a network, by its parts. A family knows what these are."""

    def __init__(self, network: nn.Module, config: ModelShape):
        self._network, self.config = network, config

    @abstractmethod
    def part_of(self, tensor: str) -> str:
        """Return the part that a tensor of the network belongs to."""

    @abstractmethod
    def state_bytes(self) -> int:
        """Return the bytes of a slot between steps."""

    @abstractmethod
    def transient_bytes(self, slots: int) -> dict[str, int]:
        """Return the bytes of the largest parts of a step while they run, one after another."""

    @abstractmethod
    def step_work(self, load: Load) -> dict[str, PassWork]:
        """Return what one denoising pass over the canvases of all slots reads and computes, by
        part."""

    def parameters(self) -> dict[str, int]:
        """Return the number of parameters, by part."""
        sizes: dict[str, int] = {}
        for name, tensor in self._network.state_dict().items():
            part, numbers = self.part_of(name), tensor.numel()
            if self._in_four_bits(name):
                numbers = 2 * numbers if name.endswith(".packed") else 0
            sizes[part] = sizes.get(part, 0) + numbers
        return sizes

    def weight_bytes(self) -> dict[str, int]:
        """Return the bytes of the weights on the device by part, including scales."""
        sizes: dict[str, int] = {}
        for name, tensor in self._network.state_dict().items():
            part, size = self.part_of(name), tensor.itemsize if self._in_four_bits(name) else FLOAT
            sizes[part] = sizes.get(part, 0) + tensor.numel() * size
        return sizes

    def step_bytes(self, slots: int) -> int:
        """Return the bytes of a step beside weights and cache."""
        return slots * self.state_bytes() + max(self.transient_bytes(slots).values())

    def _in_four_bits(self, tensor: str) -> bool:
        """Whether a tensor has numbers of four bits, or scales of such numbers."""
        module, _, name = tensor.rpartition(".")
        in_weight = isinstance(self._network.get_submodule(module), NVFP4Weight)
        return in_weight or name == "input_scale"


def cache_bytes(config: ModelShape, context: int, cache: CacheType) -> int:
    """Return the maximum bytes of a slot's pages. Full layers keep all tokens; sliding ones their
    window, a canvas more, so that it can be taken back, and the tokens that a pass encodes."""
    return pages.cache_bytes(config, _STORED[cache], context, 1, CHUNK)


def total_bytes(costs: Costs, load: Load) -> int:
    """Return all bytes on the device, without `RESERVED`."""
    cache = load.slots * cache_bytes(costs.config, load.context, load.cache)
    return sum(costs.weight_bytes().values()) + cache + costs.step_bytes(load.slots)


def slots_within(costs: Costs, load: Load, memory: int) -> int:
    """Return how many slots of the load's context fit `memory` bytes, less `RESERVED`."""
    free = memory - RESERVED - sum(costs.weight_bytes().values())
    slot = cache_bytes(costs.config, load.context, load.cache) + costs.step_bytes(1)
    return max(0, free // slot)


def free_tokens(costs: Costs, device: torch.device, slots: int, stored: torch.dtype) -> int | None:
    """Return the number of tokens, of all slots together, for which `device` has memory. The cache
    has `stored` numbers, and the weights are loaded already. None for a CPU, which has no memory of
    its own. Raises `ModelError` if there is no memory for one."""
    if device.type != "cuda":
        return None
    torch.cuda.empty_cache()  # memory used while loading
    free, _ = torch.cuda.mem_get_info(device)
    if tokens := tokens_within(costs, slots, stored, free):
        return tokens
    raise ModelError(
        f"{slots} slots: of the {free:,} bytes that are free on {device}, a step and what is "
        "reserved leave none for keys and values; ask for fewer slots"
    )


def tokens_within(costs: Costs, slots: int, stored: torch.dtype, free: int) -> int:
    """Return the number of tokens for `free` bytes; at most the model's whole context in each
    slot."""

    def size(tokens: int) -> int:
        return pages.cache_bytes(costs.config, stored, tokens, slots, CHUNK)

    every = range(1, slots * costs.config.max_positions + 1)
    return bisect_right(every, free - RESERVED - costs.step_bytes(slots), key=size)


def step_times(costs: Costs, load: Load, card: Card) -> dict[str, dict[str, float] | float]:
    """Return the least milliseconds of each part, and of the step: parts run one after another."""
    parts = {name: work.milliseconds(card) for name, work in costs.step_work(load).items()}
    return {**parts, "step": sum(max(times.values()) for times in parts.values())}


def attention_work(config: ModelShape, load: Load) -> PassWork:
    """Return the attention of all layers: each position sees its whole canvas and the cache."""
    L, operations = config.canvas_length, 0
    for layer in config.layers:
        window = config.window_of(layer.kind)
        context = load.context if window is None else min(load.context, window - 1)
        operations += 4 * load.slots * L * (context + L) * config.heads * layer.head_dim
    read = load.slots * cache_bytes(config, load.context, load.cache)
    return PassWork(read=read, operations=operations)
