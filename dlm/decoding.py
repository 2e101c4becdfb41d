"""How a model writes: in canvases, or left to right. The engine is passed one of them.

What they share is here: what an engine gives them, and what it asks of them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch

from dlm.config import DecodeConfig
from dlm.decoder import Decoder
from dlm.grammar import Compiled, Compiler, Reasoning, Vocabulary
from dlm.policy import Policy
from dlm.sequence import Sequence
from dlm.turn import Cache


@runtime_checkable
class Model(Protocol):
    """What every model has, however it is decoded."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def max_positions(self) -> int: ...

    @property
    def device(self) -> torch.device: ...

    @property
    def softcap(self) -> float | None:
        """A logit l counts as softcap * tanh(l / softcap); None: as it is."""
        ...

    def new_cache(self, slots: int) -> Any: ...  # a Cache, of the model's own kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What an engine has, for its decoding to work with."""

    model: Any  # a Model that can do what the decoding asks of it
    cache: Cache
    config: DecodeConfig
    policy: Policy
    vocabulary: Vocabulary
    compiler: Compiler
    by_kernel: bool | None  # whether kernels read logits; None: on GPUs


class Passes(Protocol):
    """The passes of a model over the requests that run."""

    idle: bool  # the last step had nothing to do

    def step(self, running: Mapping[int, Sequence]) -> Iterator[tuple[int, Any]]:
        """One more pass; yields its outcomes, for the decoder, or exceptions, by slot."""
        ...


@runtime_checkable
class Decoding(Protocol):
    """Makes the parts of an engine that depend on how its model writes."""

    shares_passes: ClassVar[bool]
    """Whether a pass takes longer the more requests it is for, so that clients share passes."""

    def check(self, model: Model, config: DecodeConfig) -> None:
        """Raises `DlmError` for a model that cannot write so, or not by this `config`."""
        ...

    def room(self, model: Any, positions: int) -> int:
        """Tokens that an answer may have if the model has so many positions left for it."""
        ...

    def decoder(self, parts: Parts) -> Decoder: ...

    def passes(self, parts: Parts) -> Passes: ...

    def constrain(
        self,
        sequence: Sequence,
        compiled: Compiled | None,
        reasoning: Reasoning | None,
        parts: Parts,
    ) -> None:
        """Give a request that is about to run its constraint. Raises `BudgetError` if no answer
        fits its tokens."""
        ...
