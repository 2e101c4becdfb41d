"""Masked canvases whose sure positions are revealed, as LLaDA2, SDAR and Nemotron sample them.

A pass reveals all masked positions whose likeliest token has more than `threshold`, and at least
the surest one. With an `edit_threshold` it also replaces tokens that stand where the model prefers
others: at most `edit_passes` more passes read a canvas without masks. These are the rules of
SGLang's LowConfidence and JointThreshold.

A sure token right of unsure ones fixes how many tokens come between. If it is wrong there, as a
quote that ends a name too early is, they can only be wrong too, and a grammar does not show it. A
`doubt` bounds that: it is the expected number of wrong tokens among the likeliest ones of the masks
to the left of a position.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from dlm.errors import DlmError
from dlm.grammar import Guidance
from dlm.logits.distributions import TokenDistributions
from dlm.numbers import is_number
from dlm.samplers.sampler import Passes

_ORDERS = "joint", "prefix"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reveal:
    """Settings of the sampler. Raises `DlmError` for impossible values."""

    mask: int  # the token of positions without a token
    threshold: float = 0.95  # probability; of LLaDA2 and SDAR, Nemotron-Labs-Diffusion has 0.9
    edit_threshold: float | None = None  # probability of tokens that replace others; None: none do
    edit_passes: int = 16  # over a canvas without masks; those of JointThreshold
    order: str = "joint"  # any sure position; "prefix": no token stands right of a mask
    doubt: float | None = None  # the most, in tokens, left of a revealed position; None: any
    max_steps: int = 4096  # passes after which the loop pins; more than positions and edit passes

    def __post_init__(self) -> None:
        if not is_number(self.mask, int) or self.mask < 0:
            raise DlmError(f"mask must be the id of a token, got {self.mask!r:.40}")
        if not is_number(self.threshold) or not 0 <= self.threshold <= 1:
            raise DlmError(f"threshold must be a probability, got {self.threshold!r:.40}")
        edit = self.edit_threshold
        if edit is not None and not (is_number(edit) and 0 <= edit <= 1):
            raise DlmError(f"edit_threshold must be a probability or None, got {edit!r:.40}")
        if not is_number(self.edit_passes, int) or self.edit_passes < 0:
            raise DlmError(f"edit_passes must be 0 or more, got {self.edit_passes!r:.40}")
        if self.order not in _ORDERS:
            raise DlmError(f"order must be joint or prefix, got {self.order!r:.40}")
        if self.doubt is not None and not (is_number(self.doubt) and self.doubt >= 0):
            raise DlmError(f"doubt must be a number of tokens or None, got {self.doubt!r:.40}")
        if self.doubt is not None and self.order == "prefix":
            raise DlmError('doubt must be None by the order "prefix", which reveals from the left')
        if not is_number(self.max_steps, int) or self.max_steps < 1:
            raise DlmError(f"max_steps must be at least 1, got {self.max_steps!r:.40}")

    @property
    def carries(self) -> bool:
        return False

    def start(self, rng: torch.Generator, length: int, vocab_size: int) -> Int64[Tensor, " L"]:
        """Return masks alone."""
        return torch.full((length,), self.mask, device=rng.device)

    def temperature(self, step: int) -> float:
        return 1.0

    def accept(self, rows: TokenDistributions, free: Bool[Tensor, "B L"]) -> Bool[Tensor, "B L"]:
        """Return the free positions that are sure, or the surest of them. By `prefix`, those up to
        the first free one that is not sure, or the first; with a `doubt`, those that have no more
        to their left, or the first."""
        confidences = rows.confidences
        sure, first = free & (confidences > self.threshold), free & (free.cumsum(-1) == 1)
        if self.order == "prefix":
            return first | (free & ((free & ~sure).cumsum(-1) == 0))
        if self.doubt is None:
            best = confidences.masked_fill(~free, -1.0).argmax(-1, keepdim=True)
            fallback = torch.zeros_like(free).scatter(-1, best, True) & free
        else:
            doubts = (1 - confidences).masked_fill(~free, 0.0)
            sure, fallback = sure & (doubts.cumsum(-1) - doubts <= self.doubt), first
        return torch.where(sure.any(-1, keepdim=True), sure, fallback)

    def next(
        self,
        tokens: Int64[Tensor, "B L"],
        kept: Int64[Tensor, "B L"],
        rngs: Sequence[torch.Generator | None],
        vocab_size: int,
    ) -> Int64[Tensor, "B L"]:
        """Return the kept tokens, and masks elsewhere."""
        return kept.masked_fill(kept < 0, self.mask)

    def settled(self, passes: Passes, guidance: Guidance, entropy: float) -> bool:
        """Whether no mask is left before the stop; with edits, also whether a pass over that canvas
        has replaced nothing, or was the last one for edits."""
        if not passes.complete or self.edit_threshold is None:
            return passes.complete
        return passes.rereads >= self.edit_passes or (passes.rereads > 0 and not passes.edited)
