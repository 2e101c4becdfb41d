"""Prompts made of a row's fields."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from string import Formatter
from typing import Any

from dlm.errors import RequestError


@dataclass(frozen=True, slots=True)
class Template:
    """Text with the names of fields in it: what stands in braces is a name, whole, and braces that
    are text are doubled. Nothing of a value is looked into, and no format is applied."""

    parts: tuple[tuple[str, str | None], ...]  # text, and the field behind it

    @classmethod
    def parse(cls, text: str) -> "Template":
        """Raises `RequestError` for braces that do not match or that hold no plain name."""
        parts = []
        try:
            for literal, name, form, conversion in Formatter().parse(text):
                if name == "" or form or conversion or "{" in (name or ""):
                    raise ValueError("braces hold the name of a field and nothing else")
                parts.append((literal, name))
        except ValueError as error:
            message = f"the template cannot be read: {error}; write {{{{ and }}}} for braces"
            raise RequestError(message) from error
        if not any(name for _, name in parts):
            raise RequestError("the template names no field, as in {text}: all rows would be alike")
        return cls(tuple(parts))

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of the fields that it reads."""
        return tuple(dict.fromkeys(name for _, name in self.parts if name is not None))

    @classmethod
    def column(cls, name: str) -> "Template":
        """The field alone."""
        return cls((("", name),))

    def fill(self, fields: Mapping[str, Any]) -> str:
        """Values that are no text as JSON. Raises `RequestError` for a field that is not there."""
        return "".join(
            literal + ("" if name is None else _text_at(name, fields))
            for literal, name in self.parts
        )


def _text_at(name: str, fields: Mapping[str, Any]) -> str:
    if name not in fields:
        raise RequestError(f"the row has no field {name!r}: it has {', '.join(fields) or 'none'}")
    value = fields[name]
    if value is None:
        raise RequestError(f"the row's field {name!r} is null")
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
