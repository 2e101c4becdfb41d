"""A server with the built-in model, started by a script that measures or checks it."""

import os
import resource
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dlm.cli.command_line import fail

SERVE = Path(__file__).parents[1] / "serve.py"
_START, _END = 120.0, 60.0  # seconds for the server to start, and to end


@contextmanager
def served(
    port: int, *flags: str, keys: tuple[str, ...] = (), files: int | None = None
) -> Iterator["subprocess.Popen[bytes]"]:
    """Provide a server that answers on `port` of this machine.

    `keys` are its API keys; it may open `files` files. Exits with code 1 if it does not start.
    """
    command = [sys.executable, str(SERVE), "--port", str(port), *flags]
    limit = files and (lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (files, files)))
    environment = os.environ | ({"DLM_API_KEYS": " ".join(keys)} if keys else {})
    server = subprocess.Popen(command, env=environment, preexec_fn=limit or None)
    try:
        _wait_for(f"http://127.0.0.1:{port}/health", server)
        yield server
    finally:
        server.terminate()
        try:
            server.wait(_END)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def _wait_for(url: str, server: "subprocess.Popen[bytes]") -> None:
    end = time.monotonic() + _START
    while server.poll() is None and time.monotonic() < end:
        try:
            urllib.request.urlopen(url, timeout=5).close()
            return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    fail(f"scripts/serve.py ended, or did not start within {_START:g} seconds", 1)


def memory(pid: int) -> float:
    """Return the resident memory of a process in megabytes, 0 if it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    sizes = (int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))
    return next(sizes, 0) / 1024
