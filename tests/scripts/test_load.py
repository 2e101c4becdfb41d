"""The load script finds nothing wrong with a server that is well."""

import json
import socket
import subprocess
import sys
from pathlib import Path

from waiting import PATIENCE

SCRIPT = Path(__file__).parent.parent.parent / "scripts" / "load.py"


def test_a_server_under_load_loses_nothing():
    with socket.create_server(("127.0.0.1", 0)) as one:
        port = str(one.getsockname()[1])
    flags = ["--clients", "6", "--seconds", "2", "--slots", "2", "--hostile", "--port", port]
    command = [sys.executable, str(SCRIPT), *flags]
    run = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    assert (found["lost"], found["leaked"], found["invalid"]) == (0, 0, [])
    assert found["ends"]["stop"] > 0
    assert min(found["tokens_per_second"], found["engine_tokens_per_second"]) > 0
