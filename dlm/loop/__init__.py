"""How a model writes: canvases that are denoised, or tokens from left to right."""
