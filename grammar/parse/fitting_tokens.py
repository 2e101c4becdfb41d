"""The tokens that may follow a state, on the way to those that fit a budget."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Bool

from dlm.grammar.limits import Meter
from dlm.grammar.parse.following import Following

_GROUP_BYTES = 200  # of memory, for a group of tokens


@dataclass(slots=True)
class FittingTokens:
    """Groups of tokens that fit a budget, as far as they are judged."""

    following: Following | None = None
    all_end: bool = False  # after all tokens that the grammar takes
    sure: Bool[np.ndarray, " n"] | None = None  # of `following`: those that surely fit
    waiting: list[tuple[np.ndarray, int]] = field(default_factory=list)  # doubtful groups and costs
    fitting: list[np.ndarray] = field(default_factory=list)  # groups that fit
    farthest: int = 0  # tokens to the end after a group

    @property
    def nbytes(self) -> int:
        groups = [*self.fitting, *(group for group, _ in list(self.waiting))]
        arrays = [*(self.following or ()), *([] if self.sure is None else [self.sure]), *groups]
        return sum(array.nbytes for array in arrays) + _GROUP_BYTES * len(groups)

    def judge(self, fits: Callable[[int, int], bool], meter: Meter) -> None:
        """Judge the groups that are waiting, each by its first token and its cost in bytes.

        Raises `Unfinished`; a second call continues.
        """
        while self.waiting:
            meter.spend(0)
            group, cost = self.waiting[-1]
            if fits(int(group[0]), cost):
                self.fitting.append(group)
            self.waiting.pop()
            meter.add(1)
