"""Fixtures of the oracle: `reference` is the module beside this file, `pair` two models of it."""

import importlib.util
import shutil
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


@pytest.fixture(scope="session")
def reference() -> ModuleType:
    """Return the module `reference.py`, which cannot be imported: tests are not a package."""
    path = Path(__file__).with_name("reference.py")
    spec = importlib.util.spec_from_file_location("models_reference", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def pair(reference: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return a pair that all tests share, and do not change."""
    return reference.make_pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture
def saved(pair: Any, tmp_path: Path) -> Path:
    """Return a copy of the pair's directory, which a test may change."""
    return Path(shutil.copytree(pair.directory, tmp_path / "saved"))
