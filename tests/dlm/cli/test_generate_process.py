"""The command as a process of its own: its streams, its terminal, its signals."""

import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from exhaustive import by_default
from invoices import PROMPT, SCHEMA_FILE

ROOT = Path(__file__).parents[3]
SCRIPT = ROOT / "scripts" / "generate.py"
COMMAND = [sys.executable, SCRIPT, "--schema", SCHEMA_FILE, PROMPT]


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


def on_terminal(args, until=None, number=None):
    """Run a command on a terminal of its own; return the exit code and the terminal's content.

    If `until` is given, the command gets the signal `number` once that text has been shown.
    """
    master, slave = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "30"}
    process = subprocess.Popen(
        args, cwd="/", stdin=slave, stdout=slave, stderr=slave, env=environment
    )
    os.close(slave)
    shown = b""
    while True:
        try:
            piece = os.read(master, 4096)
        except OSError:  # the command has closed it
            piece = b""
        if not piece:
            break
        shown += piece
        if until is not None and until in shown:
            process.send_signal(number)
            until = None
    os.close(master)
    return process.wait(), shown.decode()


HIDE, SHOW = "\x1b[?25l", "\x1b[?25h"


def test_a_terminal_shows_progress_and_then_the_indented_json():
    code, shown = on_terminal(COMMAND)
    assert code == 0
    assert shown.index("loading the model") < shown.index("tokens, step") < shown.index('"paid"')
    assert '{\r\n  "invoice_id": "AK-4071",\r\n' in shown
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
    code, shown = on_terminal(COMMAND, until, number)
    assert code == right
    assert shown.rstrip().endswith(f"generate.py: {message}")
    assert shown.rindex(SHOW) > shown.rindex(HIDE)
