"""Fixtures of the oracle: `reference` is the module beside this file, `pair` two models of it."""

import shutil
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


@pytest.fixture(scope="session")
def reference() -> ModuleType:
    import reference  # transformers, at the first use

    return reference


@pytest.fixture(scope="session")
def pair(reference: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return a pair that all tests share, and do not change."""
    return reference.make_pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture
def saved(pair: Any, tmp_path: Path) -> Path:
    """Return a copy of the pair's directory, which a test may change."""
    return Path(shutil.copytree(pair.directory, tmp_path / "saved"))
