"""Fixtures of the oracle."""

from pairs import pair, reference

__all__ = ["pair", "reference"]
