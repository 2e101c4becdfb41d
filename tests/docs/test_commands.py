"""Every command and every snippet of README and docs runs, or a mark says why not.

A mark is an HTML comment on the line before a block:

    <!-- needs: a GPU -->              a test machine lacks this
    <!-- tested: tests/some/test.py -->    another test runs the block
    <!-- test adds: --n 1 -->          arguments that keep the test short

Blocks of `sh` are commands, those of `python` run one after the other on a page. Commands of
scripts/ run in this process, `python scripts/serve.py` once beside it.
"""

import gc
import io
import json
import re
import runpy
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx2
import pytest
import torch
from processes import free_port
from waiting import PATIENCE

import dlm

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
DATA = ("text", "json", "ini", "yaml")  # blocks that nothing runs
SERVER = ["python", "scripts/serve.py"]
ADDRESS = re.compile(r"(127\.0\.0\.1|localhost):8000")
MARK = re.compile(r"<!-- (needs|tested|test adds): (.+) -->")
FENCE = re.compile(r"```(\w*)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A block of code of a page, with the mark on the line before it."""

    line: int
    language: str  # empty: an indented block
    text: str
    mark: str = ""
    why: str = ""

    @property
    def runs(self) -> bool:
        return self.language in ("sh", "python") and self.mark not in ("needs", "tested")


def blocks(text: str) -> list[Block]:
    """Return the fenced and the indented blocks of a page."""
    found, lines, at = [], text.splitlines(), 0
    while at < len(lines):
        start, marked = at, MARK.fullmatch(lines[at - 1] if at else "")
        if fence := FENCE.match(lines[at]):
            while lines[at + 1] != "```":
                at += 1
            language, code = fence[1] or "no language", lines[start + 1 : at + 1]
            at += 2
        elif lines[at].startswith("    ") and (at == 0 or not lines[at - 1].strip() or marked):
            while at < len(lines) and (lines[at].startswith("    ") or not lines[at].strip()):
                at += 1
            language, code = "", lines[start:at]
        else:
            at += 1
            continue
        mark, why = marked.groups() if marked else ("", "")
        code = "\n".join(code) + "\n"
        found.append(Block(line=start + 1, language=language, text=code, mark=mark, why=why))
    return found


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """The address of `python scripts/serve.py`, which starts while other commands run."""
    port = str(free_port())
    command = [sys.executable, *SERVER[1:], "--port", port, "--log-level", "error"]
    with subprocess.Popen(command, cwd=ROOT) as process:
        try:
            yield f"127.0.0.1:{port}"
        finally:
            process.kill()


@pytest.fixture(scope="module")
def done() -> set[str]:
    """Lines that have run: several pages begin with the same command."""
    return set()


@pytest.fixture
def folder(monkeypatch, tmp_path) -> Path:
    """A folder to run commands in, which looks like the repository's root."""
    for name in ("scripts", "examples", "models", "docs"):
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_blocks_have_a_language_or_a_mark(page):
    for block in blocks(page.read_text()):
        where = f"{page.name}:{block.line}"
        known = block.language in ("sh", "python", *DATA) or block.mark
        assert known, f"{where}: a block of {block.language or 'an indented text'} without a mark"
        if block.mark == "tested":
            assert (ROOT / block.why).is_file(), f"{where}: there is no {block.why}"
        if block.mark == "test adds":
            assert block.language == "sh", f"{where}: arguments are for commands"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_runs(page, server, done, folder, capsys):
    names: dict = {"__name__": page.stem}
    for block in blocks(page.read_text()):
        if not block.runs:
            continue
        where, text = f"{page.name}:{block.line}", block.text
        if ADDRESS.search(text):
            wait_for(server)
            text = ADDRESS.sub(server, text)
        with own_settings():
            if block.language == "python":
                exec(compile("\n" * block.line + text, str(page), "exec"), names)
                continue
            for line in text.replace("\\\n", " ").splitlines():
                words = " ".join(shlex.split(line, comments=True))
                if words in done and ">" not in words:  # a file is for its own page
                    continue
                done.add(words)
                code = run(line, block.why, server)
                assert code == 0, f"{where}: {line} ended with {code}: {capsys.readouterr().err}"
    for engine in names.values():
        if isinstance(engine, dlm.Engine):
            engine.close()


def test_blocks_are_found_with_their_languages_and_marks():
    text = "a\n\n```sh\nls\n```\n\n    indented\n\n"
    text += "<!-- needs: a GPU -->\n```python\n1\n```\n\n```\nx\n```\n"
    found = [(one.line, one.language, one.mark, one.runs) for one in blocks(text)]
    assert found == [
        (3, "sh", "", True),
        (7, "", "", False),
        (10, "python", "needs", False),
        (14, "no language", "", False),
    ]


def test_links_of_files_that_are_not_on_the_site_lead_somewhere():
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md"):
        for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
            assert "://" in target or (ROOT / target).exists(), f"{page.name}: {target}"


def run(line: str, more: str, server: str) -> int | str | None:
    """Run one line of a block; return its exit code."""
    words = shlex.split(line, comments=True)
    if not words:
        return 0
    if words == SERVER:
        wait_for(server)
        return 0
    if words[0] == "curl":
        return curl(words[1:])
    if words[0] == "python":
        return script(words[1:] + shlex.split(more), "")
    if "|" in words and (words[at := words.index("|") + 1]) == "python":
        before = line[: line.index("| python")]
        done = subprocess.run(["sh", "-c", before], capture_output=True, text=True, check=True)
        return script(words[at + 1 :] + shlex.split(more), done.stdout)
    assert words[0] in ("echo", "printf"), f"{words[0]} is no command that this test can run"
    return subprocess.run(["sh", "-c", line], check=False).returncode


def script(args: list[str], stdin: str) -> int | str | None:
    """Run a script as `python` does, in this process; return its exit code."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", args)
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        patch.setattr(signal, "signal", lambda *_: None)  # pytest has its own
        try:
            runpy.run_path(str(ROOT / args[0]), run_name="__main__")
        except SystemExit as end:
            return end.code or 0
        return 0


def curl(args: list[str]) -> int:
    """Send the request that `curl URL --json BODY` would send."""
    url, option, body = args
    assert option == "--json"
    json.loads(body)
    headers = {"Content-Type": "application/json"}
    answer = httpx2.post(url, content=body, headers=headers, timeout=PATIENCE)
    return 0 if answer.status_code == 200 else 22


def wait_for(server: str) -> None:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        with suppress(httpx2.TransportError):
            if httpx2.get(f"http://{server}/health").status_code == 200:
                return
        time.sleep(0.05)
    raise AssertionError("the server did not start")


@contextmanager
def own_settings() -> Iterator[None]:
    """Restore the number of threads and the collector's thresholds, which scripts set."""
    threads, thresholds = torch.get_num_threads(), gc.get_threshold()
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(gc, "freeze", lambda: None)  # what a script leaves is collected later
            yield
    finally:
        torch.set_num_threads(threads)
        gc.set_threshold(*thresholds)
