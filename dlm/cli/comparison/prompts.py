"""Prompts of a comparison, each with its schema and, where it is known, the answer."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jsonschema import SchemaError

from dlm.cli.comparison.judging import is_valid, validator_of

BUILT_IN = Path(__file__).with_name("prompts.jsonl")


class PromptError(Exception):
    """An error in a file of prompts or in the choice of modes, with the line or the name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """A prompt, its schema and the expected answer."""

    id: int  # its number among the prompts
    prompt: str
    schema: Any
    expected: Any = None
    known: bool = False  # there is an expected answer

    def valid(self, text: str) -> bool:
        """Whether `text`, as it stands, is JSON that the schema accepts."""
        return is_valid(text, self.schema)


def built_in(count: int, seed: int) -> list[Prompt]:
    """Return the first `count` prompts that come with the package, whatever the `seed`.

    Their sentence patterns occur in the built-in model's training, their values do not.
    """
    prompts = read(BUILT_IN)
    if count > len(prompts):
        raise PromptError(f"there are {len(prompts)} built-in prompts, not {count}: give --data")
    return prompts[:count]


def read(path: Path, count: int | None = None) -> list[Prompt]:
    """Read the first `count` prompts of a file, or all.

    A line is `{"prompt", "schema", "expected"?}`. Raises `PromptError`.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise PromptError(f"{path.name} cannot be read: {error}") from error
    prompts = list(_parsed(lines, path.name))[:count]
    if not prompts:
        raise PromptError(f"{path.name} has no prompts")
    return prompts


def _parsed(lines: list[str], name: str) -> Iterator[Prompt]:
    count = 0
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"{name}, line {number}"
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise PromptError(f"{where}: no JSON: {error}") from error
        if not isinstance(entry, dict) or not isinstance(entry.get("prompt"), str):
            raise PromptError(f'{where}: it takes an object with a text as its "prompt"')
        if unknown := entry.keys() - {"prompt", "schema", "expected"}:
            raise PromptError(
                f"{where}: {sorted(unknown)[0]!r} is none of prompt, schema and expected"
            )
        schema = entry.get("schema")
        if not isinstance(schema, dict | bool):
            raise PromptError(f'{where}: it takes a JSON Schema as its "schema"')
        try:
            validator_of(schema).check_schema(schema)
        except SchemaError as error:
            raise PromptError(f"{where}: the schema is none: {error.message}") from error
        yield Prompt(
            id=count,
            prompt=entry["prompt"],
            schema=schema,
            expected=entry.get("expected"),
            known="expected" in entry,
        )
        count += 1
