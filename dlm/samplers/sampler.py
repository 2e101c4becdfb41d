"""Interface of samplers: how a canvas begins, which positions a pass accepts, and when it settles.

A sampler is a frozen object of settings. It knows no model, no grammar and no text; all randomness
is the request's own, and is passed in. The loop restricts what a sampler decides: no position is
accepted from the first suspect one on. Tokens that stand on a masked canvas have a completion.

Shapes: `B` canvases of `L` positions.
"""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from dlm.grammar import Guidance
from dlm.logits.distributions import TokenDistributions


@runtime_checkable
class Passes(Protocol):
    """Passes over one canvas so far."""

    steps: int  # their number
    stable: bool  # whether the last one had the guess of the one before
    pinned: list[int]  # leading tokens that stand
    complete: bool  # whether all tokens up to the stop stand on a masked canvas
    edited: bool  # whether the last pass replaced a token that stood there
    rereads: int  # passes over the masked canvas since it was complete for the first time


@runtime_checkable
class Sampler(Protocol):
    """Decisions about canvases between two passes."""

    @property
    def max_steps(self) -> int: ...  # passes after which the loop pins positions by itself

    @property
    def carries(self) -> bool: ...  # whether the next pass gets a soft embedding

    @property
    def mask(self) -> int | None:
        """Token of positions without a token, never generated: an accepted position takes that of
        the guess, which stands. None: canvases are noisy, and accepted tokens are drawn."""
        ...

    @property
    def edit_threshold(self) -> float | None:
        """Probability above which the model may replace a token that stands; None: none does."""
        ...

    def start(self, rng: torch.Generator, length: int, vocab_size: int) -> Int64[Tensor, " L"]:
        """Return a new canvas, on the device of `rng`."""
        ...

    def temperature(self, step: int) -> float: ...  # of the pass after `step` others

    def accept(self, rows: TokenDistributions, free: Bool[Tensor, "B L"]) -> Bool[Tensor, "B L"]:
        """Return the positions that keep their tokens, by entropies or confidences of `rows`, which
        are under the masks of the constraints. Only `free` ones count: no suspect ones, and on a
        masked canvas none that have a token."""
        ...

    def next(
        self,
        tokens: Int64[Tensor, "B L"],
        kept: Int64[Tensor, "B L"],
        rngs: Sequence[torch.Generator | None],
        vocab_size: int,
    ) -> Int64[Tensor, "B L"]:
        """Return the canvases after `tokens`; `kept` holds the accepted tokens, and -1 elsewhere. A
        canvas without a generator is not advanced: any row will do."""
        ...

    def settled(self, passes: Passes, guidance: Guidance, entropy: float) -> bool:
        """Whether the guess, of which nothing is suspect, is to be committed before `max_steps`.
        `entropy` is the mean over the scored positions, in nats."""
        ...
