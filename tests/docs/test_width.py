"""Prose of the guides is wrapped, so that a change of a sentence is a change of a few lines."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WIDTH = 120
ONE_A_LINE = {"conformance.md", "results.md"}  # lists with an entry a line, and measured figures
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *(path for path in sorted((ROOT / "docs").glob("*.md")) if path.name not in ONE_A_LINE),
]


def too_long(text: str) -> list[int]:
    """Return the numbers of lines of prose that are too long: not of code, nor of tables."""
    numbers, in_code = [], False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            in_code = not in_code
        elif not in_code and len(line) > WIDTH and not line.lstrip().startswith(("|", "<")):
            numbers.append(number)
    return numbers


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_prose_is_wrapped(page):
    assert not too_long(page.read_text())


def test_code_and_tables_are_as_wide_as_they_need():
    wide = "a " * 70
    assert too_long(f"{wide}\n```\n{wide}\n```\n| {wide}|\n- {wide}") == [1, 6]
