"""Tables of answers, as CSV files that spreadsheets open. Knows no requests."""

import csv
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from dlm.errors import DlmError

_MOST_COLUMNS = 1_000  # of values: an answer with free keys may have new ones in each row
_BEFORE, _AFTER = ("row", "id"), ("text", "finish_reason", "tokens", "error")
_VALUE = "value"


def write_table(path: Path, read: Callable[[], Iterator[Mapping[str, Any]]]) -> None:
    """Write the answers that `read` yields. The properties of a value that is an object are
    columns; other values are in the column `value`.

    Raises `DlmError` for values with too many properties, and `OSError`.
    """
    columns: dict[str, None] = {}
    whole = named = False
    for answer in read():
        value = answer.get(_VALUE)
        named |= "id" in answer
        if isinstance(value, dict):
            columns |= dict.fromkeys(value)
        whole |= value is not None and not isinstance(value, dict)
        if len(columns) > _MOST_COLUMNS:
            raise DlmError(
                f"a table must have at most {_MOST_COLUMNS} columns of values, got more by row "
                f"{answer.get('row')}"
            )
    taken = {*_BEFORE, *_AFTER, _VALUE}
    names = {key: f"{_VALUE}.{key}" if key in taken else key for key in columns}
    before = _BEFORE if named else _BEFORE[:1]
    header = [*before, *names.values(), *([_VALUE] if whole or not names else []), *_AFTER]
    with path.open("w", encoding="utf-8", errors="backslashreplace", newline="") as file:
        table = csv.DictWriter(file, header)
        table.writeheader()
        for answer in read():
            value = answer.get(_VALUE)
            cells = {name: answer.get(name) for name in (*before, *_AFTER)}
            if isinstance(value, dict):
                cells |= {names[key]: part for key, part in value.items()}
            elif value is not None:
                cells[_VALUE] = value
            table.writerow({name: _cell(cell) for name, cell in cells.items()})


def _cell(value: Any) -> Any:
    """Return a text as it is, nothing for null, and other values as JSON."""
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False)
