"""Running questions: the labels' probabilities on a canvas, and the decision that a question
belongs to.

A label's probability is summed over all its spellings in tokens. A canvas is read as classes of
tokens: tokens of one class spell the same bytes. States are the prefixes of labels, so forward sums
over states give the probability of each label, which ends in its own state.

All of it is counted in units of work of about 10 us, so that a step does no more than it may. This
module knows no prompt and no queue.

Shapes: `n` labels, `m` tokens that spell parts of labels, `C` classes, `L` positions, `V` tokens of
the vocabulary.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Float64, Int64

from dlm.decisions.questions import Question, QuestionAnswer
from dlm.errors import DlmError
from dlm.events import Decided
from dlm.grammar import GrammarError, Vocabulary
from dlm.logits.canvas_logits import CanvasLogits
from dlm.request import Stats

_STOP = 0  # the class of stop tokens
_TRANSITIONS = 256  # transitions between states that a unit of work, about 10 us, sums over


class Labels:
    """Labels, each followed by a stop, in all their spellings. Never changed. They need `count`
    sums over classes of `tokens` at the first `length` positions of a canvas."""

    def __init__(self, labels: Sequence[str], vocabulary: Vocabulary):
        """Raise `GrammarError` for a label that no tokens spell."""
        states, trie = _Prefixes(), vocabulary.trie
        self._ends = np.array([states.path(label.encode())[-1] for label in labels])
        class_of: dict[int, int] = {}  # by trie node
        transitions: set[tuple[int, int, int]] = set()  # target, source, class
        for label in labels:
            raw = label.encode()
            path, spelled = states.path(raw), {0}  # lengths of the prefixes that tokens spell
            for start, source in enumerate(path[:-1]):
                if start not in spelled:
                    continue
                for end, node in enumerate(trie.along(raw, start), start + 1):
                    if trie.token_count[node]:
                        label_class = class_of.setdefault(node, _STOP + 1 + len(class_of))
                        transitions.add((path[end], source, label_class))
                        spelled.add(end)
            if len(raw) not in spelled:
                raise GrammarError(f"the label {label!r:.80} cannot be spelled in this vocabulary")
        self._target, self._source, self._class = np.array(sorted(transitions), dtype=np.int32).T
        self._reached, self._first = np.unique(self._target, return_index=True)
        self._states = len(states)
        tokens, owner = trie.tokens_at(np.array([*class_of], dtype=np.int32))
        stops = np.array(vocabulary.stops, dtype=np.int64)
        self.tokens: Int64[np.ndarray, " m"] = np.concatenate((stops, tokens))
        self.classes: Int64[np.ndarray, " m"] = np.concatenate(
            (np.full(len(stops), _STOP), owner + _STOP + 1)
        )
        self.count = _STOP + 1 + len(class_of)
        self.length = max(len(label.encode()) for label in labels) + 1
        self.work = (
            1 + len(transitions) // _TRANSITIONS
        )  # units that `forward` takes for a position

    def forward(self, mass: Float64[np.ndarray, "L C"]) -> Iterator[Float64[np.ndarray, " n"]]:
        """Yield log-probabilities of the labels, each followed by a stop. First from the first
        position alone, then from the first two, and so on; the last ones are the result. `mass` are
        log-probabilities of classes, in nats."""
        reached = np.full(self._states, -np.inf)
        reached[0] = 0
        log_mass = np.full(len(self._ends), -np.inf)
        for row in mass[: self.length]:
            log_mass = np.logaddexp(log_mass, reached[self._ends] + row[_STOP])
            onward = reached[self._source] + row[self._class]
            reached = np.full_like(reached, -np.inf)
            reached[self._reached] = np.logaddexp.reduceat(onward, self._first)
            yield log_mass


class FirstTokens:
    """Labels that differ in their first tokens, which are compared. Has the interface of
    `Labels`."""

    length = work = 1

    def __init__(self, tokens: Sequence[int]):
        """No two of `tokens` are equal."""
        self.tokens = np.array(tokens, dtype=np.int64)
        self.classes, self.count = np.arange(len(tokens)), len(tokens)

    def forward(self, mass: Float64[np.ndarray, "1 n"]) -> Iterator[Float64[np.ndarray, " n"]]:
        """Yield the log-probabilities of the first tokens, at once."""
        yield mass[0]


class _Prefixes:
    """States of the prefixes of some texts; 0 is the empty prefix."""

    def __init__(self):
        self._children: list[dict[int, int]] = [{}]  # by state: the next state for each byte

    def __len__(self) -> int:
        return len(self._children)

    def path(self, raw: bytes) -> list[int]:
        """Return the states of all prefixes of `raw`, and add the missing ones."""
        path = [0]
        for byte in raw:
            children = self._children[path[-1]]
            if byte not in children:
                children[byte] = len(self._children)
                self._children.append({})
            path.append(children[byte])
        return path


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
