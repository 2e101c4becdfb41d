"""Cuts of a request's distributions (top-k, top-p, min-p), for whoever reads logits."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float32
from torch import Tensor

from dlm.kernels.vocab_cut import Cuts
from dlm.request import Request

_MOST = 2**31 - 1  # tokens: more than any vocabulary has


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """What is left of each distribution of a request: its likeliest tokens.

    It is made among the tokens that a constraint allows, so that one of these is always left.
    """

    temperature: float  # of the probabilities that `top_p` and `min_p` speak of
    top_k: int = 0  # tokens; 0: any number
    top_p: float = 1.0
    min_p: float = 0.0

    @classmethod
    def of(cls, request: Request, temperature: float) -> "Cut | None":
        """Return the cut of a request; None where it leaves everything."""
        top_k = max(0, min(int(request.top_k), _MOST))
        cut = cls(
            temperature=temperature,
            top_k=top_k,
            top_p=float(request.top_p),
            min_p=float(request.min_p),
        )
        return None if (cut.top_k, cut.top_p, cut.min_p) == (0, 1, 0) else cut


def columns(cuts: Sequence[Cut]) -> tuple[Float32[Tensor, " n"], Cuts]:
    """Return inverse temperatures and cuts of n rows, as `cut_masks` takes them, on the host."""
    heat = 1 / torch.tensor([cut.temperature for cut in cuts])
    top_k = torch.tensor([cut.top_k for cut in cuts], dtype=torch.int32)
    top_p, min_p = (torch.tensor([getattr(c, name) for c in cuts]) for name in ("top_p", "min_p"))
    return heat, Cuts(top_k, top_p, min_p)
