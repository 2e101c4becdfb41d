"""The state of one canvas: what the model looks at, and how far it has come."""

from dataclasses import dataclass

from torch import Tensor

from dlm.progress import Progress


@dataclass(slots=True, kw_only=True, eq=False)
class Canvas(Progress):
    """`L` positions, from noise to what is committed of them."""

    tokens: Tensor  # [L] what the model looks at: accepted tokens and noise
    soft_embedding: Tensor  # [L, hidden] self-conditioning
    uniform: Tensor | None = None  # [L] to draw by, from a pass that is to be made again
