"""The Makefile installs for an answer only what an answer needs. Nothing is installed here."""

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
C_FILES = [f"grammar/{path.name}" for path in sorted((ROOT / "grammar").glob("_*.[ch]"))]


@pytest.fixture
def planned(tmp_path):
    """Run `make --dry-run` in a fresh checkout, with programs on the PATH: the lines to run."""
    for name in ("Makefile", "pyproject.toml", "setup.py", "constraints.txt", *C_FILES):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    programs = tmp_path / "programs"
    programs.mkdir()
    make = shutil.which("make")
    assert make is not None

    def planned(*arguments, uv=False):
        if uv:
            (programs / "uv").touch(0o755)
        command = [make, "--dry-run", *arguments]
        path = {"PATH": f"{programs}:/usr/bin:/bin"}
        run = subprocess.run(
            command, cwd=tmp_path, env=os.environ | path, capture_output=True, text=True
        )
        assert run.returncode == 0, run.stderr
        return run.stdout.splitlines()

    return planned


def installs(lines):
    """Return the arguments of each installation, without those of the installer."""
    return [line.split("constraints.txt")[1].split() for line in lines if " install " in line]


def test_a_first_answer_installs_torch_and_the_server_but_no_tools_of_development(planned):
    lines = planned("demo")
    assert installs(lines) == [["torch"], ["--editable", "'.[serve]'"]]
    assert any("echo" in line and "Installing" in line for line in lines)
    assert any("scripts/generate.py" in line for line in lines[-2:])


@pytest.mark.parametrize("target", ["install", "suite", "docs"])
def test_development_installs_torch_and_then_everything_at_once(planned, target):
    assert installs(planned(target)) == [["torch"], ["--editable", "'.[dev]'"]]


def touch(lines, directory):
    """Run those of the lines that only write stamps."""
    (directory / ".venv").mkdir(exist_ok=True)
    for line in lines:
        if line.startswith("touch "):
            subprocess.run(line.split(), cwd=directory, check=True)


@pytest.mark.parametrize("target", ["demo", "install", "suite", "docs"])
def test_nothing_is_installed_after_development_until_the_project_changes(
    planned, tmp_path, target
):
    touch(planned("suite"), tmp_path)
    assert installs(planned(target)) == []
    later = time.time() + 1
    os.utime(tmp_path / "pyproject.toml", (later, later))
    extra = "serve" if target == "demo" else "dev"
    assert installs(planned(target)) == [["torch"], ["--editable", f"'.[{extra}]'"]]


@pytest.mark.parametrize("name", C_FILES)
def test_the_extension_is_built_again_after_a_change_of_each_of_its_files(planned, tmp_path, name):
    touch(planned("suite"), tmp_path)
    later = time.time() + 1
    os.utime(tmp_path / name, (later, later))
    assert installs(planned("suite"))


def test_development_after_an_answer_installs_the_rest(planned, tmp_path):
    touch(planned("demo"), tmp_path)
    assert installs(planned("demo")) == []
    assert installs(planned("install")) == [["--editable", "'.[dev]'"]]


def test_what_tests_import_is_compiled_once_after_an_installation(planned, tmp_path):
    def collections(lines):
        return [line for line in lines if "--collect-only" in line]

    lines = planned("suite")
    assert len(collections(lines)) == 1
    touch(lines, tmp_path)
    assert collections(planned("suite")) == []


@pytest.mark.parametrize("uv", [False, True])
def test_uv_installs_where_it_is_on_the_path(planned, uv):
    lines = [line for line in planned("demo", uv=uv) if " install " in line]
    assert all(("uv pip install" in line) is uv for line in lines)
    assert all(("bin/pip install" in line) is not uv for line in lines)


def test_torch_for_cpus_is_installed_from_an_index_of_its_own(planned):
    assert installs(planned("demo", "TORCH=--index-url https://example.org/cpu"))[0] == [
        "torch",
        "--index-url",
        "https://example.org/cpu",
    ]
