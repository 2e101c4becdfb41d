"""Forms of tool calls: their rules and parsers."""
