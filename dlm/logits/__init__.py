"""Token distributions of a pass: read on the device, masked and sampled; only a few are copied."""
