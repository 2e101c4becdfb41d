"""Shape of a model, as far as the cache, the passes over it and an engine have to know it. A
family's own config has more numbers."""

from dataclasses import dataclass
from typing import Literal

LayerType = Literal["sliding_attention", "full_attention"]
Caching = Literal["causally", "whole"]
"""Ways to encode committed tokens. "causally": each sees those before it. "whole": in blocks of a
canvas's length, counted from position 0; each token also sees all of its block, so that only whole
blocks are encoded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerConfig:
    """Attention geometry of one layer."""

    kind: LayerType
    head_dim: int
    kv_heads: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """Geometry of a text stack. Every number comes from the checkpoint."""

    vocab_size: int
    hidden_size: int
    heads: int
    layers: tuple[LayerConfig, ...]
    canvas_length: int
    max_positions: int
    window: int | None = None  # tokens a sliding layer sees, the current one included
    images_see_all: bool = False  # whether a soft token of an image sees all of the image
    caches: Caching = "causally"  # as the family declares it

    @property
    def block(self) -> int:
        """Number of adjacent tokens that are encoded together, since they see each other."""
        return self.canvas_length if self.caches == "whole" else 1

    def window_of(self, kind: LayerType) -> int | None:
        """Return how many tokens a layer sees, including the current one; None: all of them."""
        return self.window if kind == "sliding_attention" else None
