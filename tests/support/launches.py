"""Launches of a kernel, recorded."""

from typing import Any

import pytest


class Launches:
    """A kernel of `module` that is launched as before, and whose options are recorded."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, module: Any, name: str):
        self._kernel: Any = getattr(module, name)
        self._options: list[dict[str, Any]] = []
        monkeypatch.setattr(module, name, self)

    def __getitem__(self, grid: Any) -> Any:
        def launch(*args: Any, **options: Any) -> Any:
            self._options.append(options)
            return self._kernel[grid](*args, **options)

        return launch

    def have(self, configuration: dict[str, int]) -> list[bool]:
        """Return whether each launch so far had `configuration`."""
        return [configuration.items() <= options.items() for options in self._options]
