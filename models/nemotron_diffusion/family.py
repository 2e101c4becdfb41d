"""Nemotron-Labs-Diffusion as a family: how its directories are loaded, its markup and tokens."""

from pathlib import Path
from typing import Any

from dlm.models import text_loading
from dlm.models.family import ChatMarkup, Family, Loaded, LoadOptions
from dlm.models.nemotron_diffusion import generation


def load(directory: Path, options: LoadOptions) -> Loaded:
    """Read a checkpoint, with its adapter of drafts if there is one, and make a cache. Raises what
    `options.read` raises, `CheckpointError` for an odd adapter, and `ModelError` if a GPU lacks
    memory for the slots."""
    from dlm.models.nemotron_diffusion import adapter

    model = options.read()
    adapters = adapter.read(directory, model.config, options.dtype, options.device)
    if adapters is not None:
        model.adapt_drafts(adapters)
    return text_loading.with_cache(model, options)


def layout() -> Any:
    """Return the layout of the family's directories."""
    from dlm.models.nemotron_diffusion.layout import LAYOUT

    return LAYOUT


NEMOTRON_DIFFUSION = Family(
    name="nemotron_diffusion",
    architectures=("NemotronLabsDiffusionModel",),
    model_types=("nemotron_labs_diffusion",),
    load=load,
    sampler=generation.sampler,
    stops=(11,),
    pad=0,  # <unk>: not the end of a text, which is the tokenizer's own padding
    markup=ChatMarkup(thought=("<think>", "</think>")),
    caches="causally",
    layout=layout,
)
