"""The base class of all errors that dlm raises on purpose. Every package may import this module,
which imports nothing."""


class DlmError(Exception):
    """Base class of the errors of `dlm`, `dlm.grammar` and `dlm.models`: catch it to catch them
    all."""
