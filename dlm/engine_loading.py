"""Loading of an engine: model, cache, chat, decoding and threads of a directory, and a warm-up."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from dlm.chat import Chat
from dlm.loading import Loading
from dlm.loop.named import decoding_of
from dlm.models import ModelError
from dlm.storage import load_model, read_directory
from dlm.threads import threads_for
from dlm.together import Progress


def load_engine(make: Callable[..., Any], loading: Loading, progress: Progress | None) -> Any:
    """Return the engine that `loading` describes, made by `make` from the arguments of `Engine`.
    Raises the errors of `Engine.load`."""
    if loading.model is None:
        loading = replace(loading, device=loading.device or "cpu")
    stored = read_directory(None if loading.model is None else Path(loading.model))
    loaded = load_model(stored, loading)
    model, threads = loaded.model, loading.threads
    if threads is None:
        weights = model.parameters() if isinstance(model, torch.nn.Module) else ()
        threads = threads_for(sum(weight.numel() for weight in weights if weight.is_cpu))
    engine = make(
        loaded.model,
        Chat.load(stored.directory, stored.family.markup),
        stored.config,
        loading.slots,
        loading.policy,
        family=stored.family,
        cache=loaded.cache,
        decoding=decoding_of(loading.decoding or stored.writes),
        tower=loaded.tower,
        threads=threads,
    )
    if loading.warm_up and model.device.type == "cuda":
        try:
            engine.warm_up(progress)
        except BaseException as error:
            engine.close()
            if isinstance(error, torch.OutOfMemoryError):
                raise ModelError(
                    f"{loading.slots} slots: {model.device} has no memory left to warm up "
                    "their passes; ask for fewer slots or cache_tokens"
                ) from error
            raise
    return engine
