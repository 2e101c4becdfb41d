"""Grammars over canvases: guide, compile, warm up. Names are imported at their first use."""

from dlm.grammar import homes, lazily

__getattr__ = lazily(
    __name__,
    homes(
        {
            "compiler": "Compiler Warmup",
            "bounded": "Bounded BoundedTokens",
            "frontier": "Frontier",
            "workers": "Task Workers",
        }
    ),
)
