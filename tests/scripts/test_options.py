"""Flags of the scripts that measure and train, and the tables that they print."""

import json
import re
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import ClassVar

import evaluate
import load
import pytest
from measure.report import ResultRow, percentiles, print_rows

from dlm import cli

SCRIPTS = sorted(
    {path.stem for path in (Path(__file__).parents[2] / "scripts").glob("*.py")}
    - cli.COMMANDS.keys()
)
COMMANDS = [  # those of scripts that have several
    (script, command)
    for script in SCRIPTS
    for command in getattr(import_module(script), "COMMANDS", (None,))
]


@pytest.mark.parametrize(("script", "command"), COMMANDS)
def test_every_option_is_explained_in_sentences(script, command, monkeypatch, run_command):
    monkeypatch.setenv("COLUMNS", "500")
    words = [] if command is None else [command]
    code, shown, _ = run_command(import_module(script), *words, "--help")
    assert code == 0
    options = re.findall(r"^  (--?\w\S*(?:, --\S+)?.*?)(?:  +|\n +)(\S.*)$", shown, re.MULTILINE)
    assert len(options) == len(re.findall(r"^  -", shown, re.MULTILINE)) >= 3
    for option, text in options:
        assert re.fullmatch(r"[A-Z].*\.", text), (option, text)
    assert " ".join([f"python scripts/{script}.py", *words]) in shown


@pytest.mark.parametrize("script", [evaluate, load])
def test_a_script_of_several_commands_lists_them(script, monkeypatch, run_command):
    monkeypatch.setenv("COLUMNS", "500")
    _, shown, _ = run_command(script, "--help")
    for name, purpose in script.COMMANDS.items():
        assert re.search(rf"  {name}\s+{re.escape(purpose)}\n", shown)


@dataclass(kw_only=True)
class Counted(ResultRow):
    COLUMNS: ClassVar = {"of": "{0.name}", "right": "{0.right}/{0.n}", "share": "{0.share:.2f}"}

    name: str
    right: int
    n: int

    @property
    def share(self) -> float:
        return self.right / self.n


def test_rows_are_json_for_programs_and_a_table_for_people(capsys):
    rows = [Counted(name="a", right=1, n=4), Counted(name="b", right=2, n=2)]
    print_rows(rows, as_json=True)
    lines = capsys.readouterr().out.splitlines()
    assert [json.loads(line) for line in lines] == [
        {"name": "a", "right": 1, "n": 4},
        {"name": "b", "right": 2, "n": 2},
    ]
    print_rows(rows, as_json=False)
    shown = [re.findall(r"[\w/.]+", line) for line in capsys.readouterr().out.splitlines()]
    shown = [words for words in shown if words]
    assert shown == [["of", "right", "share"], ["a", "1/4", "0.25"], ["b", "2/2", "1.00"]]


def test_percentiles_are_rounded_and_named():
    found = percentiles([1.0, 2.0, 4.0], (50, 90), digits=1)
    assert found == {"p50": 2.0, "p90": 3.6, "max": 4.0}
    assert percentiles([]) == {}
