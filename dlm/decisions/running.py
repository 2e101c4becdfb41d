"""Running questions: the labels' probabilities on a canvas, and the decision that a question
belongs to.

All of it is counted in units of work of about 10 us, so that a step does no more than it may. This
module knows no prompt and no queue.
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
    """Question whose canvas is read once, in a pass. Then the labels' spellings are summed,
    position by position, over as many steps as that takes."""

    def __init__(
        self, question: Question, place: int, labels: LabelSet, pending: "PendingDecision"
    ):
        """`place` is the question's index in its decision."""
        self._question, self._place, self._labels, self._pending = question, place, labels, pending
        self._sums: Iterator[LogProbabilities] | None = None
        self._left = 0  # positions that are not summed yet
        self._masses: LogProbabilities = np.empty(0)  # of its labels, so far

    @property
    def was_read(self) -> bool:
        return self._sums is not None

    @property
    def ready(self) -> bool:
        """Whether it can be answered."""
        return self.was_read and not self._left

    @property
    def reading_units(self) -> int:
        """Units of work to read its canvas."""
        return reading_units(self._labels)

    def read(self, scores: CanvasLogits) -> None:
        """Read the values to be summed from the device."""
        labels = self._labels
        mass = scores.class_sums(labels.tokens, labels.classes, labels.count, labels.length)
        self._sums, self._left = labels.forward(mass), len(mass)

    def sum(self, work: int) -> int:
        """Sum for `work` units; returns the units left, negative if the last position took more."""
        while work > 0 and self._left and self._sums is not None:
            self._masses = next(self._sums)
            self._left -= 1
            work -= self._labels.work
        return work

    def answer(self, prompt_tokens: int, stats: Stats) -> Decided | None:
        """Answer the question; returns the decision's event if this is its last answer."""
        try:
            answer = answer_of(self._question, self._masses, prompt_tokens)
        except DlmError as error:
            raise DlmError(f"questions[{self._place}]: {error}") from None
        return self._pending.add(self._place, answer, stats)


class PendingDecision:
    """Answers of a decision so far."""

    def __init__(self, number: int, count: int):
        """`number` is in events about the decision, which has `count` questions."""
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
    """Return the units of work to read a canvas for `labels`."""
    return 1 + labels.length * labels.count // _NUMBERS


def answer_of(question: Question, masses: LogProbabilities, prompt_tokens: int) -> QuestionAnswer:
    """Return the answer for log-probabilities of the labels, given that one of them is chosen."""
    total = np.logaddexp.reduce(masses)
    if not total > -np.inf:
        raise DlmError("the model gives none of the labels any probability")
    values = [label.value for label in question.labels]
    probabilities = dict(zip(values, np.exp(masses - total).tolist(), strict=True))
    return question.answer(probabilities, float(np.exp(total)), prompt_tokens)
