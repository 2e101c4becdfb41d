"""The help and the version of the commands that users run."""

import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COMMANDS = ("generate", "batch", "serve", "plan", "quantize")


@cache
def printed(command, flag):
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / f"{command}.py", flag],
        capture_output=True,
        text=True,
        env={"PATH": "/usr/bin:/bin", "COLUMNS": "500"},
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_is_explained_in_sentences(command):
    shown = printed(command, "--help")
    options = re.findall(r"^  (--?\w\S*(?:, --\S+)?.*?)(?:  +|\n +)(\S.*)$", shown, re.MULTILINE)
    assert len(options) >= 6
    assert len(options) == len(re.findall(r"^  -", shown, re.MULTILINE))
    for option, text in options:
        assert re.fullmatch(r"[A-Z].*\.", text), (option, text)
    assert f"python scripts/{command}.py" in shown


@pytest.mark.parametrize(
    ("command", "default"),
    [
        ("generate", "--max-tokens N .*Default: 256."),
        ("generate", "--seed N .*Default: 0."),
        ("generate", r"--decoding [^\n]*\n? +[^\n]*Default: canvas\."),
        ("batch", "--slots N .*Default: 8."),
        ("batch", "--max-tokens N .*Default: 256."),
        ("serve", "--port PORT .*Default: 8000."),
        ("plan", "--context T .*Default: 8192."),
        ("quantize", "--canvases N .*Default: 8."),
    ],
)
def test_defaults_are_told(command, default):
    assert re.search(default, printed(command, "--help"))


@pytest.mark.parametrize("command", COMMANDS)
def test_the_version_is_told(command):
    assert re.fullmatch(r"dlm \d+\.\d+\.\d+\n", printed(command, "--version"))
