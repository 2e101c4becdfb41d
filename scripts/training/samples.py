"""Samples of the training data: how a prompt is phrased, and how its answer is written."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from random import Random
from typing import Any, Literal

from training.words import forms, phrases

FENCED = 0.25  # share of JSON answers inside a code fence: the habit that breaks JSON in practice
INDENTED = 0.25  # share of JSON answers spread over lines


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One conversation turn: the prompt and the wanted answer."""

    task: Literal["extract", "tool", "choice", "copy", "chat"]
    prompt: str
    answer: str  # as the model should write it, fences included, control tokens and stop excluded
    value: Any  # the answer's meaning: parsed JSON, (tool name, arguments) or a list of these for
    # calls at once, the chosen word, or a text
    schema: dict[str, Any] | None = None
    thought: str | None = None  # None: thinking is off
    tools: list[dict[str, Any]] = field(default_factory=list)
    traits: frozenset[str] = frozenset()  # "list", "nested", "distractor", ...: for reports
    unasked: frozenset[str] = frozenset()  # keys of the answer that only the schema tells
    before: Sequence[dict[str, Any]] = ()  # messages before the prompt
    after: Sequence[dict[str, Any]] = ()  # messages after it: a call and its result

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The whole conversation before the answer."""
        return [*self.before, {"role": "user", "content": self.prompt}, *self.after]


def written(value: Any, random: Random) -> str:
    """Return JSON as the model writes it: on one line or on several, fenced or not."""
    body = dumps(value, 2 if random.random() < INDENTED else None)
    return f"```json\n{body}\n```" if random.random() < FENCED else body


def dumps(value: Any, indent: int | None = None, level: int = 0) -> str:
    """Return JSON text, like `json.dumps`, with the digits of a `Decimal` unchanged."""
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
    """Return the value with floats for decimals, as a JSON parser returns it."""
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


_BRIEF = {"string": "string", "number": "number", "integer": "integer", "boolean": "boolean"}


def instruction(fields: Sequence[str], title: str, text: str, schema: Any, random: Random) -> str:
    """Return the prompt, which describes `schema` if one is given.

    Without `fields`, it names no field, at most the `title` of the text's subject.
    """
    if not fields:
        return random.choice(phrases("leave")).replace("{o}", title).replace("{t}", text)
    template = random.choice(phrases("ask"))
    ask, between, tail = template.partition("{t}")
    if schema is not None and not ask:
        ask, between, tail = phrases("ask")[0].partition("{t}")
    if schema is not None:
        described = described_as(schema, random)
        ask = random.choice(forms("described")).format(a=ask.strip(), s=described) + "\n"
        if random.random() < 0.2:  # the schema alone says what is wanted
            ask, tail = f"Answer in JSON of this schema: {described}\n", ""
    listed = enumerated(fields, random)
    return ask.replace("{f}", listed) + between.replace("{t}", text) + tail.replace("{f}", listed)


def enumerated(fields: Sequence[str], random: Random) -> str:
    form = random.random()
    if form < 0.75 or len(fields) == 1:
        return ", ".join(fields)
    if form < 0.9:
        return ", ".join(fields[:-1]) + random.choice([" and ", ", and "]) + fields[-1]
    if form < 0.95:
        return ", ".join(f'"{field}"' for field in fields)
    return "/".join(fields)


def described_as(schema: Mapping[str, Any], random: Random) -> str:
    """Describe a schema in one line: as JSON Schema, as an example of types, or as a list."""
    form = random.random()
    if form < 0.2:
        return json.dumps(schema)
    needed = schema["required"]
    brief = {key: brief_type(value) for key, value in schema["properties"].items()}
    optional = {key for key in brief if key not in needed}
    if form < 0.65:
        marks = {f"{key}?" if key in optional else key: kind for key, kind in brief.items()}
        return json.dumps(marks)
    marks = {k: f"{v}, optional" if k in optional else v for k, v in brief.items()}
    marks = {k: v if isinstance(v, str) else json.dumps(v) for k, v in marks.items()}
    if form < 0.85:
        return ", ".join(f"{key} ({kind})" for key, kind in marks.items())
    return ", ".join(f"{key}: {kind}" for key, kind in marks.items())


def brief_type(schema: Mapping[str, Any]) -> Any:
    if "enum" in schema:
        return "|".join(map(str, schema["enum"]))
    kind = schema["type"]
    if isinstance(kind, list):
        return " or ".join(kind)
    if kind == "array":
        return [brief_type(schema["items"])]
    if kind == "object":
        return {key: brief_type(value) for key, value in schema["properties"].items()}
    return "date" if schema.get("format") == "date" else _BRIEF[kind]
