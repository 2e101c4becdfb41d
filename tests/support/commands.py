"""Commands of scripts/, run in the process of a test."""

import io
import signal
import sys
from contextlib import redirect_stderr
from types import ModuleType
from typing import Any

import pytest


def ended(monkeypatch: pytest.MonkeyPatch, script: ModuleType, *args: object) -> Any:
    """The exit code of a command line."""
    monkeypatch.setattr(sys, "argv", [f"{script.__name__}.py", *map(str, args)])
    with pytest.raises(SystemExit) as end:
        script.main()
    return end.value.code


def batched(monkeypatch: pytest.MonkeyPatch, *args: object) -> tuple[Any, str]:
    """The exit code of `batch.py`, and what it says on stderr."""
    import batch

    monkeypatch.setattr("dlm.collector.tune_garbage_collector", lambda: None)  # for its own process
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # pytest has its own
    with redirect_stderr(io.StringIO()) as said:
        code = ended(monkeypatch, batch, *args)
    return code, said.getvalue()
