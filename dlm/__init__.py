"""Diffusion-LM decoding: denoise a canvas under a grammar, commit it, encode it, repeat."""
