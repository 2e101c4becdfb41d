"""Grammars over canvases: guide, compile, warm up."""
