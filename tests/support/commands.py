"""Commands of dlm.cli and of scripts/, run in the process of a test."""

import io
import signal
import sys
from collections.abc import Callable
from contextlib import redirect_stderr
from types import ModuleType
from typing import Any, NamedTuple

import pytest


class Ended(NamedTuple):
    code: Any
    out: str
    err: str


def exit_code(
    monkeypatch: pytest.MonkeyPatch,
    script: ModuleType,
    *args: object,
    main: Callable[[], None] | None = None,
) -> Any:
    """Run `main` of a script, or `main` if given; return the exit code of this command line."""
    name = script.__name__.rpartition(".")[2]
    monkeypatch.setattr(sys, "argv", [f"{name}.py", *map(str, args)])  # messages begin with it
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # pytest has its own
    if hasattr(script, "tune_process"):  # for processes of their own
        monkeypatch.setattr(script, "tune_process", lambda: None)
    try:
        (main or script.main)()
    except SystemExit as end:
        return end.code or 0
    return 0


def batched(monkeypatch: pytest.MonkeyPatch, *args: object) -> tuple[Any, str]:
    """Return the exit code of `batch.py` and its stderr."""
    from dlm.cli import batch

    monkeypatch.setattr("dlm.loading.tune_process", lambda: None)  # for its own process
    with redirect_stderr(io.StringIO()) as stderr:
        code = exit_code(monkeypatch, batch, *args)
    return code, stderr.getvalue()
