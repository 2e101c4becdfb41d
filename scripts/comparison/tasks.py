"""The prompts of a comparison, each with its schema and, where it is known, the answer."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from jsonschema import SchemaError
from judging import is_valid, validator_of
from training.extraction import extract


class TaskError(Exception):
    """A file of prompts cannot be read: what is wrong, and on which line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    id: int  # its place among the prompts
    prompt: str
    schema: Any
    expected: Any = None
    known: bool = False  # there is an expected answer

    def valid(self, text: str) -> bool:
        """`text`, as it stands, is JSON that the schema accepts."""
        return is_valid(text, self.schema)


def built_in(count: int, seed: int) -> list[Task]:
    """Extractions on sentence patterns that the built-in model was trained on, of other values."""
    random = Random(f"compare/{seed}")
    samples = (extract(random, "heldout") for _ in range(count))
    return [
        Task(id=i, prompt=item.prompt, schema=item.schema, expected=item.value, known=True)
        for i, item in enumerate(samples)
    ]


def read(path: Path, count: int | None = None) -> list[Task]:
    """From a file of `{"prompt", "schema", "expected"?}` a line; its first `count`, or all."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise TaskError(f"{path.name} cannot be read: {error}") from error
    tasks = list(_parsed(lines, path.name))[:count]
    if not tasks:
        raise TaskError(f"{path.name} has no prompts")
    return tasks


def _parsed(lines: list[str], name: str) -> Iterator[Task]:
    count = 0
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"{name}, line {number}"
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise TaskError(f"{where}: no JSON: {error}") from error
        if not isinstance(entry, dict) or not isinstance(entry.get("prompt"), str):
            raise TaskError(f'{where}: it takes an object with a text as its "prompt"')
        if unknown := entry.keys() - {"prompt", "schema", "expected"}:
            raise TaskError(
                f"{where}: {sorted(unknown)[0]!r} is none of prompt, schema and expected"
            )
        schema = entry.get("schema")
        if not isinstance(schema, dict | bool):
            raise TaskError(f'{where}: it takes a JSON Schema as its "schema"')
        try:
            validator_of(schema).check_schema(schema)
        except SchemaError as error:
            raise TaskError(f"{where}: the schema is none: {error.message}") from error
        yield Task(
            id=count,
            prompt=entry["prompt"],
            schema=schema,
            expected=entry.get("expected"),
            known="expected" in entry,
        )
        count += 1
