"""Bodies of `/v1/decisions`: what they ask, and what they are answered. No HTTP.

A field that is null counts as left out. Choices may be true and false, which are told from texts of
the same letters in answers, not by the model.
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
    at,
    question_of,
)
from dlm.decisions.questions import SelectionAnswer as Chosen
from dlm.errors import RequestError
from dlm.events import Decided
from dlm.openai.body import check_fields, list_at, object_at, text_at, whole_at, wrong
from dlm.openai.messages import messages_of
from dlm.openai.requests import model_of
from dlm.request import Request

DECISION = ("model", "input", "questions", "seed", "prompt_cache_options")
_TEXTS = {"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal"}

Body = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionBody:
    """What one body asks."""

    decision: Decision
    kinds: tuple[str, ...]  # of its questions, as answers have them
    model: str | None  # None: whichever there is
    choices: tuple[dict[str, str | bool], ...]  # by question: what stands for which label


def decision_body_of(body: Any) -> DecisionBody:
    """What a body of `/v1/decisions` asks. Raises `RequestError`."""
    body = object_at("the body", body)
    check_fields(body, DECISION)
    asked, choices = list[Question](), list[dict[str, str | bool]]()
    for i, one in enumerate(list_at("questions", body.get("questions"))):
        with at(i):
            question, labels = _question(one)
        asked.append(question)
        choices.append(labels)
    seed = whole_at("seed", body.get("seed")) or 0
    return DecisionBody(
        decision=Decision(request=Request(**_input(body.get("input")), seed=seed), questions=asked),
        kinds=tuple(one.type for one in asked),
        model=model_of(body),
        choices=tuple(choices),
    )


def decision_answer(inquiry: DecisionBody, decided: Decided, model: str) -> Body:
    """The body of an answer. `model` is the name that the client knows it by."""
    read, cached = sum(one.prompt_tokens for one in decided.answers), decided.stats.cached
    told = zip(inquiry.kinds, inquiry.choices, decided.answers, strict=True)
    return {
        "model": model,
        "answers": [
            {"type": kind, "name": one.name or None, **_said(one, choices)}
            for kind, choices, one in told
        ],
        "usage": {
            "input_tokens": read,
            "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": read - cached},
            "output_tokens": 0,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": read,
        },
    }


def _said(answer: QuestionAnswer, choices: Mapping[str, str | bool]) -> Body:
    match answer:
        case PredicateAnswer():
            return {"probability": answer.probability}
        case Chosen():
            said = answer.probabilities.items()
            return {
                "choice": choices[answer.choice],
                "probabilities": [{"value": choices[v], "probability": p} for v, p in said],
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
    """A question, and what the client calls its labels."""
    asked = {name: one for name, one in object_at("a question", value).items() if one is not None}
    if isinstance(asked.get("instructions"), list):
        asked["instructions"] = _text("instructions", asked["instructions"])
    names: dict[str, str | bool] = {}
    if isinstance(asked.get("choices"), list):
        asked["choices"] = [_choice(one) for one in asked["choices"]]
        given = [one.get("value") for one in value["choices"] if isinstance(one, dict)]
        names = {_written(one): one for one in given if isinstance(one, str | bool)}
    question = question_of(asked)
    return question, {label.value: names.get(label.value, label.value) for label in question.labels}


def _choice(value: Any) -> Any:
    """What the model is to write is text."""
    if isinstance(value, dict) and isinstance(value.get("value"), bool):
        return value | {"value": _written(value["value"])}
    return value


def _written(value: str | bool) -> str:
    return value if isinstance(value, str) else str(value).lower()


def _input(value: Any) -> dict[str, Any]:
    """Of a `Request`, what it is about: a text, or a conversation."""
    if isinstance(value, list):
        messages = [_message(f"input[{i}]", one) for i, one in enumerate(list_at("input", value))]
        return {"messages": messages_of(messages, "input")}
    return {"prompt": text_at("input", value, "text or a list of messages")}


def _message(field: str, value: Any) -> Body:
    """A message as chats have it."""
    message = {name: one for name, one in object_at(field, value).items() if name != "phase"}
    if (kind := message.pop("type", None)) not in (None, "message"):
        raise wrong(f"{field}.type", kind, "message: what tools were called with is no input here")
    if isinstance(message.get("content"), list):
        message["content"] = _text(f"{field}.content", message["content"])
    return message


def _text(field: str, parts: list[Any]) -> str:
    """Of parts, a line each at least; JSON as it is written."""
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
