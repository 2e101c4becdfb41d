"""Grammars as rules."""
