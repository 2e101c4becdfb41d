"""Loading of a directory whose model reads text alone: the model, its cache and its graphs."""

from pathlib import Path
from typing import Any

from dlm.models.family import Loaded, LoadOptions


def load(directory: Path, options: LoadOptions) -> Loaded:
    """Read a checkpoint and make a cache. Raises what `options.read` raises, and `ModelError` if a
    GPU lacks memory for the slots."""
    return with_cache(options.read(), options)


def with_cache(model: Any, options: LoadOptions) -> Loaded:
    """Return `model` with a cache for its slots, and with graphs if they are wanted. Raises
    `ModelError` if a GPU lacks memory for the slots."""
    from dlm.models import plan
    from dlm.models.pages import CHUNK

    tokens = options.cache_tokens or plan.free_tokens(
        model.costs, model.device, options.slots, options.stored
    )
    cache = model.new_cache(options.slots, options.stored, tokens, CHUNK)
    model.use_graphs(cache, options.graphs)
    return Loaded(model, cache)
