"""What a request that is written left to right knows of the tokens behind its last one."""

from dataclasses import dataclass, field

import torch

from dlm.grammar import Constraint, Look, TokenConstraint
from dlm.seeds import generator

_DRAWN = 64  # numbers at a time: on a GPU each time is a copy


class Numbers:
    """The numbers in [0, 1) that an answer's tokens are drawn by, by position.

    A position keeps its number, however often and in whatever pass it is drawn, until the token
    that was drawn by it is refused: then it and all later positions get new ones. They depend on
    the seed and on the refusals so far, and not on how far ahead was asked.
    """

    def __init__(self, seed: int, device: torch.device):
        self._seed, self._device, self._renewals = seed, device, 0
        self._rng, self._known = generator(seed, device), list[float]()

    def between(self, begin: int, end: int) -> list[float]:
        """Return the numbers of the positions from `begin` to `end`."""
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
class Writing:
    """It lives as long as its request."""

    constraint: TokenConstraint
    drafting: Constraint | None  # the same over canvases that draft; None: there are none
    numbers: Numbers  # that tokens are drawn by
    look: Look | None = None  # the constraint's, of what comes next; None: it has not looked yet
    exact: bool = False  # the next look has to be: what was written last did not fit
    work: int = 0  # the grammar's, on the look that it has not finished
    draft: list[int] = field(default_factory=list)  # what may come next, to be judged by a pass
    guess: list[int] = field(default_factory=list)  # of the canvas that the draft is from
    guessed_at: int | None = None  # the token of the answer that it begins with; None: it is stale

    def commit(self, tokens: list[int]) -> None:
        self.constraint.commit(tokens)
        if self.drafting is not None:
            self.drafting.commit(tokens)

    def rollback(self, count: int) -> None:
        self.constraint.rollback(count)
        if self.drafting is not None:
            self.drafting.rollback(count)
        self.look, self.exact, self.draft, self.guessed_at = None, False, [], None
