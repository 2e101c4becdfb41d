"""Grammars over canvases: guide, compile, warm up. Names are imported at their first use."""

from dlm.grammar.lazy import homes, lazily

__getattr__ = lazily(
    __name__,
    homes(
        {
            "bounded": "Bounded BoundedTokens",
            "canvas_pass": "CanvasPass",
            "compiler": "Compiler",
            "frontier": "Frontier",
            "warmup": "Warmup",
            "workers": "Task Workers",
        }
    ),
)
