"""Settings of Nemotron-Labs-Diffusion's sampler: sure masks are revealed, and at least one."""

from collections.abc import Mapping
from typing import Any

from dlm.models.json_files import Range, check_number

_THRESHOLD = 0.9  # of the published reference's diffusion mode
_TOKEN = Range(int, 0, 2**24)


def sampler(config: Mapping[str, Any], generation: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the name of the sampler and its settings. A `generation_config.json` has none of them.
    Raises `CheckpointError` for a mask that is no token."""
    mask = config.get("mask_token_id")
    check_number("config.json: mask_token_id", mask, _TOKEN)
    return "reveal", {"mask": mask, "threshold": _THRESHOLD}
