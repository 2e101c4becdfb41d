"""Grammars over token canvases, on top of xgrammar. CPU only: no model, no kernel."""
