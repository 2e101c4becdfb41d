"""Typed questions about the input of a request, and their answers, as in OpenAI's Decisions API.

Questions are checked when they are made. This module knows no model and no tokens.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, ClassVar, cast

from dlm.errors import RequestError
from dlm.grammar.regex import SURROGATES
from dlm.request import Request

MOST_QUESTIONS, MOST_CHOICES, MOST_LEVELS = 200, 255, 10  # the protocol's own limits
YES, NO = "yes", "no"  # the labels of a predicate


@dataclass(frozen=True, slots=True)
class Label:
    """Possible answer: the text that the model writes, and its description."""

    value: str
    description: str = ""


@dataclass(frozen=True, kw_only=True)
class Question(ABC):
    """Question about the input of a request. `instructions` and the labels are appended to the
    input; without instructions the input asks the question itself. Raises `RequestError` for too
    many labels, or equal ones."""

    name: str = ""
    instructions: str = ""

    type: ClassVar[str]
    part: ClassVar[str] = "choices"  # name of the labels in errors
    most: ClassVar[int] = MOST_CHOICES

    def __post_init__(self) -> None:
        for field in ("name", "instructions"):
            value = getattr(self, field)
            if not isinstance(value, str) or SURROGATES.search(value):
                raise RequestError(
                    f"{field} must be text without lone surrogates, got {value!r:.40}"
                )
        labels = self.labels
        if not 1 <= len(labels) <= self.most:
            raise RequestError(f"{self.part} must have 1 to {self.most} entries, got {len(labels)}")
        seen: set[str] = set()
        for i, label in enumerate(labels):
            where, value = f"{self.part}[{i}]", label.value
            if not isinstance(value, str) or not value.strip() or SURROGATES.search(value):
                raise RequestError(
                    f"{where} must be text that is not blank, without lone surrogates, "
                    f"got {value!r:.40}"
                )
            if not isinstance(label.description, str):
                raise RequestError(
                    f"{where}.description must be text, got {label.description!r:.40}"
                )
            if value in seen:
                raise RequestError(f"{where} must differ from those before it, got {value!r:.40}")
            seen.add(value)

    @property
    @abstractmethod
    def labels(self) -> Sequence[Label]:
        """Possible answers."""

    @abstractmethod
    def _answer(self, probabilities: dict[str, float], **common: Any) -> "QuestionAnswer":
        """Return the answer for `probabilities`; `common` are the fields of all answers."""

    def answer(
        self, probabilities: dict[str, float], mass: float, prompt_tokens: int
    ) -> "QuestionAnswer":
        """Return the answer for the `probabilities` of the labels, in their order."""
        common = {"name": self.name, "mass": mass, "prompt_tokens": prompt_tokens}
        return self._answer(probabilities, **common)

    @property
    def text(self) -> str:
        """Text that is appended to the input."""
        described = [
            f"- {label.value}: {label.description}" for label in self.labels if label.description
        ]
        values = ", ".join(label.value for label in self.labels)
        return "\n".join([self.instructions, *described, f"Answer with one of {values}."])


@dataclass(frozen=True, kw_only=True)
class PredicateQuestion(Question):
    """Question of whether something holds."""

    type = "predicate"

    @property
    def labels(self) -> Sequence[Label]:
        return Label(YES), Label(NO)

    def _answer(self, probabilities: dict[str, float], **common: Any) -> "QuestionAnswer":
        return PredicateAnswer(probability=probabilities[YES], **common)


@dataclass(frozen=True, kw_only=True)
class ChoiceQuestion(Question):
    """Choice among up to 255 labels. A choice is a `Label`, its text, or the protocol's object."""

    choices: Sequence[Label | str | Mapping[str, Any]]

    type = "choice"

    def __post_init__(self) -> None:
        object.__setattr__(self, "choices", _labels("choices", "value", self.choices))
        super().__post_init__()

    @property
    def labels(self) -> Sequence[Label]:
        return cast(Sequence[Label], self.choices)

    def _answer(self, probabilities: dict[str, float], **common: Any) -> "QuestionAnswer":
        best = max(probabilities, key=lambda value: probabilities[value])
        return ChoiceAnswer(
            choice=best, probabilities=probabilities, confidence=probabilities[best], **common
        )


@dataclass(frozen=True, kw_only=True)
class ScoreQuestion(Question):
    """Score on a scale of up to 10 levels, the lowest first. A level is a `Label`, its text, or the
    protocol's object."""

    levels: Sequence[Label | str | Mapping[str, Any]]

    type = "score"
    part = "levels"
    most = MOST_LEVELS

    def __post_init__(self) -> None:
        object.__setattr__(self, "levels", _labels("levels", "label", self.levels))
        super().__post_init__()

    @property
    def labels(self) -> Sequence[Label]:
        return cast(Sequence[Label], self.levels)

    def _answer(self, probabilities: dict[str, float], **common: Any) -> "QuestionAnswer":
        score = sum(i * p for i, p in enumerate(probabilities.values()))
        best = max(probabilities.values())
        return ScoreAnswer(score=score, probabilities=probabilities, confidence=best, **common)


@dataclass(frozen=True, kw_only=True)
class QuestionAnswer:
    """Answer to one question. `mass` is the model's probability of all labels together, or of their
    first tokens if these were compared. Near 0 the model would rather have written something else,
    and the probabilities, which are those of the labels alone, mean little."""

    name: str
    mass: float
    prompt_tokens: int

    type: ClassVar[str]  # that of its question


@dataclass(frozen=True, kw_only=True)
class PredicateAnswer(QuestionAnswer):
    type = PredicateQuestion.type

    probability: float  # of "yes"


@dataclass(frozen=True, kw_only=True)
class ChoiceAnswer(QuestionAnswer):
    type = ChoiceQuestion.type

    choice: str  # the likeliest one; of equals, the first
    probabilities: dict[str, float]  # by choice, in their order; their sum is 1
    confidence: float  # the probability of `choice`


@dataclass(frozen=True, kw_only=True)
class ScoreAnswer(QuestionAnswer):
    type = ScoreQuestion.type

    score: float  # the mean level; the lowest is 0, and each further one is 1 more
    probabilities: dict[str, float]  # by level, the lowest first; their sum is 1
    confidence: float  # the probability of the likeliest level


def question_of(data: Mapping[str, Any]) -> Question:
    """Return the question of an object in the protocol's JSON. Its fields are `type`, `name`,
    `instructions`, and `choices` or `levels`. Raises `RequestError` for an invalid one."""
    if not isinstance(data, Mapping):
        raise RequestError(f"a question must be an object, got {data!r:.40}")
    fields = {key: value for key, value in data.items() if key != "type"}
    common_fields = {"name": fields.pop("name", ""), "instructions": fields.pop("instructions", "")}
    kind = data.get("type")
    if kind == PredicateQuestion.type:
        question = PredicateQuestion(**common_fields)
    elif kind == ChoiceQuestion.type:
        question = ChoiceQuestion(**common_fields, choices=fields.pop("choices", ()))
    elif kind == ScoreQuestion.type:
        question = ScoreQuestion(**common_fields, levels=fields.pop("levels", ()))
    else:
        raise RequestError(f"a question's type must be predicate, choice or score, got {kind!r}")
    if fields:
        raise RequestError(f"a question of type {kind} has no {min(fields, key=str)!r}")
    return question


def _labels(part: str, key: str, data: Any) -> list[Label]:
    """Return labels as they are, and those of texts, or of objects that hold a label's text under
    `key`."""
    if not isinstance(data, Sequence) or isinstance(data, str):
        raise RequestError(f"{part} must be a list, got {data!r:.40}")
    labels = []
    for i, item in enumerate(data):
        if isinstance(item, Mapping):
            if unknown := item.keys() - {key, "description"}:
                raise RequestError(f"{part}[{i}] has no {min(unknown, key=str)!r}")
            labels.append(Label(item.get(key, ""), item.get("description") or ""))
        elif isinstance(item, Label):
            labels.append(item)
        else:
            labels.append(Label(item))
    return labels


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Questions about the input of `request`; they may be the protocol's JSON. Raises
    `RequestError` for too many questions, or for a request with a constraint or thinking."""

    request: Request
    questions: Sequence[Question | Mapping[str, Any]]

    def __post_init__(self) -> None:
        if not 1 <= len(self.questions) <= MOST_QUESTIONS:
            count = len(self.questions)
            raise RequestError(f"questions must have 1 to {MOST_QUESTIONS} entries, got {count}")
        if self.request.constraint is not None or self.request.thinking:
            raise RequestError("a decision's request must have neither a constraint nor thinking")

    def prompted(self) -> Iterator[tuple[int, Question, Request]]:
        """Yield each question's index, the question, and the request with its text. Raises
        `RequestError` for an invalid question."""
        for place, data in enumerate(self.questions):
            with at(place):
                question = data if isinstance(data, Question) else question_of(data)
                request = _with_question(self.request, question)
            yield place, question, request


@contextmanager
def at(place: int) -> Iterator[None]:
    """Prefix errors with the question that they are about."""
    try:
        yield
    except RequestError as error:
        raise error.reworded(f"questions[{place}]: {error}", error.field) from error


def _with_question(request: Request, question: Question) -> Request:
    """Return the request with the question's text after its input."""
    if not question.instructions:
        return request
    if request.prompt is not None:
        return replace(request, prompt=f"{request.prompt}\n\n{question.text}")
    if request.messages is None:
        raise RequestError("instructions cannot be put after token_ids: give a prompt or messages")
    *before, last = request.messages
    content = last["content"]
    if last["role"] != "user" or content is None:
        before, last, content = request.messages, {"role": "user"}, question.text
    elif isinstance(content, str):
        content = f"{content}\n\n{question.text}"
    else:  # parts, with images
        content = [*content, {"type": "text", "text": f"\n\n{question.text}"}]
    return replace(request, messages=[*before, {**last, "content": content}])
