"""Comparison of ways to decode: the modes, their runs, and the report of `dlm compare`."""
