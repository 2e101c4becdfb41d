"""What `Engine.step` tells of: drafts that may change, text that cannot, and ends."""

from dataclasses import dataclass

from dlm.errors import DlmError
from dlm.request import Result


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A canvas between two passes: `L` positions."""

    request: int
    step: int  # passes over this canvas so far
    entropy: float  # mean nats a scored position
    tokens: list[int]  # [L] the guess
    accepted: list[bool]  # [L] kept on the canvas; the others are noise
    pinned: int  # leading positions that the constraint has fixed


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """Tokens that are final. They follow those of the request's earlier events."""

    request: int
    tokens: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    request: int
    result: Result


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """This request cannot go on; the others are not concerned."""

    request: int
    error: DlmError


Event = Draft | Committed | Finished | Failed
