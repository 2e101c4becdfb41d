"""A question that runs: what its canvas says of its labels, and the decision that it belongs to.

All of it is counted in units of work, about 10 us each, so that a step does no more of it than it
may. Knows no prompt and no queue.
"""

from collections.abc import Iterator

import numpy as np
from jaxtyping import Float64

from dlm.decisions.labels import FirstTokens, Labels
from dlm.decisions.questions import Question, QuestionAnswer
from dlm.errors import DlmError
from dlm.events import Decided
from dlm.logits.canvas_logits import CanvasLogits
from dlm.request import Stats

LabelSet = Labels | FirstTokens
LogProbabilities = Float64[np.ndarray, " n"]  # log-probabilities of labels, in nats
_NUMBERS = 1024  # sums over classes of tokens that a unit of work reads


class RunningQuestion:
    """Its canvas is read once, in a pass; then the labels' spellings are summed, position by
    position, over as many steps as that takes."""

    def __init__(self, question: Question, place: int, labels: LabelSet, tally: "PendingDecision"):
        """`place` is the question's among those of its decision."""
        self._question, self._place, self._labels, self._tally = question, place, labels, tally
        self._sums: Iterator[LogProbabilities] | None = None
        self._left = 0  # positions that are not summed yet
        self._masses: LogProbabilities = np.empty(0)  # of its labels, up to there

    @property
    def was_read(self) -> bool:
        return self._sums is not None

    @property
    def ready(self) -> bool:
        """It can be answered."""
        return self.was_read and not self._left

    @property
    def reading_units(self) -> int:
        """What it takes to read its canvas."""
        return reading_units(self._labels)

    def read(self, scores: CanvasLogits) -> None:
        """Read what is to be summed from the device."""
        labels = self._labels
        mass = scores.class_sums(labels.tokens, labels.classes, labels.count, labels.length)
        self._sums, self._left = labels.forward(mass), len(mass)

    def sum(self, work: int) -> int:
        """Go on until `work` is done; returns what is left of it, negative if the last position
        took more."""
        while work > 0 and self._left and self._sums is not None:
            self._masses = next(self._sums)
            self._left -= 1
            work -= self._labels.work
        return work

    def answer(self, prompt_tokens: int, stats: Stats) -> Decided | None:
        """Answer it; tells of the decision if this is its last answer."""
        try:
            answer = answer_of(self._question, self._masses, prompt_tokens)
        except DlmError as error:
            raise DlmError(f"questions[{self._place}]: {error}") from None
        return self._tally.add(self._place, answer, stats)


class PendingDecision:
    """The answers of a decision, as they come."""

    def __init__(self, number: int, count: int):
        """`number` is the decision's, for events about it; it has so many questions."""
        self._number, self._count = number, count
        self._answers: dict[int, QuestionAnswer] = {}
        self._stats: list[Stats] = []

    def add(self, place: int, answer: QuestionAnswer, stats: Stats) -> Decided | None:
        self._answers[place] = answer
        self._stats.append(stats)
        if len(self._answers) < self._count:
            return None
        answers = [self._answers[place] for place in range(self._count)]
        return Decided(request=self._number, answers=answers, stats=Stats.total(self._stats))


def reading_units(labels: LabelSet) -> int:
    """Units that it takes to read a canvas for `labels`."""
    return 1 + labels.length * labels.count // _NUMBERS


def answer_of(question: Question, masses: LogProbabilities, prompt_tokens: int) -> QuestionAnswer:
    """From log-probabilities of the labels to what they say, if one of them is chosen."""
    total = np.logaddexp.reduce(masses)
    if not total > -np.inf:
        raise DlmError("the model gives none of the labels any probability")
    values = [label.value for label in question.labels]
    probabilities = dict(zip(values, np.exp(masses - total).tolist(), strict=True))
    return question.answer(probabilities, float(np.exp(total)), prompt_tokens)
