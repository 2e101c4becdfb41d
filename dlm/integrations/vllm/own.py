"""Models that the plugin serves: diffusion models of this process's vLLM, by its own classes.

vLLM loads its plugins before it knows its model, so that the wrapped functions run for every model.
Each of them asks `own_model` about the config of the object it serves, and otherwise calls vLLM's
own function unchanged.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from dlm.errors import DlmError
from dlm.models.diffusion_gemma.family import DIFFUSION_GEMMA
from dlm.models.family import ChatMarkup
from dlm.models.nemotron_diffusion.family import NEMOTRON_DIFFUSION
from dlm.numbers import is_number

TASK = "dlm"  # a task that workers with the plugin's sampler name beside "generate"


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnModel:
    """A model that the plugin serves."""

    architecture: str  # its name in vLLM's registry
    module: str  # of the class that is registered in place of vLLM's own
    name: str  # of that class
    markup: ChatMarkup
    masked: bool = False  # its canvases are of masks, not of noise
    pad: int | None = None  # token after a stop; None: the tokenizer's own

    def mask(self, model_config: Any) -> int | None:
        """Return the token of masked positions; None: canvases are of noise. Raises `DlmError` for
        a config without it."""
        if not self.masked:
            return None
        mask = getattr(model_config.hf_config, "mask_token_id", None)
        if not is_number(mask, int):
            raise DlmError(f"mask_token_id of the model's config must be a token, got {mask!r:.40}")
        return mask


GEMMA = OwnModel(
    architecture="DiffusionGemmaForBlockDiffusion",
    module="dlm.integrations.vllm.model",
    name="ConstrainedDiffusionGemma",
    markup=DIFFUSION_GEMMA.markup,
)
NEMOTRON = OwnModel(
    architecture="NemotronLabsDiffusionModel",
    module="dlm.integrations.vllm.nemotron",
    name="ConstrainedNemotron",
    markup=NEMOTRON_DIFFUSION.markup,
    masked=True,
    pad=NEMOTRON_DIFFUSION.pad,
)
MODELS = {model.architecture: model for model in (GEMMA, NEMOTRON)}


def own_model(model_config: Any) -> OwnModel | None:
    """Return the model of `model_config` if vLLM serves it by the plugin's class. Never raises."""
    try:
        model = MODELS.get(model_config.architecture)
        if model is None or not model_config.is_diffusion:
            return None
        entry = import_module("vllm").ModelRegistry.models[model.architecture]
        is_own = (entry.module_name, entry.class_name) == (model.module, model.name)
        return model if is_own else None
    except Exception:
        return None  # a config of another kind, or another registry


def register(models: Iterable[OwnModel]) -> None:
    """Put the plugin's classes of `models` into vLLM's registry."""
    registry = import_module("vllm").ModelRegistry
    for model in models:
        registry.register_model(model.architecture, f"{model.module}:{model.name}")
