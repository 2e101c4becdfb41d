"""DiffusionGemma: its config, layers, vision tower, and the names of its tensors in a file."""
