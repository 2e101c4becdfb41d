"""Commands of dlm.cli and of scripts/, run in the process of a test."""

import io
import signal
import sys
from contextlib import redirect_stderr
from types import ModuleType
from typing import Any

import pytest


def ended(monkeypatch: pytest.MonkeyPatch, script: ModuleType, *args: object) -> Any:
    """Return the exit code of a command line; messages begin with the name of its script."""
    name = script.__name__.rpartition(".")[2]
    monkeypatch.setattr(sys, "argv", [f"{name}.py", *map(str, args)])
    with pytest.raises(SystemExit) as end:
        script.main()
    return end.value.code


def batched(monkeypatch: pytest.MonkeyPatch, *args: object) -> tuple[Any, str]:
    """Return the exit code of `batch.py` and its stderr."""
    from dlm.cli import batch

    monkeypatch.setattr("dlm.loading.tune_garbage_collector", lambda: None)  # for its own process
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # pytest has its own
    with redirect_stderr(io.StringIO()) as stderr:
        code = ended(monkeypatch, batch, *args)
    return code, stderr.getvalue()
