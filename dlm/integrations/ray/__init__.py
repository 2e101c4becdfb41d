"""Engines on the machines of a Ray cluster: rows by Ray Data, requests by Ray Serve."""

from importlib.util import find_spec

from dlm.errors import DlmError

if find_spec("ray") is None:
    raise DlmError("Ray is not installed: pip install 'dlm[ray]'")
