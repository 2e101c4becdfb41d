"""Processes that tests start, their descendants, and ports for them."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from waiting import PATIENCE

ROOT = Path(__file__).parents[2]
BATCH = ROOT / "scripts" / "batch.py"


def printed(code: str, **environment: str) -> str:
    """Return the output of `code` in a process of its own, at the root of the checkout."""
    run = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout


def free_port() -> int:
    """Return a port on which nothing listens now."""
    with socket.create_server(("127.0.0.1", 0)) as one:
        return one.getsockname()[1]


@contextmanager
def started(*args: object) -> "Iterator[subprocess.Popen[str]]":
    """The batch script as a process of its own, which ends with the test even where that fails."""
    command = [sys.executable, str(BATCH), *map(str, args)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_for(process: "subprocess.Popen[str]", path: Path, count: int) -> None:
    """Wait until the file `path` has `count` lines."""
    end = time.monotonic() + PATIENCE
    while not path.exists() or path.read_bytes().count(b"\n") < count:
        assert process.poll() is None, process.stderr and process.stderr.read()
        assert time.monotonic() < end
        time.sleep(0.005)


def descendants(pid: int) -> Iterator[tuple[int, str]]:
    """Yield the ids and command lines of all descendants of a process."""
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, read(children).split()):
            yield child, read(Path(f"/proc/{child}/cmdline")).replace("\0", " ")
            yield from descendants(child)


def named(pid: int, name: str) -> list[int]:
    """Return the descendants of `pid` whose command lines begin with `name`."""
    return [child for child, command in descendants(pid) if command.startswith(name)]


def is_running(pid: int) -> bool:
    # An empty command line: the process has ended, and its parent has not waited for it.
    return read(Path(f"/proc/{pid}/cmdline")) != ""


def read(path: Path) -> str:
    """Return the text of a file, or an empty text if its process has ended."""
    try:
        return path.read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""
