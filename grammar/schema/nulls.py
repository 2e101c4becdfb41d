"""Keywords that are null, as Go and Java clients write what is not there: read as absent.

In `const`, `default`, `enum` and `examples` a null is a value, and stays.
"""

from typing import Any

from dlm.grammar.schema.syntax import DATA, is_schema_list, is_schema_map

_VALUES = ("const", "default")


def without_nulls(schema: Any) -> Any:
    """Return the schema without keywords that are null: itself if there are none.

    Raises `RecursionError`.
    """
    return _cleaned(schema) if _has_null(schema) else schema


def _has_null(data: Any) -> bool:
    """Whether a null is the value of any key in JSON data."""
    waiting = [data]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            if None in part.values():
                return True
            waiting += (value for value in part.values() if isinstance(value, dict | list))
        elif isinstance(part, list):
            waiting += (value for value in part if isinstance(value, dict | list))
    return False


def _cleaned(schema: Any) -> Any:
    if not isinstance(schema, dict):
        return schema
    return {
        word: _part(word, value)
        for word, value in schema.items()
        if value is not None or word in _VALUES
    }


def _part(word: str, value: Any) -> Any:
    """The value of a keyword; one that no draft has may hold schemas that references lead to."""
    if word in DATA:
        return value
    if is_schema_list(word, value):
        return [_cleaned(part) for part in value]
    if is_schema_map(word) and isinstance(value, dict):
        return {key: _cleaned(part) for key, part in value.items()}
    return _cleaned(value)
