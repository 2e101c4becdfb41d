"""Server of another engine, in a process group of its own."""

import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from socket import socket


class ServedProcess:
    """HTTP server on a free port, whose output is in the file `log`."""

    def __init__(
        self, command: Sequence[str | Path], log: Path, environment: Mapping[str, str], ready: float
    ):
        """`command` is completed by `--port`. The server answers `/health` within `ready`
        seconds."""
        with closing(socket()) as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.url, self.log, self._ready = f"http://127.0.0.1:{port}", log, ready
        with log.open("w") as file:
            self._process = subprocess.Popen(
                [*command, "--port", str(port)],
                env=environment,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait(self) -> None:
        """Wait until the server answers. Raises `RuntimeError`, with the end of the log."""
        until = time.monotonic() + self._ready
        while time.monotonic() < until and self._process.poll() is None:
            try:
                with urllib.request.urlopen(f"{self.url}/health", timeout=5):
                    return
            except (urllib.error.URLError, OSError):
                time.sleep(0.5)
        raise RuntimeError(self.log.read_text()[-4000:])

    def close(self) -> None:
        """End the server, by force if it has not ended within 30 seconds."""
        os.killpg(self._process.pid, signal.SIGTERM)
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
