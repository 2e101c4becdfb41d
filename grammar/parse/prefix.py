"""The reasoning before an answer: where in it a text is, and how many tokens it may still take.

The grammar does not constrain the reasoning. The module knows its markers and limits, and no
grammar.
"""

from dataclasses import dataclass, replace
from enum import Enum, auto

from dlm.grammar.vocabulary.markers import Reasoning


class Phase(Enum):
    """The part of a text that is read next."""

    OPENING = auto()  # reasoning or the answer may begin
    REASONING = auto()  # any text, up to the closing marker
    ANSWER = auto()  # text of the grammar
    ENDED = auto()  # a stop token was read


@dataclass(frozen=True, slots=True)
class Prefix:
    """The reasoning of one text so far. Immutable."""

    reasoning: Reasoning | None  # None: the text begins with the answer
    phase: Phase
    marker: int = 0  # symbols of a marker read so far
    thought: int = 0  # tokens of reasoning so far, markers included

    @classmethod
    def before(cls, reasoning: Reasoning | None) -> "Prefix":
        """Return the state before a text that may begin with `reasoning`."""
        return cls(reasoning, Phase.ANSWER if reasoning is None else Phase.OPENING)

    @property
    def between(self) -> bool:
        """Whether no reasoning has begun, or it is over: the answer may begin or go on."""
        return self.phase in (Phase.OPENING, Phase.ANSWER) and not self.marker

    def at(self, phase: Phase) -> "Prefix":
        """Return this prefix in another phase."""
        return self if phase is self.phase else replace(self, phase=phase)

    def opens(self, token: int) -> bool:
        """Whether `token` continues the opening marker."""
        return self.reasoning is not None and self.reasoning.open.rest(self.marker)[0] == token

    def after(self, token: int) -> "Prefix | None":
        """Return the prefix after a token of reasoning or of its markers; None: not allowed."""
        if self.reasoning is None:
            return None
        opening = self.phase is Phase.OPENING
        marker = self.reasoning.open if opening else self.reasoning.close
        done = marker.after(self.marker, token)
        if done is None:
            return None
        if not marker.complete(done):
            return replace(self, marker=done, thought=self.thought + 1)
        phase = Phase.REASONING if opening else Phase.ANSWER
        return Prefix(self.reasoning, phase, 0, self.thought + 1)

    def closing(self) -> list[int]:
        """Return the tokens that end the reasoning; none if it has not begun, or has ended."""
        if self.reasoning is None:
            return []
        if self.phase is Phase.REASONING:
            return self.reasoning.close.rest(self.marker)
        if self.phase is Phase.OPENING and self.marker:
            return self.reasoning.open.rest(self.marker) + self.reasoning.close.rest(0)
        return []

    def exceeds(self, tokens: int, budget: int) -> bool:
        """Whether `tokens` more of reasoning are over its own budget, or leave too few of `budget`,
        which includes the stop."""
        if self.reasoning is None:
            return False
        own = self.reasoning.budget
        over = own is not None and self.thought + tokens > own
        return over or budget - tokens < self.reasoning.reserve
