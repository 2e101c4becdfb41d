"""State of an answer that is written left to right, between two passes."""

from dataclasses import dataclass, field

import torch

from dlm.grammar import Constraint, NextTokens, TokenConstraint
from dlm.logits.sampling import generator

_DRAWN = 64  # numbers drawn at a time: on a GPU each draw is a copy


class DrawNumbers:
    """Random numbers in [0, 1) that an answer's tokens are drawn by, one for each position.

    A position keeps its number in all passes until the token that was drawn by it is refused: then
    it and all later positions get new ones. The numbers depend on the seed and on the refusals so
    far, and not on how many were requested ahead.
    """

    def __init__(self, seed: int, device: torch.device):
        self._seed, self._device, self._renewals = seed, device, 0
        self._rng, self._known = generator(seed, device), list[float]()

    def between(self, begin: int, end: int) -> list[float]:
        """Return the numbers of positions `begin` to `end`."""
        while len(self._known) < end:
            drawn = torch.rand(_DRAWN, generator=self._rng, device=self._device)
            self._known += drawn.tolist()
        return self._known[begin:end]

    def renew(self, begin: int) -> None:
        """Replace the numbers from position `begin` on: a token there was refused."""
        self.between(0, begin)
        del self._known[begin:]
        self._renewals += 1
        self._rng = generator(self._seed, self._device, self._renewals)


@dataclass(slots=True, kw_only=True, eq=False)
class LeftToRightState:
    """State of a request that is written left to right."""

    constraint: TokenConstraint
    drafting: Constraint | None  # the same constraint over draft canvases; None: there are none
    numbers: DrawNumbers  # that tokens are drawn by
    next_tokens: NextTokens | None = None  # None: the constraint has not been queried yet
    exact: bool = False  # the next query has to be exact: the last token did not fit
    work: int = 0  # units that the grammar has spent on the unfinished query
    draft: list[int] = field(default_factory=list)  # what may come next, to be judged by a pass
    guess: list[int] = field(default_factory=list)  # of the canvas that the draft is from
    pictured: int = 0  # tokens of the answer that a `Draft` has shown
    guessed_at: int | None = None  # the answer's token where `guess` begins; None: it is stale

    def commit(self, tokens: list[int]) -> None:
        self.constraint.commit(tokens)
        if self.drafting is not None:
            self.drafting.commit(tokens)

    def rollback(self, count: int) -> None:
        self.constraint.rollback(count)
        if self.drafting is not None:
            self.drafting.rollback(count)
        self.pictured = max(0, self.pictured - count)
        self.next_tokens, self.exact, self.draft, self.guessed_at = None, False, [], None
