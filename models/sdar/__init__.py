"""SDAR: its config, network, and the names of its tensors in a file."""
