"""The runs on a borrowed GPU: limits, failures and results, with small commands in place of the
benchmarks; and a dry run of everything."""

import json
import sys
import time
from pathlib import Path

import card
import pytest
from card import Part

ENVIRONMENT = dict(card.os.environ)


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


@pytest.fixture
def outcomes(tmp_path):
    """Run parts, and return the exit code, the summary's rows by name, and the log."""

    def outcomes(*parts: Part, minutes: float = 1.0):
        with (tmp_path / "card.log").open("w") as log:
            code = card.run(parts, tmp_path, minutes, ENVIRONMENT, log, {"device": "none"})
        summary = json.loads((tmp_path / "summary.json").read_text())
        assert summary["device"] == "none"
        rows = {row["name"]: row for row in summary["parts"]}
        return code, rows, (tmp_path / "card.log").read_text()

    return outcomes


def test_a_failed_command_ends_neither_its_part_nor_the_others(outcomes):
    first = Part(name="first", minutes=1, commands=[python("exit(3)"), python("print('after it')")])
    second = Part(name="second", minutes=1, commands=[python("print('second too')")])
    code, rows, log = outcomes(first, second)
    assert code == 1
    assert [row["outcome"] for row in rows.values()] == ["failed", "done"]
    assert rows["first"]["failed"] == [f"exit code 3: {sys.executable} -c exit(3)"]
    assert "after it" in log
    assert "second too" in log


def test_parts_that_succeed_end_with_code_0(outcomes):
    code, rows, _ = outcomes(Part(name="only", minutes=1, commands=[python("pass")]))
    assert code == 0
    assert rows["only"]["failed"] == []


_CHILD = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(child.pid, flush=True)
time.sleep(600)
"""


def test_at_its_limit_a_command_ends_with_its_children_and_the_next_part_begins(outcomes, tmp_path):
    slow = Part(name="slow", minutes=0.05, commands=[python(_CHILD), python("print('never')")])
    code, rows, log = outcomes(slow, Part(name="next", minutes=1, commands=[python("pass")]))
    assert code == 1
    assert [row["outcome"] for row in rows.values()] == ["limit", "done"]
    assert "never\n" not in log
    child = next(line for line in log.splitlines() if line.isdigit())
    status = Path(f"/proc/{child}/stat")
    assert not status.exists() or status.read_text().split()[2] == "Z"


def test_all_parts_share_one_limit(outcomes):
    slow = Part(name="slow", minutes=1, commands=[python("import time; time.sleep(600)")])
    late = Part(name="late", minutes=1, commands=[python("pass")])
    begin = time.monotonic()
    _, rows, _ = outcomes(slow, late, minutes=0.03)
    assert [row["outcome"] for row in rows.values()] == ["limit", "limit"]
    assert time.monotonic() - begin < 60


def test_a_file_is_kept_when_it_is_complete_even_if_its_command_reaches_its_limit(
    outcomes, tmp_path, monkeypatch
):
    monkeypatch.setattr(card, "_SETTLES", 0.3)
    source = tmp_path / "scratch" / "weights"
    source.parent.mkdir()
    write = f"import pathlib, time; pathlib.Path({str(source)!r}).write_text('a'); time.sleep(600)"
    slow = Part(name="slow", minutes=0.03, commands=[python(write)], kept={source: "kept"})
    _, rows, _ = outcomes(slow)
    assert rows["slow"]["outcome"] == "limit"
    assert (tmp_path / "kept").read_text() == "a"


def test_a_file_that_is_being_written_does_not_replace_a_complete_copy(tmp_path):
    source, copy = tmp_path / "weights", tmp_path / "kept"
    copy.write_text("complete")
    source.write_text("half")
    card.os.utime(copy, (1, 1))
    card.keep({source: "kept"}, tmp_path, age=60)
    assert copy.read_text() == "complete"
    card.keep({source: "kept"}, tmp_path, age=0)
    assert copy.read_text() == "half"


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        ((), "one of --out DIR and --pack DIR is needed"),
        (("--out", "a", "--pack", "b"), "one of --out DIR and --pack DIR is needed"),
        (("--out", "a", "--minutes", "0"), "must be above 0"),
        (("--out", "a", "--tokenizer", "missing"), "there is no missing"),
        (("--out", "a", "--only", "tea"), "invalid choice: 'tea'"),
    ],
)
def test_bad_usage_is_refused_before_anything_runs(args, problem, run_command, tmp_path):
    code, out, err = run_command(card, *args)
    assert (code, out) == (2, "")
    assert problem in err
    assert not Path("a").exists()


def test_on_a_gpu_every_part_has_its_own_limit_and_all_fit_into_fourteen_minutes(tmp_path):
    args = card.arguments(["--out", str(tmp_path)])
    parts = card.parts(args, tmp_path)
    assert [part.name for part in parts] == ["tests", "steps", "kernels", "guide", "training"]
    assert sum(part.minutes for part in parts) == args.minutes == 14
    for command in (command for part in parts for command in part.commands):
        assert all(Path(word).exists() for word in command if word.endswith(".py")), command


@pytest.mark.exhaustive
@pytest.mark.timeout(900)
def test_a_dry_run_goes_through_all_parts(tmp_path, run_command):
    code, out, err = run_command(card, "--out", tmp_path, "--dry-run")
    assert code == 0, (out, err)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert [row["outcome"] for row in summary["parts"]] == ["done"] * 5
    for name, rows in (("steps", "steps"), ("kernels", "kernels"), ("guide", "steps")):
        assert json.loads((tmp_path / f"{name}.json").read_text())[rows], name
    assert (tmp_path / "model.safetensors").stat().st_size > 1 << 20
