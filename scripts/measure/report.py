"""Results of measuring scripts: rows as JSON or as a table, and percentiles.

With `--beside`, figures are compared with those of an earlier run, from the JSON object that it
printed.
"""

import argparse
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from rich.console import Console
from rich.table import Table


@dataclass(kw_only=True)
class ResultRow:
    """A row of results. Its fields are its JSON; a table shows it by its class's `COLUMNS`."""

    COLUMNS: ClassVar[Mapping[str, str]]  # heading -> format, such as "{0.valid}/{0.prompts}"

    def cells(self) -> list[str]:
        return [form.format(self) for form in self.COLUMNS.values()]


def print_rows(rows: Sequence[ResultRow], as_json: bool, width: int = 100) -> None:
    """Print rows of one class: one JSON object a line, or a table."""
    if as_json:
        for row in rows:
            print(json.dumps(asdict(row)), flush=True)
    elif rows:
        print_table([*rows[0].COLUMNS], (row.cells() for row in rows), width=width)


def print_table(
    headings: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    title: str | None = None,
    left: Sequence[str] = (),
    width: int = 100,
) -> None:
    """Print a table. The first column and those named in `left` are left-justified."""
    table = Table(title=title, title_justify="left")
    for heading in headings:
        is_left = heading == headings[0] or heading in left
        table.add_column(heading, justify="left" if is_left else "right")
    for row in rows:
        table.add_row(*row)
    Console(width=width).print(table)


def percentiles(
    values: Sequence[float], shares: Sequence[int] = (50, 99), digits: int = 4
) -> dict[str, float]:
    """Return `{"p50": ..., "p99": ..., "max": ...}`, rounded; empty if there are no values."""
    if not values:
        return {}
    found = zip(shares, np.percentile(values, shares), strict=True)
    named = {f"p{share}": round(float(value), digits) for share, value in found}
    return {**named, "max": round(max(values), digits)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultForm:
    """Form of a script's results: where its rows are, what names one, and what is compared."""

    script: str
    rows: str  # the field that holds the list of rows
    key: Sequence[str]  # fields that a row and its earlier one have in common
    figures: Sequence[str]  # fields of a row that are numbers to compare
    settings: Sequence[str]  # fields of the whole that should be equal


def add_beside(parser: argparse.ArgumentParser) -> None:
    purpose = "The --json output of an earlier run; each figure's change since then is shown."
    parser.add_argument("--beside", type=Path, metavar="FILE", help=purpose)


def add_out(parser: argparse.ArgumentParser) -> None:
    purpose = "A file for the JSON object, written again after each row: nothing is lost by a limit"
    parser.add_argument("--out", type=Path, metavar="FILE", help=f"{purpose} of time.")


def write_result(path: Path | None, result: Mapping[str, Any]) -> None:
    """Write the JSON object so far, in one piece; do nothing without a path."""
    if path is not None:
        new = path.with_name(f"{path.name}.new")
        new.write_text(json.dumps(result))
        new.replace(path)


def earlier_of(args: argparse.Namespace, form: ResultForm) -> dict[str, Any] | None:
    """Return the earlier results that `--beside` names; None without it. Raises `ValueError` for a
    file that holds no results of this script."""
    if args.beside is None:
        return None
    try:
        earlier = json.loads(args.beside.read_text())
    except OSError as error:
        raise ValueError(f"--beside {args.beside} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ValueError(f"--beside {args.beside} holds no JSON object: {error}") from None
    rows = earlier.get(form.rows) if isinstance(earlier, dict) else None
    if not isinstance(rows, list) or not all(
        isinstance(row, dict) and row.keys() >= {*form.key} for row in rows
    ):
        raise ValueError(
            f"--beside {args.beside} must be what {form.script} --json prints: an object whose"
            f" {form.rows!r} is a list of rows with {' and '.join(form.key)}"
        )
    return earlier


def compare(found: dict[str, Any], earlier: Mapping[str, Any] | None, form: ResultForm) -> None:
    """Add `changes` since the earlier run to each row of `found`, in percent, and to the whole
    `differs`: the settings that are not equal. A figure that either run lacks has None."""
    if earlier is None:
        return
    before = {_key(row, form): row for row in earlier[form.rows]}
    for row in found[form.rows]:
        old = before.get(_key(row, form), {})
        row["changes"] = {name: _change(old.get(name), row.get(name)) for name in form.figures}
    found["differs"] = [
        line
        for name in form.settings
        for line in _differences(name, earlier.get(name), found.get(name))
    ]


def show_settings(found: Mapping[str, Any]) -> None:
    """Print which settings of the earlier run are others, if any are."""
    for line in found.get("differs", ()):
        print(f"other settings: {line}")


def with_change(text: str, row: Mapping[str, Any], figure: str) -> str:
    """Return the text of a figure with its change, if the row has changes."""
    if "changes" not in row:
        return text
    change = row["changes"][figure]
    return f"{text} (-)" if change is None else f"{text} ({change:+.1f} %)"


def _key(row: Mapping[str, Any], form: ResultForm) -> tuple[Any, ...]:
    return tuple(row[name] for name in form.key)


def _change(old: Any, new: Any) -> float | None:
    numbers = isinstance(old, int | float) and isinstance(new, int | float)
    return 100 * (new - old) / old if numbers and old else None


def _differences(name: str, old: Any, new: Any) -> Iterator[str]:
    if isinstance(old, dict) and isinstance(new, dict):
        for part in dict.fromkeys((*new, *old)):
            yield from _differences(f"{name}.{part}", old.get(part), new.get(part))
    elif old != new:
        then = "not recorded" if old is None else old
        yield f"{name} was {then}, is {'not recorded' if new is None else new}"
