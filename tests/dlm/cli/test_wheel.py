"""The package without its checkout: a wheel has all that the commands need."""

import json
import os
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
import zipfile
from pathlib import Path

import httpx2
import jsonschema
import pytest
from invoices import INVOICE, PROMPT, SCHEMA
from processes import free_port
from waiting import PATIENCE

ROOT = Path(__file__).parents[3]
INNER = ("grammar", "kernels", "models")  # folders of the checkout, packages of dlm
# Editable installs find the checkout by an importer of their own.
HIDDEN = """
import sys
sys.meta_path[:] = [each for each in sys.meta_path if "editable" not in each.__module__]
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """A wheel, built from a copy of the checkout: a build leaves files in its folder."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in ("dlm", *INNER):
        ignored = shutil.ignore_patterns("__pycache__", *INNER)  # in dlm/ they are links
        shutil.copytree(ROOT / name, folder / "source" / name, ignore=ignored)
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, folder / "source")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-index"]
    command += ["--no-build-isolation", "--wheel-dir", folder, folder / "source"]
    subprocess.run(command, check=True, capture_output=True, text=True)
    (path,) = folder.glob("dlm-*.whl")
    return path


@pytest.fixture(scope="module")
def unpacked(wheel):
    """The environment of processes that import the unpacked wheel, and their folder."""
    with zipfile.ZipFile(wheel) as file:
        file.extractall(wheel.parent / "site")
    (wheel.parent / "site" / "sitecustomize.py").write_text(HIDDEN)
    away = wheel.parent / "away"
    away.mkdir()
    return {"env": os.environ | {"PYTHONPATH": str(wheel.parent / "site")}, "cwd": away}


def test_a_wheel_has_every_file_of_its_packages(wheel):
    packages = {"dlm": "dlm", **{name: f"dlm/{name}" for name in INNER}}
    wanted = {
        f"{package}/{path.relative_to(ROOT / folder)}"
        for folder, package in packages.items()
        for kind in ("*.py", "automata/*", "page/*", "*.jsonl", "tiny/*")
        for path in (ROOT / folder).rglob(kind)
        if path.is_file()
    }
    with zipfile.ZipFile(wheel) as file:
        found = {name for name in file.namelist() if ".dist-info/" not in name}
        (scripts,) = (name for name in file.namelist() if name.endswith("entry_points.txt"))
        assert "[console_scripts]\ndlm = dlm.cli:main" in file.read(scripts).decode()
    assert len(found) > 100
    assert found == wanted


def test_a_server_outside_the_checkout_has_its_page_and_answers(unpacked):
    port = str(free_port())
    code = "import dlm.cli, sys; print(dlm.__file__, flush=True); dlm.cli.main()"
    command = [sys.executable, "-c", code, "serve", "--port", port, "--log-level", "error"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **unpacked, **pipes) as server:
        try:
            page = fetched(f"http://127.0.0.1:{port}/", server)
            answer = invoice_from(port)
            source = server.stdout.readline()
        finally:
            server.kill()
    assert Path(source.strip()).is_relative_to(unpacked["cwd"].parent)
    assert page.startswith("<!doctype html>")
    assert "<title>" in page
    jsonschema.validate(answer, SCHEMA)


@pytest.mark.exhaustive
def test_a_wheel_answers_and_serves_in_an_environment_of_its_own(wheel, tmp_path):
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "own"], check=True)
    programs, quiet = tmp_path / "own" / "bin", {"check": True, "capture_output": True}
    install = [programs / "pip", "install", "--quiet", "--no-compile", "--constraint"]
    install.append(ROOT / "constraints.txt")
    subprocess.run([*install, "torch"], **quiet)
    subprocess.run([*install, f"dlm[serve] @ {wheel.as_uri()}"], **quiet)
    generate = [programs / "dlm", "generate", "--schema", json.dumps(SCHEMA), PROMPT]
    run = subprocess.run(generate, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE)
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout) == INVOICE
    port = str(free_port())
    command = [programs / "dlm", "serve", "--port", port, "--log-level", "error"]
    pipes = {"cwd": tmp_path, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as server:
        try:
            assert "<title>" in fetched(f"http://127.0.0.1:{port}/", server)
            answer = invoice_from(port)
        finally:
            server.kill()
    assert answer == INVOICE


def invoice_from(port):
    """Return what the server on `port` extracts from the sentence of the README."""
    schema = {"type": "json_schema", "json_schema": {"name": "invoice", "schema": SCHEMA}}
    body = {"messages": [{"role": "user", "content": PROMPT}], "response_format": schema}
    url = f"http://127.0.0.1:{port}/v1/chat/completions"
    answer = httpx2.post(url, json=body, timeout=PATIENCE)
    return json.loads(answer.json()["choices"][0]["message"]["content"])


def fetched(url, server):
    """Return the text at `url` once the server answers."""
    end = time.monotonic() + PATIENCE
    while True:
        assert server.poll() is None, server.stderr.read()
        assert time.monotonic() < end
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                return answer.read().decode()
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.1)
