"""Pages of the cache: pools of them, their sizes, and the layout of a pass over them.

A pool has the keys and values of layers that keep the same tokens. A page is a number, the same in
each of the layers. It is held by a number of requests, or idle (held by none, but its content may
be wanted again), or free. A pass is laid out for attention as stretches of tokens, each with the
pages of its slot. This module does not know what is stored, nor why a slot holds its pages.
"""

from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import lcm
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from dlm.kernels.paging import CANVAS, CAUSAL, IMAGE, Paging, Segment, sent
from dlm.models.image_tokens import runs
from dlm.models.shape import LayerConfig, LayerType, ModelShape

PAGE = 16
"""Tokens of a page, at least. A request's last page is half empty on average, which costs 8 tokens;
a tile of the attention kernel reads at least 16 keys; shared beginnings are cut to a multiple of
it."""
CHUNK = 512
"""Maximum number of tokens that one pass encodes in a slot."""
_FIRST = 16  # first size of a growing pool, in pages


def page_of(config: ModelShape) -> int:
    """Return the tokens of a page. Blocks that are cached whole do not cross its end: what a page
    stores depends on no token after it."""
    return lcm(PAGE, config.block)


def pages_of(
    config: ModelShape, kind: LayerType, tokens: int, segment: int | None, page: int = PAGE
) -> int:
    """Return the maximum number of pages that a slot of `tokens` holds in layers of a kind.
    `segment` is the maximum that a pass encodes; None: any number."""
    every, window = -(-tokens // page), config.window_of(kind)
    if window is None or segment is None:
        return every
    return min(every, -(-(window - 1 + config.canvas_length + segment) // page) + 1)


def cache_bytes(
    config: ModelShape, dtype: torch.dtype, capacity: int, slots: int, segment: int | None
) -> int:
    """Return the bytes of such a `KVCache` on its device."""
    total, page = 0, page_of(config)
    for layer in config.layers:
        pages = capacity_of(config, layer.kind, capacity, slots, segment, page)
        total += pages * page * layer.kv_heads * layer.head_dim * 2 * dtype.itemsize
    return total


def capacity_of(
    config: ModelShape, kind: LayerType, tokens: int, slots: int, segment: int | None, page: int
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


class Pass(NamedTuple):
    """Encoded tokens of a pass, and the places of all its tokens in the cache."""

    encode: list[tuple[int, list[int]]]  # slots and tokens, packed in this order
    positions: Int64[Tensor, " N"]  # of all tokens; those of canvases are last
    paging: Mapping[str, Paging]  # by kind of layer


class Stretch(NamedTuple):
    """Adjacent tokens of a slot in a pass."""

    slot: int
    position: int  # of the first token
    tokens: int
    kind: int  # of segment: CANVAS, CAUSAL or IMAGE


def encoded(
    slot: int, position: int, tokens: Sequence[int], config: ModelShape
) -> Iterator[Stretch]:
    """Yield the stretches of `tokens` that are encoded from `position` on. All tokens of an image
    see one another with `images_see_all`: it is a stretch of its own. Raises `ValueError` for a
    part of a block that is cached whole."""
    block = config.block
    if position % block or len(tokens) % block:
        raise ValueError(
            f"tokens must fill blocks of {block}, got {len(tokens)} at position {position}"
        )
    if not config.images_see_all:
        yield Stretch(slot, position, len(tokens), CAUSAL)
        return
    for image, length in runs(tokens):
        yield Stretch(slot, position, length, CAUSAL if image is None else IMAGE)
        position += length


@dataclass(slots=True)
class Held:
    """Pages of one slot in one pool."""

    first: int = 0  # index of the first of `pages` in the slot; earlier ones are released
    pages: array = field(default_factory=lambda: array("i"))  # numpy reads it in place
    reserved: int = 0

    @property
    def end(self) -> int:
        return self.first + len(self.pages)


def lay_out(
    encode: list[tuple[int, list[int]]],
    stretches: Sequence[Stretch],
    held: Mapping[str, Sequence[Held]],  # by kind and slot
    page: int,
    device: torch.device,
) -> Pass:
    """Return the pass over `stretches`, packed in their order, without waiting for the device."""
    positions = [np.arange(each.position, each.position + each.tokens) for each in stretches]
    kinds = [
        _paging(stretches, [slots[each.slot] for each in stretches], page)
        for slots in held.values()
    ]
    arrays = _joined(positions), *(array for _, *rest in kinds for array in rest)
    on_device = iter(sent(map(torch.from_numpy, map(np.ascontiguousarray, arrays)), device))
    first = next(on_device)
    paging = {
        kind: Paging(segments, *(next(on_device) for _ in rest))
        for kind, (segments, *rest) in zip(held, kinds, strict=True)
    }
    return Pass(encode, first, paging)


def _paging(
    stretches: Sequence[Stretch], held: Sequence[Held], page: int
) -> tuple[tuple[Segment, ...], np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return the fields of `Paging`, on the host."""
    segments, rows, places, row = [], [], [], 0
    width = max((len(one.pages) for one in held), default=0)
    table = np.zeros((len(held), width), np.int32)
    for i, (each, one) in enumerate(zip(stretches, held, strict=True)):
        segments.append(Segment(row, each.tokens, each.position, each.kind, one.first))
        table[i, : len(one.pages)] = pages = np.frombuffer(one.pages, np.int32)
        if each.kind != CANVAS:
            at = np.arange(each.position, each.position + each.tokens)
            rows.append(np.arange(row, row + each.tokens))
            places.append(pages[at // page - one.first].astype(np.int64) * page + at % page)
        row += each.tokens
    numbers = np.array(segments, np.int32).reshape(-1, len(Segment._fields)).T
    return tuple(segments), numbers, table, _joined(rows), _joined(places)


def _joined(parts: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate([np.empty(0, np.int64), *parts])
