"""JSON that clients send, read only if that cannot take long.

Python's interpreter does nothing else while it reads one text: not a step of anybody's request.
How long it takes goes by the values and their keys, far more than by the length.
"""

import json
from typing import Any

from dlm.errors import RequestError

MOST_PARTS = 1 << 18  # about 50 ms at the most


def parsed(what: str, text: str | bytes) -> Any:
    """The value of `text`, which errors call `what`. Raises `RequestError` for what is no JSON, or
    has too many signs that begin a value, those within texts included: commas and opening brackets,
    and twice the colons and braces, since to make an object takes longer."""
    signs = text if isinstance(text, str) else text.decode("latin-1")
    count = signs.count
    parts = count(",") + count("[") + 2 * (count(":") + count("{"))
    if parts > MOST_PARTS:
        raise RequestError(
            f"{what} has too many values: its commas and opening brackets, and twice its colons "
            f"and opening braces, are {parts}, and it takes {MOST_PARTS}"
        )
    try:
        return json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"{what} is not JSON: {str(error)[:200]}") from error


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON")
