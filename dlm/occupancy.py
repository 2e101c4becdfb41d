"""Load of an engine, as its metrics show it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Occupancy:
    """Load of an engine."""

    running: int  # requests, and questions of decisions
    waiting: int  # requests, and decisions
    cache: float  # share of its memory that holds keys and values
