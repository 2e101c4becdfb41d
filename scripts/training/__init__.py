"""The built-in checkpoint's making: data from patterns and a seed, tokenizer, training."""
