"""DiffusionGemma as a family: how its directories are loaded, its markup and its tokens."""

from pathlib import Path
from typing import Any

from dlm.models.diffusion_gemma import generation
from dlm.models.family import ChatMarkup, Family, Loaded, LoadOptions
from dlm.models.text_loading import with_cache

BUILT_IN = Path(__file__).parents[1] / "tiny"
"""Directory of the checkpoint that is installed."""


def load(directory: Path, options: LoadOptions) -> Loaded:
    """Read a checkpoint, with its vision tower if there is one, and make a cache. Raises what
    `options.read` raises, and `ModelError` if a GPU lacks memory for the slots."""
    from dlm.models.diffusion_gemma.vision import VisionTower

    model = options.read()
    tower = None
    if options.images:
        tower = VisionTower.load(directory, model.images, options.dtype, options.device)
    return with_cache(model, options, tower)


def layout() -> Any:
    """Return the layout of the family's directories."""
    from dlm.models.diffusion_gemma.layout import LAYOUT

    return LAYOUT


DIFFUSION_GEMMA = Family(
    name="diffusion_gemma",
    architectures=("DiffusionGemmaForBlockDiffusion",),
    model_types=("diffusion_gemma", "diffusion_gemma_text"),
    load=load,
    sampler=generation.sampler,
    stops=(1, 106, 50),  # <eos>, <turn|>, <|tool_response>
    pad=0,
    markup=ChatMarkup(
        turn="<|turn>model\n",
        thought=("<|channel>", "<channel|>"),
        channel="thought",
        call=("<|tool_call>", "<tool_call|>", '<|"|>'),
    ),
    layout=layout,
)
