"""Nemotron-Labs-Diffusion: its config, network, draft adapter, and the names of its tensors."""
