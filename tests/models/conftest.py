"""Fixtures of the oracle."""

from pairs import pair, reference, saved

__all__ = ["pair", "reference", "saved"]
