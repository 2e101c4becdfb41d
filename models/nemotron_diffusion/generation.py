"""Settings of Nemotron-Labs-Diffusion's sampler: sure masks are revealed, and at least one."""

from collections.abc import Mapping
from typing import Any

from dlm.models.config_fields import TOKEN, Fields

_THRESHOLD = 0.9  # of the published reference's diffusion mode


def sampler(config: Mapping[str, Any], generation: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the name of the sampler and its settings. A `generation_config.json` has none of them.
    Raises `CheckpointError` for a mask that is no token."""
    mask = Fields(config).number("mask_token_id", TOKEN)
    return "reveal", {"mask": mask, "threshold": _THRESHOLD}
