"""Settings of DiffusionGemma's sampler, as its `generation_config.json` has them."""

from collections.abc import Mapping
from typing import Any

from dlm.models import CheckpointError
from dlm.models.json_files import Range, check_numbers, shown

_FILE = "generation_config.json"
_NATS = Range(float, 0, 1e6)
_RANGES = {
    "max_denoising_steps": Range(int, 1, 10_000),
    "sampler_config.entropy_bound": _NATS,
    "t_min": Range(float, 0, 100),
    "t_max": Range(float, 0, 100),
    "confidence_threshold": _NATS,
}
_NAMES = {  # of the settings of `dlm.samplers.EntropyBound`, by field
    "max_denoising_steps": "max_steps",
    "sampler_config.entropy_bound": "entropy_bound",
    "t_min": "t_min",
    "t_max": "t_max",
    "confidence_threshold": "confidence",
}


def sampler(config: Mapping[str, Any], generation: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the name of the sampler, and the settings that a parsed `generation_config.json` has.
    Raises `CheckpointError` for a value that cannot be meant."""
    own: Any = generation.get("sampler_config")
    if own is not None and not isinstance(own, Mapping):
        raise CheckpointError(f"{_FILE}: sampler_config must be an object, got {shown(own)}")
    fields = {**generation, "sampler_config.entropy_bound": (own or {}).get("entropy_bound")}
    check_numbers(f"{_FILE}: ", fields, _RANGES)
    return "entropy_bound", {
        name: fields[field] for field, name in _NAMES.items() if fields.get(field) is not None
    }
