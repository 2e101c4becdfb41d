"""Model that the plugin serves: DiffusionGemma of this process's vLLM, by the plugin's own class.

vLLM loads its plugins before it knows its model, so that the wrapped functions run for every model.
Each of them asks `is_own` about the config of the object it serves, and otherwise calls vLLM's own
function unchanged.
"""

from importlib import import_module
from typing import Any

ARCHITECTURE = "DiffusionGemmaForBlockDiffusion"  # its name in vLLM's registry
MODULE, CLASS = "dlm.integrations.vllm.model", "ConstrainedDiffusionGemma"
TASK = "dlm"  # a task that workers with the plugin's sampler name beside "generate"


def is_own(model_config: Any) -> bool:
    """Whether vLLM serves the model of `model_config` by the plugin's class. Never raises."""
    try:
        if model_config.architecture != ARCHITECTURE or not model_config.is_diffusion:
            return False
        entry = import_module("vllm").ModelRegistry.models[ARCHITECTURE]
        return (entry.module_name, entry.class_name) == (MODULE, CLASS)
    except Exception:
        return False  # a config of another kind, or another registry


def register() -> None:
    """Put the plugin's class into vLLM's registry."""
    import_module("vllm").ModelRegistry.register_model(ARCHITECTURE, f"{MODULE}:{CLASS}")
