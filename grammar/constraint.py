"""The seam between the denoising loop and whatever constrains it: two calls, one record."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Int32
from torch import Tensor


@runtime_checkable
class Scores(Protocol):
    """What a constraint may ask of one canvas's logits."""

    @property
    def argmax(self) -> Sequence[int]:
        """The model's own choice at each of the L positions."""
        ...

    def best(self, position: int, allowed: np.ndarray) -> int:
        """The likeliest token at `position` among those whose bit is set in `allowed [words]`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Guidance:
    """How a constraint wants one denoising step of a canvas of `L` positions to be read.

    `bitmask` rows are the tokens allowed at the leading positions, the trusted ones; None: all are
    allowed everywhere. It is valid until the next `guide`.
    """

    guess: list[int]  # [L] what would be committed now: valid as a whole, padding after its stop
    bitmask: Int32[Tensor, "trusted words"] | None
    suspect: int  # the first position predicted under a wrong left context; L: none
    repaired: bool  # somewhere the model's own choice was refused
    stop: int  # where the guess's stop token is; L: the guess goes on in the next canvas
    scored: int  # positions whose mean entropy says whether the guess is settled


@runtime_checkable
class Constraint(Protocol):
    """One request's constraint. Its state is the parse of all committed canvases."""

    def guide(self, scores: Scores, pinned: Sequence[int] = ()) -> Guidance:
        """Read a step's scores, the canvas beginning with `pinned`. Leaves no trace."""
        ...

    def commit(self, tokens: Sequence[int]) -> None:
        """Move past the tokens of a finished canvas, its stop included, its padding not."""
        ...


class Free:
    """No constraint: the guess is the model's own, up to the first stop token."""

    def __init__(self, stops: Collection[int]):
        self._stops = frozenset(stops)

    def guide(self, scores: Scores, pinned: Sequence[int] = ()) -> Guidance:
        guess, L = list(scores.argmax), len(scores.argmax)
        stop = next((i for i, token in enumerate(guess) if token in self._stops), L)
        return Guidance(guess=guess, bitmask=None, suspect=L, repaired=False, stop=stop, scored=L)

    def commit(self, tokens: Sequence[int]) -> None:
        """Nothing is remembered: every next canvas is as free as the last."""
