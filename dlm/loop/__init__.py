"""Decoding: canvases that are denoised, or tokens written from left to right."""
