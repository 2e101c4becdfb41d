"""What `dlm` raises on purpose."""


class DlmError(Exception):
    """Root of this package's errors."""


class RequestError(DlmError, ValueError):
    """A request that cannot be served as it stands; its text is what an HTTP 400 should carry."""
