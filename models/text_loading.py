"""Loading of a directory: a model that reads text alone, and the cache and graphs of any model."""

from pathlib import Path
from typing import Any

from dlm.models.family import Loaded, LoadOptions


def load(directory: Path, options: LoadOptions) -> Loaded:
    """Read a checkpoint and make a cache. Raises what `options.read` raises, and `ModelError` if a
    GPU lacks memory for the slots."""
    return with_cache(options.read(), options)


def with_cache(model: Any, options: LoadOptions, tower: Any = None) -> Loaded:
    """Return `model` with a cache for its slots, and with graphs if they are wanted; an image that
    `tower` reads is encoded in one pass. Raises `ModelError` if a GPU lacks memory for the
    slots."""
    from dlm.models import plan
    from dlm.models.pages import CHUNK

    tokens = options.cache_tokens or plan.free_tokens(
        model.costs, model.device, options.slots, options.stored
    )
    segment = CHUNK if tower is None else max(CHUNK, tower.most_tokens)
    cache = model.new_cache(options.slots, options.stored, tokens, segment)
    model.use_graphs(cache, options.graphs)
    return Loaded(model, cache, tower)
