"""Parsing: a grammar's states, the tokens each of them allows, and its completions."""
