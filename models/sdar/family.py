"""SDAR as a family: how its directories are loaded, its markup and its tokens."""

from functools import partial
from typing import Any

from dlm.models import reveal_settings, text_loading
from dlm.models.family import ChatMarkup, Family

_MASK = 151_669  # <|MASK|>, unless a file names another


def layout() -> Any:
    """Return the layout of the family's directories."""
    from dlm.models.sdar.layout import LAYOUT

    return LAYOUT


SDAR = Family(
    name="sdar",
    architectures=("SDARForCausalLM", "SDARMoeForCausalLM"),
    model_types=("sdar", "sdar_moe"),
    load=text_loading.load,
    sampler=partial(reveal_settings.sampler, _MASK),
    stops=(151_645, 151_643),  # <|im_end|>, <|endoftext|>
    pad=151_643,
    markup=ChatMarkup(turn="<|im_start|>assistant\n"),
    caches="whole",
    layout=layout,
)
