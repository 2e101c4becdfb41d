"""Comparison of a run with an earlier one, from the JSON object that the earlier one printed."""

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from measure.options import MeasureParser


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """Form of a script's results: where its rows are, what names one, and what is compared."""

    script: str
    rows: str  # the field that holds the list of rows
    key: Sequence[str]  # fields that a row and its earlier one have in common
    figures: Sequence[str]  # fields of a row that are numbers to compare
    settings: Sequence[str]  # fields of the whole that should be equal


def add_beside(parser: MeasureParser) -> None:
    purpose = "The --json output of an earlier run; each figure's change since then is shown."
    parser.add_argument("--beside", type=Path, metavar="FILE", help=purpose)


def earlier_of(args: argparse.Namespace, results: Results) -> dict[str, Any] | None:
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
    rows = earlier.get(results.rows) if isinstance(earlier, dict) else None
    if not isinstance(rows, list) or not all(
        isinstance(row, dict) and row.keys() >= {*results.key} for row in rows
    ):
        raise ValueError(
            f"--beside {args.beside} is not what {results.script} --json prints: it takes an object"
            f" whose {results.rows!r} is a list of rows with {' and '.join(results.key)}"
        )
    return earlier


def compare(found: dict[str, Any], earlier: Mapping[str, Any] | None, results: Results) -> None:
    """Add `changes` since the earlier run to each row of `found`, in percent, and to the whole
    `differs`: the settings that are not equal. A figure that either run lacks has None."""
    if earlier is None:
        return
    before = {_key(row, results): row for row in earlier[results.rows]}
    for row in found[results.rows]:
        old = before.get(_key(row, results), {})
        row["changes"] = {name: _change(old.get(name), row.get(name)) for name in results.figures}
    found["differs"] = [
        line
        for name in results.settings
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


def _key(row: Mapping[str, Any], results: Results) -> tuple[Any, ...]:
    return tuple(row[name] for name in results.key)


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
