"""Results of measuring scripts: rows as JSON or as a table, percentiles, the measured commit."""

import json
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar

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


def commit() -> str:
    """Return the short name of this checkout's commit, with a plus if files differ from it."""
    git = ["git", "-C", str(Path(__file__).parent)]
    try:
        name = subprocess.run(
            [*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True
        )
        changed = subprocess.run([*git, "status", "--porcelain"], capture_output=True, text=True)
    except FileNotFoundError:  # there is no git
        return "unknown"
    return (name.stdout.strip() or "unknown") + ("+" if changed.stdout.strip() else "")
