"""Training of the built-in checkpoint: data from patterns and a seed, tokenizer, network."""
