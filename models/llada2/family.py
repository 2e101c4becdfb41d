"""LLaDA2 as a family: how its directories are loaded, its markup and its tokens."""

from functools import partial
from typing import Any

from dlm.models import reveal_settings, text_loading
from dlm.models.config_fields import TOKEN, TOKENS, Fields
from dlm.models.family import ChatMarkup, Family, JsonFile

_MASK = 156_895  # <|mask|>, unless a file names another


def layout() -> Any:
    """Return the layout of the family's directories."""
    from dlm.models.llada2.layout import LAYOUT

    return LAYOUT


def excluded(config: JsonFile) -> tuple[int, ...]:
    """Return the tokens by which a model deletes and splits others, if a file names them
    (LLaDA2.2): such edits are not computed."""
    fields = Fields(config)
    last = fields.number("vocab_size", TOKENS) - 1
    return tuple(
        fields.at_most(name, TOKEN, "the last token", last)
        for name in ("delete_token_id", "split_token_id")
        if config.get(name) is not None
    )


LLADA2 = Family(
    name="llada2",
    architectures=("LLaDA2MoeModelLM",),
    model_types=("llada2_moe",),
    load=text_loading.load,
    sampler=partial(reveal_settings.sampler, _MASK),
    stops=(156_892,),  # <|endoftext|>
    pad=156_892,
    excluded=excluded,
    markup=ChatMarkup(turn="<role>ASSISTANT</role>"),
    caches="whole",
    layout=layout,
)
