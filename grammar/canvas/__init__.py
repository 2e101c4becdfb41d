"""A grammar over canvases: guide, repair, compile, warm up."""
