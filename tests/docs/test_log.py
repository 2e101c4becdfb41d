"""The log has an index, and the pages of the docs are in plain words."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LOG = ROOT / "docs" / "log"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
UNCLEAR = re.compile(
    r"\bbehind\b|\bin front of\b|\bwhoever\b|\btold\b|\bso many\b|\N{EM DASH}", re.I
)


def test_every_entry_has_a_question_and_an_answer_in_the_index():
    index = (LOG / "index.md").read_text()
    months = [path for path in LOG.glob("*.md") if path.stem != "index"]
    entries = [
        (path, title)
        for path in months
        for title in re.findall(r"^## (.+)$", path.read_text(), re.M)
    ]
    assert len(entries) > 30
    for path, title in entries:
        anchor = re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", title.lower()))
        row = rf"\| .+\? .*\| .+ \| \[{title[:10]}\]\({path.name}#{re.escape(anchor)}\) \|"
        assert re.search(row, index), f"index.md has no row for {path.name}: {title}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_are_in_plain_words(page):
    prose = re.sub(r"```.*?```|`[^`]*`|\]\([^)]*\)", "", page.read_text(), flags=re.DOTALL)
    assert not UNCLEAR.findall(prose)
