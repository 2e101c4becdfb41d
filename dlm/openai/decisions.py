"""Bodies of `/v1/decisions` and of their answers. No HTTP.

A field that is null counts as left out. Choices may be true and false: the model sees them as the
texts "true" and "false", and answers have them as booleans again.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dlm.decisions.questions import (
    Decision,
    PredicateAnswer,
    Question,
    QuestionAnswer,
    RatingAnswer,
    SelectionAnswer,
    at,
    question_of,
)
from dlm.errors import RequestError
from dlm.events import Decided
from dlm.openai.body import Body, check_fields, list_at, object_at, text_at, whole_at, wrong
from dlm.openai.messages import messages_of
from dlm.openai.requests import model_of
from dlm.request import Request

DECISION = ("model", "input", "questions", "seed", "prompt_cache_options")
_TEXTS = {"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal"}


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionBody:
    """The questions of one body."""

    decision: Decision
    kinds: tuple[str, ...]  # types of its questions, as answers have them
    model: str | None  # None: the server's only model
    choices: tuple[dict[str, str | bool], ...]  # for each question, the client's choice by label


def decision_body_of(body: Any) -> DecisionBody:
    """Read a body of `/v1/decisions`. Raises `RequestError`."""
    body = object_at("the body", body)
    check_fields(body, DECISION)
    questions, choices = list[Question](), list[dict[str, str | bool]]()
    for i, value in enumerate(list_at("questions", body.get("questions"))):
        with at(i):
            question, labels = _question(value)
        questions.append(question)
        choices.append(labels)
    seed = whole_at("seed", body.get("seed")) or 0
    request = Request(**_input(body.get("input")), seed=seed)
    return DecisionBody(
        decision=Decision(request=request, questions=questions),
        kinds=tuple(question.type for question in questions),
        model=model_of(body),
        choices=tuple(choices),
    )


def decision_answer(body: DecisionBody, decided: Decided, model: str) -> Body:
    """Return the body of an answer. `model` is the model's name in it."""
    read, cached = sum(one.prompt_tokens for one in decided.answers), decided.stats.cached
    return {
        "model": model,
        "answers": [
            {"type": kind, "name": answer.name or None, **_probabilities(answer, choices)}
            for kind, choices, answer in zip(body.kinds, body.choices, decided.answers, strict=True)
        ],
        "usage": {
            "input_tokens": read,
            "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": read - cached},
            "output_tokens": 0,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": read,
        },
    }


def _probabilities(answer: QuestionAnswer, choices: Mapping[str, str | bool]) -> Body:
    match answer:
        case PredicateAnswer():
            return {"probability": answer.probability}
        case SelectionAnswer():
            return {
                "choice": choices[answer.choice],
                "probabilities": [
                    {"value": choices[value], "probability": p}
                    for value, p in answer.probabilities.items()
                ],
                "confidence": answer.confidence,
            }
        case RatingAnswer(probabilities=levels):
            return {
                "score": answer.score,
                "probabilities": [
                    {"label": label, "value": value, "probability": p}
                    for value, (label, p) in enumerate(levels.items())
                ],
                "confidence": max(levels.values()),
            }
    raise TypeError(f"{type(answer).__name__} has no form here")


def _question(value: Any) -> tuple[Question, dict[str, str | bool]]:
    """Return a question, and the client's choice by label."""
    fields = {name: one for name, one in object_at("a question", value).items() if one is not None}
    if isinstance(fields.get("instructions"), list):
        fields["instructions"] = _text("instructions", fields["instructions"])
    names: dict[str, str | bool] = {}
    if isinstance(fields.get("choices"), list):
        fields["choices"] = [_choice(one) for one in fields["choices"]]
        given = [one.get("value") for one in value["choices"] if isinstance(one, dict)]
        names = {_label(one): one for one in given if isinstance(one, str | bool)}
    question = question_of(fields)
    return question, {label.value: names.get(label.value, label.value) for label in question.labels}


def _choice(value: Any) -> Any:
    """Return a choice whose boolean `value` is replaced by its label."""
    if isinstance(value, dict) and isinstance(value.get("value"), bool):
        return value | {"value": _label(value["value"])}
    return value


def _label(value: str | bool) -> str:
    return value if isinstance(value, str) else str(value).lower()


def _input(value: Any) -> dict[str, Any]:
    """Return the fields of a `Request` for an input: a text, or a conversation."""
    if isinstance(value, list):
        messages = [_message(f"input[{i}]", one) for i, one in enumerate(list_at("input", value))]
        return {"messages": messages_of(messages, "input")}
    return {"prompt": text_at("input", value, "text or a list of messages")}


def _message(field: str, value: Any) -> Body:
    """Return a message in the form of `/v1/chat/completions`."""
    message = {name: one for name, one in object_at(field, value).items() if name != "phase"}
    if (kind := message.pop("type", None)) not in (None, "message"):
        raise wrong(f"{field}.type", kind, "message: calls of tools are no input here")
    if isinstance(message.get("content"), list):
        message["content"] = _text(f"{field}.content", message["content"])
    return message


def _text(field: str, parts: list[Any]) -> str:
    """Join the texts of `parts`, each beginning on a new line; JSON is written as text."""
    texts = []
    for i, value in enumerate(parts):
        part = object_at(f"{field}[{i}]", value)
        kind = part.get("type")
        if kind == "input_json":
            texts.append(_json(f"{field}[{i}].data", part.get("data")))
        elif isinstance(kind, str) and kind in _TEXTS:
            texts.append(text_at(f"{field}[{i}].{_TEXTS[kind]}", part.get(_TEXTS[kind]), "text"))
        else:
            right = "input_text or input_json: this server's models read nothing else"
            raise wrong(f"{field}[{i}].type", kind, right)
    return "\n".join(texts)


def _json(field: str, value: Any) -> str:
    if not isinstance(value, dict | list):
        raise wrong(field, value, "an object or a list of objects")
    try:
        return json.dumps(value, ensure_ascii=False)
    except RecursionError as error:
        raise RequestError(f"{field} nests too deep") from error
