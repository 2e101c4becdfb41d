"""A sample of the training data, and how its answer is written."""

import json
from dataclasses import dataclass, field
from decimal import Decimal
from random import Random
from typing import Any, Literal

FENCED = 0.25  # share of JSON answers inside a code fence: the habit that breaks JSON in practice
INDENTED = 0.25  # share of JSON answers spread over lines


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One conversation turn: what the user asks, and what should come back."""

    task: Literal["extract", "tool", "choice", "copy"]
    prompt: str
    answer: str  # as the model should write it, fences included, control tokens and stop excluded
    value: Any  # the answer's meaning: parsed JSON, (tool name, arguments), or the chosen word
    schema: dict[str, Any] | None = None
    thought: str | None = None  # None: thinking is off
    tools: list[dict[str, Any]] = field(default_factory=list)
    traits: frozenset[str] = frozenset()  # "list", "nested", "distractor", ...: for reports
    unasked: frozenset[str] = frozenset()  # keys of the answer that only the schema tells


def written(value: Any, random: Random) -> str:
    """JSON as the model answers: on one line or on several, fenced or not."""
    body = dumps(value, 2 if random.random() < INDENTED else None)
    return f"```json\n{body}\n```" if random.random() < FENCED else body


def dumps(value: Any, indent: int | None = None, level: int = 0) -> str:
    """`json.dumps`, with the digits of a `Decimal` as they are."""
    if isinstance(value, Decimal):
        return str(value)
    if not isinstance(value, dict | list) or not value:
        return json.dumps(value, ensure_ascii=False)
    inner = [
        dumps(v, indent, level + 1) for v in (value.values() if isinstance(value, dict) else value)
    ]
    if isinstance(value, dict):
        inner = [
            f"{json.dumps(k, ensure_ascii=False)}: {v}" for k, v in zip(value, inner, strict=True)
        ]
    opens, closes = "{}" if isinstance(value, dict) else "[]"
    if indent is None:
        return opens + ", ".join(inner) + closes
    margin = "\n" + " " * indent * (level + 1)
    return opens + margin + ("," + margin).join(inner) + "\n" + " " * indent * level + closes


def plain(value: Any) -> Any:
    """The value with floats for decimals, as a JSON parser would give it."""
    if isinstance(value, Decimal):
        return float(value) if "." in str(value) else int(value)
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items()}
    return [plain(part) for part in value] if isinstance(value, list) else value


def object_schema(
    properties: dict[str, Any], optional: frozenset[str] = frozenset()
) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": [key for key in properties if key not in optional],
        "additionalProperties": False,
    }
