"""Control tokens that a grammar has to know by their ids."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Markers:
    """The tokens that open reasoning, and those that close it."""

    open: tuple[int, ...]
    close: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CallMarkers:
    """Control tokens that open and close a tool call, and quote a string within it."""

    open: int
    close: int
    quote: int
