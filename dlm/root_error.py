"""Base class of all errors that dlm raises on purpose; every package may import this module."""


class DlmError(Exception):
    """Base class of the errors of `dlm`, `dlm.grammar` and `dlm.models`."""
