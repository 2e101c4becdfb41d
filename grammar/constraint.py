"""The interface between decoding loops and constraints.

Over canvases, a loop calls `guide`, which returns a `Guidance`, and `commit`. From left to right,
it calls `look`, which returns `NextTokens`, and `commit`.
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
    """Tokens that a grammar allows at one position, sorted by probability."""

    ranked: list[tuple[int, float]]  # tokens and their log-probabilities (nats)
    mass: float  # the model's total probability of all allowed tokens


@runtime_checkable
class Scores(Protocol):
    """The logits of one canvas, as a constraint reads them."""

    @property
    def argmax(self) -> Sequence[int]:
        """The model's own choice at each of the L positions."""
        ...

    def best(self, position: int, allowed: np.ndarray) -> int:
        """Return the likeliest token at `position` whose bit is set in `allowed [words]`."""
        ...

    def candidates(self, position: int, allowed: np.ndarray, count: int) -> Candidates:
        """Return the `count` likeliest tokens at `position` whose bits are set in `allowed`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Guidance:
    """A constraint's result for one denoising step of a canvas of `L` positions.

    The leading positions are trusted: each allows the tokens of a row of `bitmask`, or one token
    alone; the guess's token is always one of them. All tokens are allowed after these; without a
    `bitmask` each row names a token. Rows of a `bitmask` never change, so each is sent to the
    model's device once.
    """

    guess: list[int]  # [L] the tokens to commit if the canvas ended now; padding after the stop
    bitmask: Int32[Tensor, "masks words"] | None
    rows: list[int]  # [trusted] a row of `bitmask`; or ~token
    suspect: int  # the first position predicted under a wrong left context; L: none
    repaired: bool  # the model's own choice was refused at a position
    stop: int  # the position of the guess's stop token; L: the text continues in the next canvas
    scored: int  # leading positions whose mean entropy decides whether the guess is settled
    read: int = maxsize  # leading positions whose tokens are valid; others are the model's own
    mass: float = 1.0  # the model's probability of the allowed tokens at the first refusal
    choice: int = -1  # the last free choice before the first refusal; -1: none
    # The position of the first refusal, and the row of `bitmask` that was queried there: the next
    # step may well refuse there again.
    refusal: tuple[int, int] | None = None

    def misplaced(self, tokens: Mapping[int, int]) -> list[int]:
        """Return the positions whose tokens cannot stand: those that a sampler that unmasks
        positions did not take from the guess. They must be masked again."""
        return [
            position
            for position, token in tokens.items()
            if position >= self.read or self.guess[position] != token
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fixed:
    """Restrictions of one step on a canvas, which a constraint may keep: they do not change.

    A sampler that unmasks positions leaves tokens that stand, perhaps with holes between them: they
    are `held`. Each must have been at its position in the guess of the step before.
    """

    pinned: Sequence[int] = ()  # the canvas's leading tokens
    banned: Mapping[int, Collection[int]] = field(default_factory=dict)  # tokens, by position
    last: bool = False  # the whole guess may be committed, so all of it must be valid
    held: Mapping[int, int] = field(default_factory=dict)  # tokens that stand, by position
    edits: Collection[int] = ()  # positions of `held` where the model may replace the token


NOTHING = Fixed()


@runtime_checkable
class Constraint(Protocol):
    """One request's constraint. Its state is the parse of all committed canvases."""

    work: int  # a limit for one `guide`, in the constraint's own units
    spent: int  # units that the last `guide` took

    @property
    def squeezed(self) -> bool:
        """Whether the budget took from the model a token of the committed text: the model chose one
        that a larger budget would have allowed, and another was committed in its place."""
        ...

    def guide(self, scores: Scores, fixed: Fixed = NOTHING) -> Guidance:
        """Return the guidance for a step's scores. Leaves the state as it is.

        Raises `Unfinished` if its work runs out: a second call with the same scores continues.
        """
        ...

    def commit(self, tokens: Sequence[int]) -> None:
        """Move past the tokens of a finished canvas, with its stop and without its padding."""
        ...

    def rollback(self, count: int) -> None:
        """Take back the last `count` tokens committed."""
        ...


Row = np.ndarray | int | None
"""The tokens allowed at one position: packed bits `[words]`; ~token: one alone; None: any token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NextTokens:
    """The tokens allowed after a text, and after each token of a draft that follows it."""

    forced: list[int]  # tokens that must come next, before the draft
    draft: list[int]  # the part of the draft that the grammar allows
    rows: list[Row]  # [draft + 1] allowed at each position of the draft, and after it


@runtime_checkable
class TokenConstraint(Protocol):
    """One request's constraint, left to right. Its state is the parse of all committed tokens."""

    work: int  # a limit for one `look`, in the constraint's own units
    spent: int  # units that the last `look` took

    @property
    def ended(self) -> bool:
        """Whether a stop token was committed: the text is complete."""
        ...

    @property
    def squeezed(self) -> bool:
        """Whether the budget took from the model a token of the committed text, as
        `Constraint.squeezed` says."""
        ...

    def look(
        self, draft: Sequence[int] = (), refused: Collection[int] = (), exact: bool = False
    ) -> NextTokens:
        """Return the tokens allowed next, and after each allowed token of `draft`.

        Leaves the state as it is. Tokens in `refused` are not allowed next, unless no other is.
        Rows may hold tokens that `fits` does not take, except the first row if `exact`. Raises
        `Unfinished` if its work runs out: a second call continues.
        """
        ...

    def fits(self, tokens: Sequence[int]) -> int:
        """Return the number of leading `tokens` after which the text can still be completed.

        Does not move. If the budget refuses the next of `tokens`, that is noted: whatever is
        committed in its place was squeezed.
        """
        ...

    def commit(self, tokens: Sequence[int]) -> None: ...

    def rollback(self, count: int) -> None:
        """Take back the last `count` tokens committed."""
        ...


class Free:
    """Free text: the guess is the model's own beside what is fixed, up to the first stop token."""

    work = spent = 0

    def __init__(self, stops: Collection[int]):
        self._stops = frozenset(stops)

    @property
    def squeezed(self) -> bool:
        """False: a budget cuts free text off, and replaces none of it."""
        return False

    def guide(self, scores: Scores, fixed: Fixed = NOTHING) -> Guidance:
        pinned, L = list(fixed.pinned), len(scores.argmax)
        guess = pinned + list(scores.argmax[len(pinned) :])
        for position, token in fixed.held.items():
            if position not in fixed.edits:
                guess[position] = token
        stop = min((guess.index(token) for token in self._stops.intersection(guess)), default=L)
        return Guidance(
            guess=guess,
            bitmask=None,
            rows=[~token for token in pinned],
            suspect=L,
            repaired=False,
            stop=stop,
            scored=L,
        )

    def commit(self, tokens: Sequence[int]) -> None:
        """Do nothing: there is no state."""

    def rollback(self, count: int) -> None:
        """Do nothing: there is no state."""


class FreeTokens:
    """Free text, left to right: any tokens, up to a stop token or `budget` tokens."""

    work = spent = 0

    def __init__(self, stops: Collection[int], budget: int):
        self._stops, self._left, self._ended = frozenset(stops), budget, False

    @property
    def ended(self) -> bool:
        return self._ended

    @property
    def squeezed(self) -> bool:
        """False: a budget cuts free text off, and replaces none of it."""
        return False

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
