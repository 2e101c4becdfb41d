"""Loading of an engine, which may happen in another process or on another machine; and the garbage
collector of a process that serves.
"""

import gc
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dlm.config import Writes
from dlm.errors import DlmError
from dlm.policy import Policy

if TYPE_CHECKING:
    from dlm.engine import Engine, Progress  # with torch, which takes seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Loading:
    """Arguments of `Engine.load`."""

    policy: Policy
    model: str | None = None  # a DiffusionGemma directory; None: built in, on the CPU
    device: str | None = None  # None: cuda if there is one, else cpu
    slots: int = 8
    kv: str = "auto"
    activation_bits: int = 16  # or 4: those of products with NVFP4 weights are quantised too
    cache_tokens: int | None = None  # None: what is left of a GPU; on a CPU the cache grows
    writes: Writes | None = None  # None: as the checkpoint says
    temperature: float = 0.0  # left to right; multiplied by a request's own
    warm_up: bool = True  # on a GPU
    threads: int | None = None  # of torch on a CPU; None: as `Engine.load` chooses
    tuned: str | None = None  # a file of `dlm tune`; None: one beside the model, if there is one

    def __post_init__(self) -> None:
        """Raise `DlmError` for the built-in model on another device than the CPU."""
        if self.model is None and self.device not in (None, "cpu"):
            raise DlmError(
                f"device is {self.device!r}: the built-in model runs on the CPU; name another model"
            )

    def engine(self, progress: "Progress | None" = None) -> "Engine":
        """Load the engine; `progress` is that of `Engine.warm_up`. Raises `DlmError` and
        `ModelError`."""
        from dlm.engine import Engine

        return Engine.load(
            self.model,
            device=self.device,
            slots=self.slots,
            policy=self.policy,
            kv=self.kv,
            activation_bits=self.activation_bits,
            cache_tokens=self.cache_tokens,
            decoding=self.writes,
            temperature=self.temperature,
            tuned=self.tuned,
            threads=self.threads,
            warm_up=self.warm_up,
            progress=progress,
        )


_FULL_COLLECTION = 1000  # middle collections before a full one: some seven million new containers


def tune_garbage_collector() -> None:
    """Exclude all existing objects from collections, and make full collections rare. This holds for
    the whole process: a server calls it once, after everything is loaded.

    A full collection visits every container of the process: 0.1 s for 300,000 of them, in the
    middle of some step, and the states of a few dozen grammars are that many. Requests and grammars
    are freed by reference counts alone.
    """
    young, middle, _ = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(young, middle, _FULL_COLLECTION)
