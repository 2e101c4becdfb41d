"""Settings of the sampler that reveals masks, as a `config.json` and a `generation_config.json`
have them."""

from typing import Any

from dlm.models.config_fields import TOKEN, Fields
from dlm.models.family import JsonFile
from dlm.models.json_files import Range, check_numbers

_FILE = "generation_config.json"
_PROBABILITY = Range(float, 0, 1, closed=True)
_RANGES = {
    "threshold": _PROBABILITY,
    "edit_threshold": _PROBABILITY,
    "max_post_edit_steps": Range(int, 0, 10_000),
}
_NAMES = {  # of the settings of `dlm.samplers.Reveal`, by field
    "threshold": "threshold",
    "edit_threshold": "edit_threshold",
    "max_post_edit_steps": "edit_passes",
}


def sampler(
    default_mask: int, config: JsonFile, generation: JsonFile
) -> tuple[str, dict[str, Any]]:
    """Return the name of the sampler, and its settings: the mask that a parsed `config.json` names,
    and what a `generation_config.json` has. With an `edit_threshold`, tokens that stand may be
    replaced. Raises `CheckpointError` for a value that cannot be meant."""
    mask = Fields(config).number("mask_token_id", TOKEN, default_mask)
    check_numbers(f"{_FILE}: ", generation, _RANGES)
    settings = {
        name: generation[field]
        for field, name in _NAMES.items()
        if generation.get(field) is not None
    }
    return "reveal", {"mask": mask, **settings}
