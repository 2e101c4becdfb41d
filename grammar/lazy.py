"""Packages whose names are imported at their first use."""

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any


def homes(exports: dict[str, str]) -> dict[str, str]:
    """Return the submodule of each name; `exports` has the names of each submodule."""
    return {name: module for module, names in exports.items() for name in names.split()}


def lazily(module: str, homes: dict[str, str]) -> Callable[[str], Any]:
    """Return a `__getattr__` of `module` that imports names from their submodules at first use."""

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        value = getattr(import_module(f"{module}.{homes[name]}"), name)
        setattr(sys.modules[module], name, value)
        return value

    return get
