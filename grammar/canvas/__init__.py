"""A grammar over canvases: guide, compile, warm up."""
