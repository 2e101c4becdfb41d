"""Anthropic's Messages: bodies, answers and errors. Knows no HTTP."""
