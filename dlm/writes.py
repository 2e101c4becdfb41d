"""Names of the ways to decode, and the way that a checkpoint names."""

from collections.abc import Mapping
from typing import Any, Literal, get_args

from dlm.errors import DlmError

Writes = Literal["canvas", "drafted", "left-to-right"]
"""Names of the ways to decode: canvases, or left to right with or without drafts from canvases."""


def checkpoint_decoding(config: Mapping[str, Any], generation: Mapping[str, Any]) -> Writes:
    """Return how a checkpoint is best decoded, by the field `dlm` of its parsed `config.json`:
    `{"decoding": "drafted"}`; without it in canvases. Raises `DlmError`, also if the field is in
    `generation`, where transformers refuses fields that it does not know."""
    if "dlm" in generation:
        raise DlmError("generation_config.json: the field dlm must be in config.json, not here")
    own = config.get("dlm") or {}
    name: Any = own.get("decoding", "canvas") if isinstance(own, Mapping) else None
    if name not in get_args(Writes):
        right, got = ", ".join(get_args(Writes)), own if name is None else name
        raise DlmError(f"config.json: dlm.decoding must be one of {right}, got {got!r:.60}")
    return name
