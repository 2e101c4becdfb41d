"""Every example runs with the built-in model and prints what it is for."""

import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[3] / "examples"
PARTS = {
    "extract": ["AK-4071: Silver Robotics owes "],
    "stream": ["pass 1: ", "final: ", " tokens"],
    "tools": ["get_weather({'city': ", "sunny, 21 degrees", " messages"],
    "decide": [
        "job: nurse",
        "% sure",
        "norway: ",
        "closeness: ",
        " of 2",
        " tokens read, 0 written",
    ],
    "choose": ["Oslo. -> nurse", "years. -> driver"],
    "reason": ["reasoning: The text is about", "'age': 61", " tokens of reasoning"],
}


@pytest.mark.parametrize("name", PARTS)
def test_an_example_runs(tiny, capsys, name):
    runpy.run_path(str(EXAMPLES / f"{name}.py"))["main"](tiny.client)
    printed = capsys.readouterr().out
    assert all(part in printed for part in PARTS[name])


def test_no_example_is_left_out():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(PARTS)
