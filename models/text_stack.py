"""Text stack of a model: what loading, planning, the cache and an engine have to know of it.

A pass packs segments into one axis: tokens to encode and canvases to denoise, of several slots and
of any lengths. How a family computes it is its own.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

import torch
from torch import nn

from dlm.models.backends import Backend
from dlm.models.cache import KVCache
from dlm.models.graphs import Graphs, PassGraphs, pass_graphs
from dlm.models.image_tokens import EncodedImages
from dlm.models.plan import Costs
from dlm.models.shape import ModelShape

C = TypeVar("C", bound=ModelShape)


class TextStack(nn.Module, ABC, Generic[C]):
    """Text stack of a family, with an embedding `embed_tokens`."""

    embed_tokens: nn.Embedding

    def __init__(self, config: C, operations: Iterable[str]):
        """`operations` are those that kernels may compute."""
        super().__init__()
        self.config = config
        self.backends: dict[str, Backend] = dict.fromkeys(operations, "torch")
        self.graphs: PassGraphs | None = None  # of one cache
        self.images = EncodedImages()  # that tokens to encode may stand for

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
    def device(self) -> torch.device:
        return self.embed_tokens.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.embed_tokens.weight.dtype

    @property
    @abstractmethod
    def costs(self) -> Costs:
        """Memory and work of the network."""

    @abstractmethod
    def warm_up(self, cache: KVCache, slots: int) -> list[Callable[[], Any]]:
        """Return the parts of a warm-up over `cache`, each to be called once; they store
        nothing."""

    def new_cache(
        self,
        slots: int,
        dtype: torch.dtype | None = None,
        capacity: int | None = None,
        segment: int | None = None,
    ) -> KVCache:
        """Return a cache that stores `dtype`, by default the model's; for the rest see
        `KVCache`."""
        places = self.device, capacity, segment
        backend = self.backends["attention"]
        return KVCache(self.config, slots, dtype or self.dtype, *places, backend=backend)

    def use_graphs(self, cache: KVCache, wanted: Graphs = "auto") -> None:
        """Replay passes over `cache` from CUDA graphs if possible; `graphs.status` says whether."""
        self.graphs = pass_graphs(cache, wanted, self.backends, self.device)
