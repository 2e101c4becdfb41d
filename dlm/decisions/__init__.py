"""Typed questions about an input, answered with probabilities."""
