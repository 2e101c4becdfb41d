"""List of all families of models, which a `config.json` names by its `model_type`."""

from collections.abc import Mapping
from typing import Any

from dlm.models import CheckpointError
from dlm.models.diffusion_gemma.family import DIFFUSION_GEMMA
from dlm.models.family import Family

FAMILIES: tuple[Family[Any, Any], ...] = (DIFFUSION_GEMMA,)


def family_of(config: Mapping[str, Any]) -> Family[Any, Any]:
    """Return the family of a parsed `config.json`. Raises `CheckpointError` for one that is not
    listed."""
    model_type = config.get("model_type")
    for family in FAMILIES:
        if model_type in family.model_types:
            return family
    names = " or ".join(repr(family.model_types[0]) for family in FAMILIES)
    raise CheckpointError(f"config.json: model_type is {model_type!r}, not {names}")
