"""Values and strings of drawn samples of the training."""

import json
from typing import Any


def value_of(answer: str) -> Any:
    """Return the value of an answer, which may be in a code block."""
    return json.loads(answer.removeprefix("```json").removesuffix("```"))


def strings_of(value: Any) -> set[str]:
    """Return every string of a value, keys aside."""
    if isinstance(value, dict | list):
        parts = value.values() if isinstance(value, dict) else value
        return {string for part in parts for string in strings_of(part)}
    return {value} if isinstance(value, str) else set()
