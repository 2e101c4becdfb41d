"""DiffusionGemma: layers, KV cache, checkpoint loader. Knows no grammar and no sampling."""

from dlm.models.cache import KVCache
from dlm.models.config import ModelConfig
from dlm.models.errors import BackendError, CheckpointError, ModelError
from dlm.models.model import DiffusionGemma

__all__ = [
    "BackendError",
    "CheckpointError",
    "DiffusionGemma",
    "KVCache",
    "ModelConfig",
    "ModelError",
]
