"""What a JSON Schema means."""
