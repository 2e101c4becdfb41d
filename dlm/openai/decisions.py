"""Bodies of `/v1/decisions` and of their answers. No HTTP.

A field that is null counts as left out. Choices may be true and false: the model sees them as the
texts "true" and "false", and answers have them as booleans again.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import TypeAdapter

from dlm.decisions.questions import (
    ChoiceAnswer,
    Decision,
    PredicateAnswer,
    Question,
    QuestionAnswer,
    ScoreAnswer,
    at,
    question_of,
)
from dlm.errors import RequestError
from dlm.events import Decided
from dlm.openai.body import (
    REQUIRED,
    Body,
    ByField,
    Each,
    JsonModel,
    Several,
    Takes,
    Words,
    validated,
    wrong,
)
from dlm.openai.messages import ImagePart, RefusalContent, TextContent, messages_of, text_of
from dlm.openai.other_fields import Hints, RequestModel
from dlm.openai.requests import ModelName
from dlm.request import Request


class InputText(TextContent):
    text: Annotated[Words, Takes("text that is not blank")] = REQUIRED


class JsonContent(JsonModel):
    """Part of JSON, which the model sees as text."""

    type: Literal["input_json"] = REQUIRED
    data: Annotated[dict[Any, Any] | list[Any], Takes("an object or a list of objects")] = REQUIRED


InputPart = InputText | RefusalContent | JsonContent
_TEXTS: TypeAdapter[list[InputPart]] = TypeAdapter(
    Each[Annotated[InputPart, ByField("type", "input_text or input_json")]]
)
_RIGHT = "input_text, input_json or input_image (this server's models read nothing else)"
_PARTS: TypeAdapter[list[InputPart | ImagePart]] = TypeAdapter(
    Each[Annotated[InputPart | ImagePart, ByField("type", _RIGHT)]]
)


class InputMessage(JsonModel):
    """Message of an input, beside the fields of a chat's message."""

    type: Annotated[Literal["message"], Takes("message (calls of tools are not an input here)")] = (
        "message"
    )


class DecisionFields(RequestModel):
    """Fields of a body of `/v1/decisions`."""

    hints: ClassVar[Hints] = {}

    model: ModelName | None = None
    input: Annotated[Words | Several[Any], Takes("text or a list of messages")] = REQUIRED
    questions: Several[Any] = REQUIRED
    seed: int | None = None
    prompt_cache_options: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionBody:
    """The questions of one body."""

    decision: Decision
    model: str | None  # None: the server's only model
    choices: tuple[dict[str, str | bool], ...]  # for each question, the client's choice by label


def decision_body_of(body: Any) -> DecisionBody:
    """Read a body of `/v1/decisions`. Raises `RequestError`."""
    fields = validated(DecisionFields.model_validate, body)
    questions, choices = list[Question](), list[dict[str, str | bool]]()
    for i, value in enumerate(fields.questions):
        with at(i):
            question, labels = _question(value)
        questions.append(question)
        choices.append(labels)
    request = Request(**_input(fields.input), seed=fields.seed or 0)
    return DecisionBody(
        decision=Decision(request=request, questions=questions),
        model=fields.model,
        choices=tuple(choices),
    )


def decision_answer(body: DecisionBody, decided: Decided, model: str) -> Body:
    """Return the body of an answer. `model` is the model's name in it."""
    prompt_tokens = sum(answer.prompt_tokens for answer in decided.answers)
    cached = decided.stats.cached
    return {
        "model": model,
        "answers": [
            {"type": answer.type, "name": answer.name or None, **_probabilities(answer, choices)}
            for choices, answer in zip(body.choices, decided.answers, strict=True)
        ],
        "usage": {
            "input_tokens": prompt_tokens,
            "input_tokens_details": {
                "cached_tokens": cached,
                "cache_write_tokens": prompt_tokens - cached,
            },
            "output_tokens": 0,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": prompt_tokens,
        },
    }


def _probabilities(answer: QuestionAnswer, choices: Mapping[str, str | bool]) -> Body:
    match answer:
        case PredicateAnswer():
            return {"probability": answer.probability}
        case ChoiceAnswer():
            return {
                "choice": choices[answer.choice],
                "probabilities": [
                    {"value": choices[value], "probability": p}
                    for value, p in answer.probabilities.items()
                ],
                "confidence": answer.confidence,
            }
        case ScoreAnswer():
            return {
                "score": answer.score,
                "probabilities": [
                    {"label": label, "value": value, "probability": p}
                    for value, (label, p) in enumerate(answer.probabilities.items())
                ],
                "confidence": answer.confidence,
            }
    raise TypeError(f"{type(answer).__name__} has no form here")


def _question(value: Any) -> tuple[Question, dict[str, str | bool]]:
    """Return a question, and the client's choice by label."""
    if not isinstance(value, dict):
        raise wrong("a question", value, "an object")
    fields = {name: item for name, item in value.items() if item is not None}
    if isinstance(fields.get("instructions"), list):
        parts = validated(_TEXTS.validate_python, fields["instructions"], "instructions")
        fields["instructions"] = "\n".join(_text("instructions", part) for part in parts)
    booleans: dict[str, bool] = {}  # choices that are true and false, by their labels
    if isinstance(choices := fields.get("choices"), list):
        fields["choices"] = choices = choices.copy()
        for i, choice in enumerate(choices):
            if isinstance(choice, dict) and isinstance(boolean := choice.get("value"), bool):
                label = str(boolean).lower()
                booleans[label] = boolean
                choices[i] = choice | {"value": label}
    question = question_of(fields)
    labels = [label.value for label in question.labels]
    return question, {label: booleans.get(label, label) for label in labels}


def _input(value: str | list[Any]) -> dict[str, Any]:
    """Return the fields of a `Request` for an input: a text, or a conversation."""
    if isinstance(value, str):
        return {"prompt": value}
    messages = [_message(f"input[{i}]", item) for i, item in enumerate(value)]
    return {"messages": messages_of(messages, "input")}


def _message(field: str, value: Any) -> Body:
    """Return a message in the form of `/v1/chat/completions`."""
    validated(InputMessage.model_validate, value, field)
    message = {name: item for name, item in value.items() if name not in ("type", "phase")}
    content, place = message.get("content"), f"{field}.content"
    if isinstance(content, list):
        parts = validated(_PARTS.validate_python, content, place)
        message["content"] = [
            image if isinstance(part, ImagePart) else {"type": "text", "text": _text(place, part)}
            for image, part in zip(content, parts, strict=True)
        ]
    return message


def _text(field: str, part: InputPart) -> str:
    """Return the text of a part; JSON is written as text."""
    if not isinstance(part, JsonContent):
        return text_of([part])
    try:
        return json.dumps(part.data, ensure_ascii=False)
    except RecursionError as error:
        raise RequestError(f"{field} holds JSON that nests too deep") from error
