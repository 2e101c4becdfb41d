"""Loads on grammars, on an engine and on a server: what they cost, and what others notice."""
