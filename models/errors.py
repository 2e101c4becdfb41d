"""Errors that `models` raises on purpose."""

from dlm.root_error import DlmError


class ModelError(DlmError):
    """Base class of this package's errors: catch it to catch them all."""


class CheckpointError(ModelError):
    """A model directory that cannot be used: what is wrong, where, and what would be right."""


class BackendError(ModelError):
    """Kernels were asked for that cannot run here: which, and what is in the way."""


class CacheFullError(ModelError):
    """The cache has too few pages for what is asked of it."""
