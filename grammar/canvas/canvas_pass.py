"""One pass over a canvas: its guess and masks, and where the model's choices were refused."""

from dataclasses import dataclass, field

from dlm.grammar.constraint import Fixed
from dlm.grammar.masks.table import Mask


@dataclass(slots=True)
class CanvasPass:
    """As far as it got."""

    fixed: Fixed
    wanted: list[int] = field(default_factory=list)  # what is pinned, then the model's choices
    guess: list[int] = field(default_factory=list)
    masks: list[Mask] = field(default_factory=list)  # in front of the suspect position
    forced: list[int] = field(default_factory=list)  # what the grammar leaves no choice about, next
    forced_at: dict[int, list[int]] = field(default_factory=dict)  # what was forced where it was
    completions: dict[int, list[int]] = field(default_factory=dict)  # those begun, by position
    repair: int | None = None  # the first position where the model's choice was refused
    suspect: int | None = None  # the first position behind the repair and what that dictates
    mass: float = 1.0

    def sure_of(self, token: int) -> bool:
        """The next one is pinned, or goes on with a completion: it is known to fit the budget."""
        position = len(self.guess)
        if position < len(self.fixed.pinned):
            return True
        return self.completions.get(position, [])[:1] == [token]

    @property
    def agreed(self) -> int:
        """Leading positions that hold the model's own choice."""
        return len(self.guess) if self.repair is None else self.repair

    @property
    def choice(self) -> int:
        """The last position in front of the repair that was the model's to choose; -1: none."""
        free = (p for p in range(self.agreed - 1, -1, -1) if p not in self.forced_at)
        last = -1 if self.repair is None else next(free, -1)
        return last if last >= len(self.fixed.pinned) else -1
