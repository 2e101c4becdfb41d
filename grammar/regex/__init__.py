"""Patterns and their automata."""
