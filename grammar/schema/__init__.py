"""Translation of JSON Schema into grammar rules."""
