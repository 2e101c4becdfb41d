"""Ways to decode, compared on the same prompts."""
