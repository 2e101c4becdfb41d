"""What users ask for: instructions in many phrasings, and the line that describes a schema."""

import json
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from training.words import phrases

DESCRIBED = [
    "{a}\nSchema: {s}",
    "{a} Schema: {s}",
    "{a} Follow this schema: {s}",
    "Schema: {s}\n{a}",
    "{a} ({s})",
    "Use this JSON schema: {s}\n{a}",
]
_BRIEF = {"string": "string", "number": "number", "integer": "integer", "boolean": "boolean"}


def instruction(fields: Sequence[str], title: str, text: str, schema: Any, random: Random) -> str:
    """The prompt; `schema` is described in it where one is given. Where there are no `fields`, it
    does not say what is wanted, or by no more than the `title` of the text's matter."""
    if not fields:
        return random.choice(phrases("leave")).replace("{o}", title).replace("{t}", text)
    template = random.choice(phrases("ask"))
    ask, between, tail = template.partition("{t}")
    if schema is not None and not ask:
        ask, between, tail = phrases("ask")[0].partition("{t}")
    if schema is not None:
        described = described_as(schema, random)
        ask = random.choice(DESCRIBED).format(a=ask.strip(), s=described) + "\n"
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
    """A schema in one line: as JSON Schema, as an example of types, or as a list."""
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
