"""One pass over a canvas, as far as the frontier has read it."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from jaxtyping import Int32
from torch import Tensor

from dlm.grammar.constraint import Fixed, Guidance
from dlm.grammar.masks.table import Mask
from dlm.grammar.vocabulary.spelling import common_prefix


@dataclass(slots=True)
class CanvasPass:
    """One pass over a canvas so far: its guess, its masks, and the first refusal."""

    fixed: Fixed
    wanted: list[int] = field(default_factory=list)  # fixed tokens, and the model's choices
    guess: list[int] = field(default_factory=list)
    masks: list[Mask] = field(default_factory=list)  # of the positions before `suspect`
    forced: list[int] = field(default_factory=list)  # the forced tokens after the guess
    # `forced` at each such position, from the left to the right
    forced_at: dict[int, list[int]] = field(default_factory=dict)
    repair: int | None = None  # the first position at which the model's choice was refused
    suspect: int | None = None  # the first position after the repair and its forced tokens
    mass: float = 1.0
    refused_by: Mask | None = None  # the row of the grammar's table that was queried at the repair
    reached: list[int] = field(default_factory=list)  # after the guess, up to the last held token

    def resumed(self, fixed: Fixed, wanted: list[int]) -> "CanvasPass":
        """Return a pass under `fixed` with the choices `wanted`, read as far as it is this pass."""
        keep = common_prefix(wanted, self.guess[: self.agreed])
        masks = self.masks[:keep]
        if fixed != self.fixed:
            keep = min([keep, *self._released(fixed)])
            alone = {*range(len(fixed.pinned)), *fixed.held}
            masks = [~self.guess[p] if p in alone else self.masks[p] for p in range(keep)]
        forced_at = dict(self.forced_at)
        while forced_at and next(reversed(forced_at)) >= keep:
            forced_at.popitem()
        forced = forced_at.get(keep - 1, [])[1:]
        return CanvasPass(fixed, wanted, self.guess[:keep], masks, forced, forced_at)

    def _released(self, fixed: Fixed) -> Iterator[int]:
        """Yield the positions from which on the pass has to be read anew under `fixed`, since more
        tokens may stand there than in this pass, or other ones are banned."""
        before = self.fixed
        for position in before.banned.keys() | fixed.banned.keys():
            if before.banned.get(position) != fixed.banned.get(position):
                yield position
        if len(fixed.pinned) < len(before.pinned):
            yield len(fixed.pinned)
        if before.held.keys() - fixed.held.keys() - {*range(len(fixed.pinned))}:
            yield 0  # tokens were accepted since they lead to one that stood

    def guidance(self, ended: bool, pad: int, bitmask: Int32[Tensor, "masks words"]) -> Guidance:
        """Return the guidance for the canvas. `ended`: the guess's last token is its stop."""
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
            refusal=self.refusal,
        )

    def sure_of(self, token: int) -> bool:
        """Whether the next token is fixed, or leads on to the tokens that stand."""
        return self.stands(len(self.guess)) or self.reached[:1] == [token]

    def stands(self, position: int) -> bool:
        """Whether the token at `position` is fixed."""
        fixed = self.fixed
        held = position in fixed.held and position not in fixed.edits
        return held or position < len(fixed.pinned)

    @property
    def standing(self) -> bool:
        """Whether the next token is fixed, or may be edited."""
        position = len(self.guess)
        return position in self.fixed.held or position < len(self.fixed.pinned)

    @property
    def ends_at_refusal(self) -> bool:
        """Whether nothing is read from the next refusal on, since the next pass may predict it."""
        return self.suspect is not None and not self.fixed.last

    @property
    def agreed(self) -> int:
        """The number of leading positions that hold the model's own choice."""
        return len(self.guess) if self.repair is None else self.repair

    @property
    def refusal(self) -> tuple[int, Mask] | None:
        """The position of the repair, and the row of the grammar's table that was queried there."""
        if self.repair is None or self.refused_by is None:
            return None
        return self.repair, self.refused_by

    @property
    def choice(self) -> int:
        """The last position before the repair that was neither forced nor pinned; -1: none."""
        free = (p for p in range(self.agreed - 1, -1, -1) if p not in self.forced_at)
        last = -1 if self.repair is None else next(free, -1)
        return last if last >= len(self.fixed.pinned) else -1
