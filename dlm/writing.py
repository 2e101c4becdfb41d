"""What a request that is written left to right knows of the tokens behind its last one."""

from dataclasses import dataclass, field

import torch

from dlm.grammar import Look, TokenConstraint

_DRAWN = 64  # numbers at a time: on a GPU each time is a copy


@dataclass(slots=True, kw_only=True, eq=False)
class Writing:
    """It lives as long as its request."""

    constraint: TokenConstraint
    draft: list[int] = field(default_factory=list)  # what may come next, to be judged by a pass
    look: Look | None = None  # the constraint's, of what comes next; None: it has not looked yet
    work: int = 0  # the grammar's, on the look that it has not finished
    _uniform: list[float] = field(default_factory=list)  # by position

    def uniform(self, rng: torch.Generator, begin: int, end: int) -> list[float]:
        """The numbers in [0, 1) that the answer's tokens from `begin` to `end` are drawn by.

        A position keeps its number, however often and in whatever pass it is drawn.
        """
        while len(self._uniform) < end:
            self._uniform += torch.rand(_DRAWN, generator=rng, device=rng.device).tolist()
        return self._uniform[begin:end]
