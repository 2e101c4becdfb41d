"""A denoiser that says one text to everybody, as soon as it may."""

import threading
from collections.abc import Sequence
from typing import Any

from doubles import Scripted
from torch import Tensor
from values import V
from waiting import PATIENCE


class Gated(Scripted):
    """No pass ends while `open` is not set."""

    def __init__(self, script: Sequence[int], **shape: int):
        super().__init__(V, 0, script, **shape)
        self.open = threading.Event()

    def denoise(self, *args: Any, **more: Any) -> Tensor:
        if not self.open.wait(PATIENCE):
            raise TimeoutError("nobody opened it")
        return super().denoise(*args, **more)

    def wish(self, committed: list[int], canvas: Tensor, soft_embedding: Tensor) -> Tensor:
        begun = max(
            (at for at, token in enumerate(committed) if token == self._channel), default=-1
        )
        self._prompt = begun + 1  # whatever the prompt: answers begin after an empty channel
        return super().wish(committed, canvas, soft_embedding)

    _channel = 101  # <channel|>
