"""Pinned host memory for copies to a GPU: allocated once, and used in turn.

A GPU copies from pinned memory on its own, while the host goes on. A buffer is thus lent again only
after the copy from it has ended.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

_BUFFERS = 4  # copies that may be under way before the host waits for the first of them
_LEAST = 1 << 16  # bytes of a buffer

_pinned = partial(torch.empty, dtype=torch.uint8, device="cpu", pin_memory=True)


class PinnedMemory:
    """Buffers in turn. `allocate` returns as many bytes, and `event` makes an event of the device:
    it is recorded after a copy was begun, and `synchronize` waits until the copy has ended."""

    def __init__(
        self,
        allocate: Callable[[int], Tensor] = _pinned,
        event: Callable[[], Any] = torch.cuda.Event,
    ):
        self._allocate, self._event = allocate, event
        self._buffers: list[Tensor | None] = [None] * _BUFFERS
        self._copied: list[Any] = [None] * _BUFFERS
        self._turn = 0

    @contextmanager
    def lend(self, size: int) -> Iterator[Tensor]:
        """Lend `size` bytes to a block of the program that begins one copy from them."""
        at, self._turn = self._turn, (self._turn + 1) % _BUFFERS
        if self._copied[at] is not None:
            self._copied[at].synchronize()
            self._copied[at] = None
        buffer = self._buffers[at]
        if buffer is None or len(buffer) < size:
            buffer = self._allocate(max(_LEAST, 1 << (size - 1).bit_length()))
            self._buffers[at] = buffer
        yield buffer[:size]
        event = self._event()
        event.record()
        self._copied[at] = event
