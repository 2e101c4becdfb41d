"""One pass over a canvas: its guess and masks, and where the model's choices were refused."""

from dataclasses import dataclass, field

from jaxtyping import Int32
from torch import Tensor

from dlm.grammar.constraint import Fixed, Guidance
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

    def guidance(self, ended: bool, pad: int, bitmask: Int32[Tensor, "masks words"]) -> Guidance:
        """What it says of the canvas. `ended`: the guess's last token is its stop."""
        L, read = len(self.wanted), len(self.guess)
        guess = self.guess if ended else self.guess + self.wanted[read:]
        suspect = L if self.suspect is None else self.suspect
        return Guidance(
            guess=guess + [pad] * (L - len(guess)),
            bitmask=bitmask,
            rows=self.masks + [~pad] * (suspect - len(guess)),
            suspect=suspect,
            repaired=self.repair is not None,
            stop=read - 1 if ended else L,
            scored=len(guess),
            read=L if ended else read,
            mass=self.mass,
            choice=self.choice,
        )

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
