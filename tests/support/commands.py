"""Commands of scripts/, run in the process of a test."""

import sys
from types import ModuleType
from typing import Any

import pytest


def ended(monkeypatch: pytest.MonkeyPatch, script: ModuleType, *args: object) -> Any:
    """The exit code of a command line."""
    monkeypatch.setattr(sys, "argv", [f"{script.__name__}.py", *map(str, args)])
    with pytest.raises(SystemExit) as end:
        script.main()
    return end.value.code
