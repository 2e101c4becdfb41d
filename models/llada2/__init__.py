"""LLaDA2: its config, router, network, and the names of its tensors in a file."""
