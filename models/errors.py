"""Errors that `models` raises on purpose."""

from dlm.root_error import DlmError


class ModelError(DlmError):
    """Base class of this package's errors."""


class CheckpointError(ModelError):
    """Model directory that cannot be used."""


class BackendError(ModelError):
    """Requested kernels that cannot run here."""


class CacheFullError(ModelError):
    """Cache without enough pages for a request."""
