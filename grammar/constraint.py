"""The seam between decoding loops and whatever constrains them.

Over canvases: `guide` and `commit`, with a `Guidance`. From left to right: `look` and `commit`,
with a `NextTokens`.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from sys import maxsize
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Int32
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """Tokens that a grammar allows at one position, the likeliest first."""

    ranked: list[tuple[int, float]]  # tokens and their log-probabilities (nats)
    mass: float  # the share of the model's probability that all allowed tokens have


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

    def candidates(self, position: int, allowed: np.ndarray, count: int) -> Candidates:
        """The likeliest `count` of them."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Guidance:
    """How a constraint wants one denoising step of a canvas of `L` positions to be read.

    Each of the leading positions, the trusted ones, allows the tokens of a row of `bitmask`, or one
    token alone. None: all are allowed everywhere. A row never changes while its `bitmask` lives: it
    is sent to the model's device once.
    """

    guess: list[int]  # [L] what would be committed now; padding after its stop
    bitmask: Int32[Tensor, "masks words"] | None
    rows: list[int]  # [trusted] which row of `bitmask`; or ~token
    suspect: int  # the first position predicted under a wrong left context; L: none
    repaired: bool  # somewhere the model's own choice was refused
    stop: int  # where the guess's stop token is; L: the guess goes on in the next canvas
    scored: int  # positions whose mean entropy says whether the guess is settled
    read: int = maxsize  # leading positions whose tokens are valid; others are the model's own
    mass: float = 1.0  # the model's own share in what is allowed where it is first refused
    choice: int = -1  # the last free choice in front of that position; -1: none to take back


@dataclass(frozen=True, slots=True, kw_only=True)
class Fixed:
    """What a step may not change about a canvas."""

    pinned: Sequence[int] = ()  # its leading tokens
    banned: Mapping[int, Collection[int]] = field(default_factory=dict)  # tokens, by position
    last: bool = False  # the whole guess may be committed: it is to be valid, and chosen well


NOTHING = Fixed()


@runtime_checkable
class Constraint(Protocol):
    """One request's constraint. Its state is the parse of all committed canvases."""

    work: int  # units that one look may take; what a unit is, the constraint knows

    def guide(self, scores: Scores, fixed: Fixed = NOTHING) -> Guidance:
        """Read a step's scores. Leaves no trace.

        Raises `Unfinished` when its work is spent: with the same scores, asking again goes on.
        """
        ...

    def commit(self, tokens: Sequence[int]) -> None:
        """Move past the tokens of a finished canvas, its stop included, its padding not."""
        ...

    def rollback(self, count: int) -> None:
        """Take back the last `count` tokens committed."""
        ...


Row = np.ndarray | int | None
"""What one position may take: packed bits `[words]`; or ~token, that one alone; None: any token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NextTokens:
    """What may follow a text, and what may follow each token of a draft behind it."""

    forced: list[int]  # tokens that come next whatever a model says; the draft is behind them
    draft: list[int]  # as much of it as the grammar takes
    rows: list[Row]  # [draft + 1] what may come in the place of each of its tokens, and behind it


@runtime_checkable
class TokenConstraint(Protocol):
    """One request's constraint, left to right. Its state is the parse of all committed tokens."""

    work: int  # units that one look may take; what a unit is, the constraint knows

    @property
    def ended(self) -> bool:
        """A stop token was committed: the text is complete."""
        ...

    def look(
        self, draft: Sequence[int] = (), refused: Collection[int] = (), exact: bool = False
    ) -> NextTokens:
        """What may come next, and behind each token of `draft` that may. Leaves no trace.

        The next token is none of `refused`, unless nothing else may come. Where there is ample room
        for a completion, rows may hold tokens that `fits` does not take; an `exact` look's first
        row does not. Raises `Unfinished` when its work is spent: asking again goes on.
        """
        ...

    def fits(self, tokens: Sequence[int]) -> int:
        """How many of `tokens` the constraint takes, such that it can still be completed. Leaves no
        trace."""
        ...

    def commit(self, tokens: Sequence[int]) -> None: ...

    def rollback(self, count: int) -> None:
        """Take back the last `count` tokens committed."""
        ...


class Free:
    """No constraint: the guess is the model's own, up to the first stop token."""

    work = 0

    def __init__(self, stops: Collection[int]):
        self._stops = frozenset(stops)

    def guide(self, scores: Scores, fixed: Fixed = NOTHING) -> Guidance:
        guess, L = list(scores.argmax), len(scores.argmax)
        stop = min((guess.index(token) for token in self._stops.intersection(guess)), default=L)
        return Guidance(
            guess=guess, bitmask=None, rows=[], suspect=L, repaired=False, stop=stop, scored=L
        )

    def commit(self, tokens: Sequence[int]) -> None:
        """Nothing is remembered: every next canvas is as free as the last."""

    def rollback(self, count: int) -> None:
        """Nothing was remembered."""


class FreeTokens:
    """No constraint, left to right: any token may come, up to `budget` of them or a stop token."""

    work = 0

    def __init__(self, stops: Collection[int], budget: int):
        self._stops, self._left, self._ended = frozenset(stops), budget, False

    @property
    def ended(self) -> bool:
        return self._ended

    def look(
        self, draft: Sequence[int] = (), refused: Collection[int] = (), exact: bool = False
    ) -> NextTokens:
        kept = list(draft[: max(0, self._left - 1)])
        stop = next((i for i, token in enumerate(kept) if token in self._stops), len(kept))
        return NextTokens(forced=[], draft=kept[:stop], rows=[None] * (stop + 1))

    def fits(self, tokens: Sequence[int]) -> int:
        return len(tokens)

    def commit(self, tokens: Sequence[int]) -> None:
        self._left -= len(tokens)
        self._ended = bool(tokens) and tokens[-1] in self._stops

    def rollback(self, count: int) -> None:
        self._left += count
        self._ended = self._ended and not count
