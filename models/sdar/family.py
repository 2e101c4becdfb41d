"""SDAR as a family: how its directories are loaded, its markup and its tokens."""

from typing import Any

from dlm.models import reveal_settings, text_loading
from dlm.models.config_fields import TOKEN, Fields
from dlm.models.family import ChatMarkup, Family, JsonFile

_MASK = 151_669  # <|MASK|>, unless a file names another


def layout() -> Any:
    """Return the layout of the family's directories."""
    from dlm.models.sdar.layout import LAYOUT

    return LAYOUT


def sampler(config: JsonFile, generation: JsonFile) -> tuple[str, dict[str, Any]]:
    """Return the name of the sampler and its settings."""
    mask = Fields(config).number("mask_token_id", TOKEN, _MASK)
    return reveal_settings.sampler(mask, generation)


SDAR = Family(
    name="sdar",
    architectures=("SDARForCausalLM", "SDARMoeForCausalLM"),
    model_types=("sdar", "sdar_moe"),
    load=text_loading.load,
    sampler=sampler,
    stops=(151_645, 151_643),  # <|im_end|>, <|endoftext|>
    pad=151_643,
    markup=ChatMarkup(turn="<|im_start|>assistant\n"),
    caches="whole",
    layout=layout,
)
