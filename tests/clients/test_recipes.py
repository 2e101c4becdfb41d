"""The programs of docs/agents.md, against a server with the built-in model: each ends by itself."""

import contextlib
import io
import os
import re
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "agents.md"
NEEDS = {
    "instructor": "instructor",
    "pydantic-ai": "pydantic_ai",
    "LangChain": "langchain_openai",
    "openai-agents": "agents",
}


def programs() -> dict[str, tuple[str, list[str]]]:
    """Return each recipe's program, and the lines that the page says it prints."""
    found = {}
    for section in PAGE.read_text().split("\n## ")[1:]:
        name, _, text = section.partition("\n")
        code, printed = re.findall(r"```(?:python|text)\n(.*?)```", text, re.DOTALL)
        found[name] = code, printed.splitlines()
    return found


@pytest.fixture(scope="module")
def address():
    """Address of a server with the built-in model."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    python = os.environ.get("DLM_PYTHON", sys.executable)
    command = [python, "-m", "dlm", "serve", "--port", str(port)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) as server:
        end = time.monotonic() + 100
        while time.monotonic() < end:
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health").close()
                break
            time.sleep(0.2)
        yield f"127.0.0.1:{port}"
        server.terminate()


def test_the_page_has_a_program_for_each_framework():
    assert programs().keys() == NEEDS.keys()


@pytest.mark.parametrize("name", NEEDS)
def test_a_recipe_ends_by_itself_and_prints_the_lines_on_the_page(name, address):
    """The model's last sentence may differ: another processor may round to another one."""
    pytest.importorskip(NEEDS[name], reason=f"{name} is not installed")
    code, expected = programs()[name]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code.replace("127.0.0.1:8000", address), name, "exec"), {"__name__": name})
    *first, last = printed.getvalue().splitlines()
    assert first == expected[:-1]
    assert last.strip()
    if name == "instructor":
        assert last == expected[-1]
