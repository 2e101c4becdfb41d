"""A server in a process of its own, whose model follows the scripts in its prompts."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SUPPORT = ROOT / "tests" / "support"
# Names of the model: its own, and names that some client expects of its vendor's models.
NAMES = ("dlm", "gpt-5.5", "gpt-6.2-sol", "gpt-4o", "claude-sonnet-4-5")


@pytest.fixture(scope="session")
def url() -> Iterator[str]:
    """Address of this checkout's server. `DLM_PYTHON` is a Python with what dlm needs, if this one
    has not."""
    python = os.environ.get("DLM_PYTHON", sys.executable)
    folders = os.pathsep.join(map(str, (SUPPORT, ROOT)))
    environment = {**os.environ, "PYTHONPATH": folders, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        [python, HERE / "server.py", *NAMES],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
        text=True,
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        port = server.stdout.readline().strip()
        assert port, "the server did not start: its errors are above"
        yield f"http://127.0.0.1:{port}"
        server.stdin.close()


@pytest.fixture(scope="session")
def programs() -> Path:
    return HERE / "programs"


@pytest.fixture(scope="session")
def node_package() -> Callable[[str], Path]:
    """Return the folder of an npm package; skip a test without Node.js or without the package.
    `project` is the folder of the packages with which it is installed."""

    def folder(name: str, project: Path = HERE) -> Path:
        if shutil.which("node") is None:
            pytest.skip("there is no Node.js")
        package = project / "node_modules" / name
        if not package.is_dir():
            pytest.skip(f"the npm package {name} is not installed")
        return package

    return folder


@pytest.fixture(scope="session")
def command(node_package) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run a command of an npm package with a home of its own. It reaches no other machine: its
    proxy is a port on which nothing listens."""

    def run(
        package: str, *words: str, cwd: Path, home: Path, project: Path = HERE, **variables: str
    ):
        node_package(package, project)
        nowhere = "http://127.0.0.1:9"
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "HTTP_PROXY": nowhere,
            "HTTPS_PROXY": nowhere,
            "NO_PROXY": "127.0.0.1",
            **variables,
        }
        name, *others = words
        return subprocess.run(
            [project / "node_modules" / ".bin" / name, *others],
            cwd=cwd,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=100,
        )

    return run
