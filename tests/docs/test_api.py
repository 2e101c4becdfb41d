"""The API page has every public name of `dlm`; other names on it are of packages, and exist."""

import re
from importlib import import_module
from pathlib import Path

import dlm

PAGE = (Path(__file__).parents[2] / "docs" / "api.md").read_text()
NAMES = re.findall(r"^::: (\S+)$", PAGE, re.M)


def test_every_public_name_of_dlm_is_on_the_page():
    packages = {"grammar", "integrations", "models"}
    public = {f"dlm.{name}" for name in dlm.__all__ if name not in packages}
    assert {name for name in NAMES if name.count(".") == 1} == public


def test_the_table_of_constraints_names_public_classes():
    table = (Path(__file__).parents[2] / "docs" / "schemas.md").read_text()
    named = re.findall(r"^\| `(\w+)\(", table, re.M)
    assert len(named) > 5
    assert set(named) <= set(dlm.__all__)


def test_the_names_of_packages_on_the_page_exist():
    places = [name.rpartition(".") for name in NAMES if name.count(".") > 1]
    assert len(places) > 15
    assert not [name for module, _, name in places if not hasattr(import_module(module), name)]
