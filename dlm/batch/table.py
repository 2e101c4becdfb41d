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
_FORMULAS = "=", "+", "-", "@", "\t", "\r"  # beginnings of formulas in spreadsheets


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
    names = _column_names(columns)
    before = _BEFORE if named else _BEFORE[:1]
    header = [*before, *names.values(), *([_VALUE] if whole or not names else []), *_AFTER]
    with path.open("w", encoding="utf-8", errors="backslashreplace", newline="") as file:
        table = csv.DictWriter(file, header)
        table.writerow({name: _cell(name) for name in header})
        for answer in read():
            value = answer.get(_VALUE)
            cells = {name: answer.get(name) for name in (*before, *_AFTER)}
            if isinstance(value, dict):
                cells |= {names[key]: part for key, part in value.items()}
            elif value is not None:
                cells[_VALUE] = value
            table.writerow({name: _cell(cell) for name, cell in cells.items()})


def _column_names(properties: Mapping[str, None]) -> dict[str, str]:
    """Return the column of each property: its name, with prefixes if a table has such a column
    anyway."""
    taken, names = {*_BEFORE, *_AFTER, _VALUE}, dict[str, str]()
    for name in properties:
        column = name
        while column in taken or (column != name and column in properties):
            column = f"{_VALUE}.{column}"
        names[name] = column
    return names


def _cell(value: Any) -> Any:
    """Return a text, nothing for null, and other values as JSON. A text that a spreadsheet would
    compute as a formula gets an apostrophe before it, which shows it as text there."""
    if isinstance(value, str):
        return f"'{value}" if value.startswith(_FORMULAS) and not _is_number(value) else value
    return None if value is None else json.dumps(value, ensure_ascii=False)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
