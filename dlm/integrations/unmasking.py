"""Corrections of what another engine's sampler makes of a canvas of masks. Knows no engine.

A sampler unmasks positions by rules of its own. A token that is not the guess of its constraint is
masked again, and by the order `prefix` also one that stands to the right of a mask.
"""

from collections.abc import Sequence
from typing import Literal

from dlm.errors import DlmError
from dlm.grammar import Guidance

Order = Literal["joint", "prefix"]
"""Orders of unmasking: any sure position of a canvas, or none to the right of an unsure one."""

_MASKED_AGAIN = 2  # passes in a row, for each position, after which suspect ones are masked again


def standing(tokens: Sequence[int], mask: int) -> dict[int, int]:
    """Return the tokens of a canvas that stand, by position."""
    return {position: token for position, token in enumerate(tokens) if token != mask}


class Corrections:
    """Corrections of one request's canvases."""

    def __init__(self):
        self.passes = 0  # in a row after which suspect positions were masked again

    def after(
        self,
        guidance: Guidance,
        before: Sequence[int],
        after: Sequence[int],
        mask: int,
        order: Order,
    ) -> dict[int, int]:
        """Return what must change in a canvas that the sampler took from the tokens `before` to
        those `after`: tokens by position. Raises `DlmError` if it goes on to need that."""
        if before == after:
            return {}
        misplaced = guidance.misplaced(standing(after, mask))
        self.passes = self.passes + 1 if misplaced else 0
        if self.passes > _MASKED_AGAIN * len(after):
            raise DlmError("the sampler goes on to unmask positions that are suspect")
        changes = dict.fromkeys(misplaced, mask)
        if order == "prefix":
            corrected = [changes.get(position, token) for position, token in enumerate(after)]
            changes |= _left_to_right(guidance, before, corrected, mask)
        return changes


def _left_to_right(
    guidance: Guidance, before: Sequence[int], after: Sequence[int], mask: int
) -> dict[int, int]:
    """Return the changes without which a token stands to the right of a mask: it is masked again.
    If no token is left, the first mask takes its guess."""
    masks = [position for position, token in enumerate(after) if token == mask]
    if not masks:
        return {}
    unmasked = [position for position, token in enumerate(before) if token == mask]
    later = [p for p in unmasked if p > masks[0] and after[p] != mask]
    changes = dict.fromkeys(later, mask)
    if masks[0] in unmasked[:1]:
        changes[masks[0]] = guidance.guess[masks[0]]
    return changes
