"""Page pool for the keys and values of layers that keep the same tokens, and its size.

A page is a number, the same in each of the layers. It is held by a number of requests, or idle
(held by none, but its content may be wanted again), or free. This module does not know what is
stored, nor for which request.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from dlm.models.config import LayerConfig, LayerType, ModelConfig

PAGE = 16
"""Tokens of a page. A request's last page is half empty on average, which costs 8 tokens; a tile of
the attention kernel reads at least 16 keys; shared beginnings are cut to a multiple of it."""
CHUNK = 512
"""Maximum number of tokens that one pass encodes in a slot."""
_FIRST = 16  # first size of a growing pool, in pages


def pages_of(
    config: ModelConfig, kind: LayerType, tokens: int, segment: int | None, page: int = PAGE
) -> int:
    """Return the maximum number of pages that a slot of `tokens` holds in layers of a kind.
    `segment` is the maximum that a pass encodes; None: any number."""
    every = -(-tokens // page)
    if kind == "full_attention" or segment is None:
        return every
    return min(every, -(-(config.window - 1 + config.canvas_length + segment) // page) + 1)


def cache_bytes(
    config: ModelConfig, dtype: torch.dtype, capacity: int, slots: int, segment: int | None
) -> int:
    """Return the bytes of such a `KVCache` on its device."""
    total = 0
    for layer in config.layers:
        pages = capacity_of(config, layer.kind, capacity, slots, segment, PAGE)
        total += pages * PAGE * layer.kv_heads * layer.head_dim * 2 * dtype.itemsize
    return total


def capacity_of(
    config: ModelConfig, kind: LayerType, tokens: int, slots: int, segment: int | None, page: int
) -> int:
    """Return the number of pages for `tokens` of all slots together."""
    most = slots * pages_of(config, kind, tokens, segment, page)
    return min(pages_of(config, kind, tokens, None, page), most)


class PagePool:
    """Pool of pages. With a `capacity` they are allocated at once. Otherwise the pool doubles when
    it is full, unless half of it is idle."""

    def __init__(
        self,
        layers: Sequence[LayerConfig],
        page: int,  # tokens
        dtype: torch.dtype,
        device: torch.device,
        capacity: int | None,
        forget: Callable[[int], None],
    ):
        """`forget` is called with an idle page before the page is reused."""
        self.capacity = capacity
        shapes = [(0, page, layer.kv_heads, layer.head_dim) for layer in layers]
        self._keys = [torch.empty(shape, dtype=dtype, device=device) for shape in shapes]
        self._values = [torch.empty_like(keys) for keys in self._keys]
        self._holders: list[int] = []  # number of holders of each page
        self._free: list[int] = []
        self._idle: OrderedDict[int, None] = OrderedDict()  # least recently held first
        self._forget = forget
        if capacity is not None:
            self._grow(capacity)

    def __len__(self) -> int:
        """Number of allocated pages."""
        return len(self._holders)

    @property
    def held(self) -> int:
        return len(self._holders) - len(self._free) - len(self._idle)

    @property
    def idle(self) -> int:
        return len(self._idle)

    def layer(self, index: int) -> tuple[Tensor, Tensor]:
        """Return keys and values of one layer, `[pages, page, kv_heads, D]`."""
        return self._keys[index], self._values[index]

    def take(self) -> int:
        """Take a page with arbitrary content; there is one if fewer than `capacity` are held."""
        total = len(self._holders)
        if not self._free and self.capacity is None and 2 * len(self._idle) <= total:
            self._grow(max(_FIRST, 2 * total))
        if not self._free:
            page, _ = self._idle.popitem(last=False)
            self._forget(page)
            self._free.append(page)
        page = self._free.pop()
        self._holders[page] = 1
        return page

    def hold(self, page: int) -> None:
        """Add a holder to a page that is held or idle."""
        self._idle.pop(page, None)
        self._holders[page] += 1

    def release(self, page: int, idle: bool) -> None:
        """Remove a holder; without any, the page becomes idle or free."""
        self._holders[page] -= 1
        if self._holders[page] == 0:
            if idle:
                self._idle[page] = None
            else:
                self._free.append(page)

    def _grow(self, total: int) -> None:
        old = len(self._holders)
        for pools in (self._keys, self._values):
            for i, pool in enumerate(pools):
                more = pool.new_empty(total - old, *pool.shape[1:])
                if not old:
                    more[:1].zero_()  # imagined passes read it before anything is stored
                pools[i] = torch.cat((pool, more)) if old else more
        self._free += range(total - 1, old - 1, -1)
        self._holders += [0] * (total - old)
