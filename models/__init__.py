"""DiffusionGemma: layers, KV cache, checkpoint loader. Knows no grammar and no sampling.

Names are imported at their first use: errors need no torch, which takes seconds to import.
"""

# ruff: noqa: F401  # the imports are for type checkers, the table for Python

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dlm.models.cache import KVCache
    from dlm.models.config import ModelConfig
    from dlm.models.errors import BackendError, CheckpointError, ModelError
    from dlm.models.model import DiffusionGemma

_EXPORTS = {
    "dlm.models.cache": "KVCache",
    "dlm.models.config": "ModelConfig",
    "dlm.models.errors": "BackendError CheckpointError ModelError",
    "dlm.models.model": "DiffusionGemma",
}
_HOMES = {name: module for module, names in _EXPORTS.items() for name in names.split()}
if not TYPE_CHECKING:
    __all__ = [*_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
