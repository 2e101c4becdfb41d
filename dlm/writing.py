"""What a request that is written left to right knows of the tokens behind its last one."""

from dataclasses import dataclass, field

import torch

from dlm.grammar import Constraint, Look, TokenConstraint

_DRAWN = 64  # numbers at a time: on a GPU each time is a copy


@dataclass(slots=True, kw_only=True, eq=False)
class Writing:
    """It lives as long as its request."""

    constraint: TokenConstraint
    drafting: Constraint | None  # the same over canvases that draft; None: there are none
    rng: torch.Generator  # of nothing but the numbers that tokens are drawn by
    look: Look | None = None  # the constraint's, of what comes next; None: it has not looked yet
    exact: bool = False  # the next look has to be: what was written last did not fit
    work: int = 0  # the grammar's, on the look that it has not finished
    draft: list[int] = field(default_factory=list)  # what may come next, to be judged by a pass
    guess: list[int] = field(default_factory=list)  # of the canvas that the draft is from
    guessed_at: int | None = None  # the token of the answer that it begins with; None: it is stale
    _uniform: list[float] = field(default_factory=list)  # by position

    def commit(self, tokens: list[int]) -> None:
        self.constraint.commit(tokens)
        if self.drafting is not None:
            self.drafting.commit(tokens)

    def rollback(self, count: int) -> None:
        self.constraint.rollback(count)
        if self.drafting is not None:
            self.drafting.rollback(count)
        self.look, self.exact, self.draft, self.guessed_at = None, False, [], None

    def uniform(self, begin: int, end: int) -> list[float]:
        """The numbers in [0, 1) that the answer's tokens from `begin` to `end` are drawn by.

        A position keeps its number, however often and in whatever pass it is drawn.
        """
        while len(self._uniform) < end:
            drawn = torch.rand(_DRAWN, generator=self.rng, device=self.rng.device)
            self._uniform += drawn.tolist()
        return self._uniform[begin:end]
