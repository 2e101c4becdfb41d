"""The API page has every public name of `dlm`, and no other; those of `dlm.grammar` exist."""

import re
from pathlib import Path

import dlm

PAGE = (Path(__file__).parents[2] / "docs" / "api.md").read_text()
NAMES = re.findall(r"^::: (\S+)$", PAGE, re.M)


def test_every_public_name_of_dlm_is_on_the_page():
    packages = {"grammar", "integrations", "models"}
    public = {f"dlm.{name}" for name in dlm.__all__ if name not in packages}
    listed = {name for name in NAMES if not name.startswith("dlm.grammar.")}
    assert listed == public


def test_the_table_of_constraints_names_public_classes():
    table = (Path(__file__).parents[2] / "docs" / "schemas.md").read_text()
    named = re.findall(r"^\| `(\w+)\(", table, re.M)
    assert len(named) > 5
    assert set(named) <= set(dlm.__all__)


def test_the_page_has_names_of_grammar_that_exist():
    listed = [name.removeprefix("dlm.grammar.") for name in NAMES if "dlm.grammar." in name]
    assert len(listed) > 10
    assert not {name for name in listed if not hasattr(dlm.grammar, name)}
