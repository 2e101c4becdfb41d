"""Layouts of all families of models, by the `model_type` of a `config.json`."""

from collections.abc import Mapping
from typing import Any

from dlm.models import CheckpointError
from dlm.models.diffusion_gemma.layout import LAYOUT as DIFFUSION_GEMMA
from dlm.models.layout import Layout

LAYOUTS: tuple[Layout[Any, Any], ...] = (DIFFUSION_GEMMA,)


def layout_of(config: Mapping[str, Any]) -> Layout[Any, Any]:
    """Return the layout for a parsed `config.json`. Raises `CheckpointError` if no family has its
    `model_type`."""
    model_type = config.get("model_type")
    for layout in LAYOUTS:
        if model_type in layout.model_types:
            return layout
    names = " or ".join(repr(layout.model_types[0]) for layout in LAYOUTS)
    raise CheckpointError(f"config.json: model_type is {model_type!r}, not {names}")
