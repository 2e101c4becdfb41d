"""Reads of a JSON body that tell a client what was found, and what would have been right.

Knows JSON's types, and no field.
"""

from collections.abc import Collection, Mapping
from typing import Any

from dlm.errors import RequestError


def object_at(field: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise wrong(field, value, "an object")
    return value


def list_at(field: str, value: Any) -> list[Any]:
    if not isinstance(value, list) or not value:
        raise wrong(field, value, "a list that is not empty")
    return value


def text_at(field: str, value: Any, right: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise wrong(field, value, right)
    return value


def whole_at(field: str, value: Any) -> int | None:
    if value is not None and type(value) is not int:  # true and false are ints to Python
        raise wrong(field, value, "a whole number")
    return value


def flag_at(field: str, value: Any) -> bool | None:
    if not isinstance(value, bool | None):
        raise wrong(field, value, "true or false")
    return value


def only(field: str, found: Mapping[str, Any], known: Collection[str]) -> None:
    """`RequestError` for what is there beside `known`."""
    for name, value in found.items():
        if name not in known and value is not None:
            raise RequestError(f"{field}.{name!s:.40} is unknown: it takes {', '.join(known)}")


def wrong(field: str, found: Any, right: str) -> RequestError:
    return RequestError(f"{field} is {shown(found)}: it takes {right}")


def shown(value: Any) -> str:
    """A value in a few words. Never recursive: a client may nest as deep as it likes."""
    match value:
        case None:
            return "missing"
        case dict():
            return f"an object of {', '.join(map(str, value)):.60}" if value else "an empty object"
        case list():
            return "a list" if value else "an empty list"
        case bool():
            return str(value).lower()
        case _:
            return f"{value!r:.60}"
