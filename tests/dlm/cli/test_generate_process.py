"""The command on a terminal, and as a process of its own: its streams and its signals."""

import io
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from commands import exit_code
from exhaustive import by_default
from invoices import PROMPT, SCHEMA_FILE

from dlm.cli import generate

ROOT = Path(__file__).parents[3]
SCRIPT = ROOT / "scripts" / "generate.py"
FLAGS = "--schema", SCHEMA_FILE, PROMPT


def test_a_wrong_regex_is_refused_before_anything_slow_is_imported():
    script = """if True:
        import sys
        sys.argv = ['dlm', 'generate', '--regex', '(a', 'hi']
        from dlm.cli import main
        try:
            main()
        finally:
            print('torch' in sys.modules)
    """
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (2, "False\n")
    assert done.stderr.startswith("dlm generate: regex at ")


def on_terminal(args, until, number):
    """Run a command on a terminal of its own, which gets the signal `number` once the text `until`
    has been shown; return the exit code and the terminal's content."""
    master, slave = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "30"}
    process = subprocess.Popen(
        args, cwd="/", stdin=slave, stdout=slave, stderr=slave, env=environment
    )
    os.close(slave)
    shown, stopped = b"", False
    while True:
        try:
            piece = os.read(master, 4096)
        except OSError:  # the command has closed it
            piece = b""
        if not piece:
            break
        shown += piece
        if not stopped and until in shown:
            process.send_signal(number)
            stopped = True
    os.close(master)
    return process.wait(), shown.decode()


HIDE, SHOW = "\x1b[?25l", "\x1b[?25h"


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_terminal_shows_progress_and_then_the_indented_json(monkeypatch):
    terminal = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    for stream in ("stdout", "stderr"):
        monkeypatch.setattr(sys, stream, terminal)
    code, shown = exit_code(monkeypatch, generate, *FLAGS), terminal.getvalue()
    assert code == 0
    assert shown.index("loading the model") < shown.index("tokens, step") < shown.index('"paid"')
    assert '{\n  "invoice_id": "AK-4071",\n' in shown
    assert shown.rindex(SHOW) > shown.rindex(HIDE)


@pytest.mark.parametrize(
    ("until", "number", "right", "message"),
    by_default(
        [
            (b"tokens, step", signal.SIGINT, 130, "interrupted"),
            (b"loading the model", signal.SIGTERM, 143, "terminated"),
        ]
    ),
)
def test_a_stopped_command_leaves_the_terminal_as_it_was(until, number, right, message):
    code, shown = on_terminal([sys.executable, SCRIPT, *FLAGS], until, number)
    assert code == right
    assert shown.rstrip().endswith(f"generate.py: {message}")
    assert shown.rindex(SHOW) > shown.rindex(HIDE)
