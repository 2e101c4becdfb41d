"""Models: what families of them share, a folder for each family, and the errors that they raise on
purpose. Knows no grammar and no sampling.

All other names are imported at their first use: errors need no torch, which takes seconds to
import.
"""

# ruff: noqa: F401  # the imports are for type checkers, the table for Python

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dlm.root_error import DlmError

if TYPE_CHECKING:
    from dlm.models.cache import KVCache
    from dlm.models.diffusion_gemma.config import ModelConfig
    from dlm.models.diffusion_gemma.model import DiffusionGemma


class ModelError(DlmError):
    """Base class of this package's errors."""


class CheckpointError(ModelError):
    """Model directory that cannot be used."""


class BackendError(ModelError):
    """Requested kernels that cannot run here."""


class CacheFullError(ModelError):
    """Cache without enough pages for a request."""


_HOMES = {
    "KVCache": "dlm.models.cache",
    "ModelConfig": "dlm.models.diffusion_gemma.config",
    "DiffusionGemma": "dlm.models.diffusion_gemma.model",
}
if not TYPE_CHECKING:
    __all__ = [*_HOMES, "BackendError", "CheckpointError", "ModelError"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
