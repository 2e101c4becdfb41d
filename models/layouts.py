"""Layout of a model directory, by the family of its `config.json`."""

from collections.abc import Mapping
from typing import Any

from dlm.models import CheckpointError
from dlm.models.families import family_of
from dlm.models.layout import Layout


def layout_of(config: Mapping[str, Any]) -> Layout[Any, Any]:
    """Return the layout for a parsed `config.json`. Raises `CheckpointError` if it is of no family,
    or of one that loads its directories by itself."""
    family = family_of(config)
    if family.layout is None:
        raise CheckpointError(f"config.json: the family {family.name} has no layout to read")
    return family.layout()
