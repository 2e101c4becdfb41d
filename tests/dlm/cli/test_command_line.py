"""Start and end of a command: interrupts, and streams that the caller has closed."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from exhaustive import by_default
from processes import started, wait_for
from waiting import PATIENCE

ROOT = Path(__file__).parents[3]
INTERRUPTED = """if True:
    import os, signal, time
    try:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(1)
    except BaseException as error:
        raise AttributeError("half of this is imported") from error
"""
FLAGS = {
    "generate": ["--regex", "a", "hi"],
    "batch": ["--input", "IN.jsonl", "--output", "OUT.jsonl"],
    "serve": ["--uds", "socket"],
}


def interrupted(folder, script, module, prefix=()):
    """Run a command that gets SIGINT while it imports `module`; return its exit code and stderr."""
    (folder / "IN.jsonl").write_text('"a"\n')
    (folder / f"{module}.py").write_text(INTERRUPTED)
    command = [*prefix, sys.executable, ROOT / "scripts" / f"{script}.py", *FLAGS[script]]
    paths = os.environ | {"PYTHONPATH": f"{folder}:{ROOT}"}
    done = subprocess.run(command, cwd=folder, env=paths, capture_output=True, text=True)
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    ("script", "module"),
    by_default(
        [
            ("generate", "torch"),
            ("batch", "pydantic"),
            ("serve", "pydantic"),
            ("generate", "pydantic"),
            ("batch", "torch"),
            ("serve", "torch"),
        ],
        3,
    ),
)
def test_an_interrupt_during_imports_is_one_line_and_exit_code_130(tmp_path, script, module):
    assert interrupted(tmp_path, script, module) == (130, f"{script}.py: interrupted\n")


def test_an_interrupt_that_the_caller_ignores_stays_ignored(tmp_path):
    code, err = interrupted(tmp_path, "generate", "rich", ["/usr/bin/env", "--ignore-signal=INT"])
    assert code != 130
    assert "interrupted" not in err


def test_an_interrupt_while_rows_are_answered_is_exit_code_130_and_keeps_them(tmp_path):
    rows, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    rows.write_text('"Say something."\n' * 2000)
    with started("--input", rows, "--output", out, "--choice", "yes,no") as process:
        wait_for(process, out, 2)
        process.send_signal(signal.SIGINT)
        err = process.communicate(timeout=PATIENCE)[1]
    assert process.returncode == 130
    assert err.endswith("batch.py: interrupted\n")
    assert "Traceback" not in err
    assert out.read_bytes().endswith(b"\n")


@pytest.mark.parametrize(
    ("closed", "prompt", "code", "out", "err"),
    by_default(
        [
            ("<&-", "-", 2, "", "generate.py: prompt must not be empty"),
            (">&-", "hi", 1, "", "generate.py: stdout is closed: the result has no place to go\n"),
            ("2>&- <&-", "hi", 0, "yes\n", ""),
            ("2>&- >&- <&-", "hi", 1, "", ""),
        ],
        2,
    ),
)
def test_closed_streams_cause_no_traceback(closed, prompt, code, out, err):
    command = f"{sys.executable} scripts/generate.py --choice yes {prompt} {closed}"
    done = subprocess.run(command, shell=True, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (code, out)
    assert done.stderr.startswith(err)
    assert done.stderr.count("\n") <= 1
