"""Ways to decode, by their names."""

from typing import Any, get_args

from dlm.errors import DlmError
from dlm.loop.diffusion import Diffusion
from dlm.loop.left_to_right import Autoregressive
from dlm.writes import Writes


def decoding_of(decoding: Any) -> Any:
    """Return the decoding of this name, or a `Decoding` as it is. Raises `DlmError` for an unknown
    name."""
    if not isinstance(decoding, str):
        return decoding
    if decoding not in get_args(Writes):
        right = ", ".join(get_args(Writes))
        raise DlmError(f"decoding must be one of {right}, or a Decoding, got {decoding!r:.60}")
    if decoding == "canvas":
        return Diffusion()
    return Autoregressive(drafts=decoding == "drafted")
