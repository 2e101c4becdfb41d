"""The help and the version of the commands that users run."""

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from dlm import cli

ROOT = Path(__file__).parents[3]


@pytest.fixture
def printed(monkeypatch, capsys):
    """Run `dlm` in this process: its stdout."""

    def command(*args):
        monkeypatch.setattr(sys, "argv", ["/somewhere/__main__.py", *args])
        monkeypatch.setenv("COLUMNS", "500")
        with pytest.raises(SystemExit) as end:
            cli.main()
        out, err = capsys.readouterr()
        assert (end.value.code, err) == (0, "")
        return out

    return command


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_every_option_is_explained_in_sentences(printed, command):
    shown = printed(command, "--help")
    options = re.findall(r"^  (--?\w\S*(?:, --\S+)?.*?)(?:  +|\n +)(\S.*)$", shown, re.MULTILINE)
    assert len(options) >= 6
    assert len(options) == len(re.findall(r"^  -", shown, re.MULTILINE))
    for option, text in options:
        assert re.fullmatch(r"[A-Z].*\.", text), (option, text)
    assert shown.startswith(f"usage: dlm {command} [-h]")
    assert f"\n    dlm {command}" in shown


@pytest.mark.parametrize(
    ("command", "default"),
    [
        ("generate", "--max-tokens N .*Default: 256."),
        ("generate", "--seed N .*Default: 0."),
        ("generate", r"--decoding [^\n]*\n? +[^\n]*Default: as the model"),
        ("batch", "--slots N .*Default: 8."),
        ("batch", "--max-tokens N .*Default: 256."),
        ("serve", "--port PORT .*Default: 8000."),
        ("plan", "--context T .*Default: 8192."),
        ("quantize", "--canvases N .*Default: 8."),
    ],
)
def test_the_help_has_the_defaults(printed, command, default):
    assert re.search(default, printed(command, "--help"))


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_every_command_prints_its_version(printed, command):
    text = printed(command, "--version")
    assert re.fullmatch(r"dlm \d+\.\d+\.\d+, masks by (C|numpy: .+)\n", text)


def test_the_command_lists_its_subcommands_and_imports_none_of_them():
    code = """if True:
        import sys
        from dlm.cli import main
        sys.argv = ["dlm", "--help"]
        try:
            main()
        finally:
            print([name for name in sys.modules if name.startswith("dlm.cli.")])
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    shown, _, imported = done.stdout.rstrip().rpartition("\n")
    assert imported == "['dlm.cli.command_line']"
    for name, purpose in cli.COMMANDS.items():
        assert re.search(rf"^ +{name} +{purpose.split()[0]}", shown, re.MULTILINE)


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        ((), "the following arguments are required: COMMAND"),
        (("wait",), "invalid choice: 'wait'"),
        (("--verbose",), "required: COMMAND"),
    ],
)
def test_an_unknown_subcommand_is_one_line_and_exit_code_2(monkeypatch, capsys, args, problem):
    monkeypatch.setattr(sys, "argv", ["/usr/bin/dlm", *args])
    with pytest.raises(SystemExit) as end:
        cli.main()
    err = capsys.readouterr().err
    assert end.value.code == 2
    assert err.startswith("dlm: ")
    assert problem in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_a_script_of_the_checkout_is_the_command_under_its_own_name(command, monkeypatch, capsys):
    script = str(ROOT / "scripts" / f"{command}.py")
    monkeypatch.setattr(sys, "argv", [script, "--help"])
    with pytest.raises(SystemExit) as end:
        runpy.run_path(script, run_name="__main__")
    assert end.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: {command}.py [-h]")
