"""Prompts of a comparison, and the judgement of their answers.

A prompt has a schema and, where it is known, the wanted value. Validity is judged by `jsonschema`,
which knows nothing of how an answer was made. An answer is exact if its value is the wanted one. A
code fence around JSON is forgiven where values are compared, but it is not valid.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jsonschema import SchemaError, validators

BUILT_IN = Path(__file__).with_name("prompts.jsonl")
MISSING = object()  # stands for a value that is absent; equal to nothing else


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


def judged(prompt: Prompt, text: str) -> tuple[bool | None, float | None]:
    """Return whether the answer is the expected value, and the F1 of its fields.

    Both are None if no expected answer is known.
    """
    if not prompt.known:
        return None, None
    value = value_of(text)
    return same(value, prompt.expected), f1(value, prompt.expected)


def is_valid(text: str, schema: Any) -> bool:
    """Whether `text` is JSON that `jsonschema` accepts."""
    try:
        return validator_of(schema)(schema).is_valid(json.loads(text))
    except (ValueError, RecursionError):
        return False


def validator_of(schema: Any) -> Any:
    """Return the validator class for the draft that the schema names, by default 2020-12."""
    return validators.validator_for(schema, default=validators.Draft202012Validator)


def is_exact(text: str, value: Any) -> bool:
    """Whether `text` is JSON for `value`; a code fence around it is forgiven."""
    return same(value_of(text), value)


def value_of(text: str) -> Any:
    """Return the JSON value of an answer, without its code fence, or `MISSING` if it is no JSON."""
    try:
        return json.loads(text.strip().removeprefix("```json").removesuffix("```"))
    except (ValueError, RecursionError):
        return MISSING


def same(value: Any, other: Any) -> bool:
    """Whether two JSON values are equal: 19 equals 19.0, 1 is not true, keys have no order."""
    if isinstance(value, bool) or isinstance(other, bool):
        return value is other
    if isinstance(value, dict) and isinstance(other, dict):
        return value.keys() == other.keys() and all(same(value[k], other[k]) for k in value)
    if isinstance(value, list) and isinstance(other, list):
        return len(value) == len(other) and all(map(same, value, other))
    return value == other


def found(value: Any, target: Any) -> tuple[int, int]:
    """Return the number of the target's leaves that `value` has at the same path, and of all."""
    wanted = list(leaves(target))
    return sum(same(_at(value, path), leaf) for path, leaf in wanted), len(wanted)


def f1(value: Any, target: Any) -> float:
    """Return the F1 of the leaves: the harmonic mean of their precision and recall."""
    right, wanted = found(value, target)
    return 2 * right / (len(list(leaves(value))) + wanted)


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yield the values that contain no others, each after its path."""
    if not isinstance(value, dict | list) or not value:
        yield path, value
        return
    for key, part in value.items() if isinstance(value, dict) else enumerate(value):
        yield from leaves(part, (*path, key))


def _at(value: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        try:
            value = value[key]
        except (IndexError, KeyError, TypeError):
            return MISSING
    return value
