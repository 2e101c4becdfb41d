"""Token distributions of a pass: read where they are, masked, sampled; little of them is copied."""
