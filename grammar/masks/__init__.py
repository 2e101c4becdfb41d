"""Sets of tokens."""
