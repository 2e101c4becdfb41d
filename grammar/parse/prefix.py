"""The reasoning before an answer: where in it a text is, and how many tokens it may still take.

The grammar does not constrain the reasoning. An opening marker that is text may begin as an answer
does: such a text is reasoning as soon as the marker is complete, and an answer as soon as it
differs from the marker. The module knows the markers and limits, and no grammar.
"""

from dataclasses import replace
from enum import Enum, auto

from dlm.grammar.immutable import immutable
from dlm.grammar.vocabulary.markers import Reasoning


class Phase(Enum):
    """The part of a text that is read next."""

    UNDECIDED = auto()  # the opening marker or an answer: both begin with what was read
    OPENING = auto()  # the rest of the opening marker: no answer begins with what was read
    REASONING = auto()  # any text, up to the closing marker
    ANSWER = auto()  # text of the grammar
    ENDED = auto()  # a stop token was read


@immutable()
class Prefix:
    """The reasoning of one text so far."""

    reasoning: Reasoning | None  # None: the text begins with the answer
    phase: Phase
    marker: int = 0  # symbols of a marker read so far
    thought: int = 0  # tokens of reasoning so far, markers included; 0 from the answer on

    @classmethod
    def before(cls, reasoning: Reasoning | None) -> "Prefix":
        """Return the state before a text that may begin with `reasoning`."""
        if reasoning is None:
            return cls(reasoning, Phase.ANSWER)
        return cls(reasoning, Phase.REASONING if reasoning.opened else Phase.UNDECIDED)

    @property
    def may_answer(self) -> bool:
        """Whether the next token may be one of the answer."""
        return self.phase in (Phase.UNDECIDED, Phase.ANSWER)

    def at(self, phase: Phase) -> "Prefix":
        """Return the prefix in the phase of the answer, or of its end."""
        return self if phase is self.phase else Prefix(self.reasoning, phase)

    def opens(self, token: int) -> bool:
        """Whether `token` continues the opening marker in the spelling of `Marker.rest`."""
        return self.reasoning is not None and self.reasoning.open.rest(self.marker)[:1] == [token]

    def opening(self, token: int) -> "Prefix | None":
        """Return the prefix after a token of the opening marker; None if it does not go on so."""
        if self.reasoning is None:
            return None
        matched = self.reasoning.open.spelled(self.marker, token)
        if matched is None:
            return None
        if not self.reasoning.open.complete(matched):
            return replace(self, marker=matched, thought=self.thought + 1)
        return Prefix(self.reasoning, Phase.REASONING, 0, self.thought + 1)

    def exceeds_marker(self, token: int) -> bool:
        """Whether the opening marker would end within `token`."""
        return self.reasoning is not None and self.reasoning.open.ends_within(self.marker, token)

    def reasoned(self, token: int) -> "Prefix | None":
        """Return the prefix after a token of reasoning or of its end; None: not allowed."""
        if self.reasoning is None:
            return None
        marker = self.reasoning.close
        matched = marker.after(self.marker, token)
        if matched is None:
            return None
        if marker.complete(matched):
            return Prefix(self.reasoning, Phase.ANSWER)
        return replace(self, marker=matched, thought=self.thought + 1)

    def closing(self) -> list[int]:
        """Return the tokens that complete the opening marker, if it is not complete, and then the
        closing marker. None are needed from the answer on, and none may spell the opening marker.
        """
        if self.reasoning is None or self.phase in (Phase.ANSWER, Phase.ENDED):
            return []
        if self.phase is Phase.REASONING:
            return self.reasoning.close.rest(self.marker)
        opening = self.reasoning.open.rest(self.marker)  # none if no tokens spell it
        return opening and opening + self.reasoning.close.rest(0)

    def exceeds(self, tokens: int, budget: int) -> bool:
        """Whether `tokens` more of reasoning are over its own budget, or leave too few of `budget`,
        which includes the stop. Reasoning that the prompt has opened may always be closed at once.
        """
        if self.reasoning is None:
            return False
        least = len(self.reasoning.close.rest(0)) if self.reasoning.opened else 0
        if self.thought + tokens <= least:
            return False
        own = self.reasoning.budget
        over = own is not None and self.thought + tokens > own
        return over or budget - tokens < self.reasoning.reserve

    def overspends(self, budget: int) -> bool:
        """Whether reasoning that has begun exceeds its limits, its closing marker included."""
        reasons = self.phase in (Phase.OPENING, Phase.REASONING)
        return reasons and self.exceeds(len(self.closing()), budget)
