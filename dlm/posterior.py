"""A canvas's rows under their exact posterior: the model's distributions, times class factors.

Rows whose token is certain, which is most of them behind a short text, are not read. Of the others
there is one fp32 copy of their logits, `[m, V]`, for as long as the step takes.
"""

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Float32, Int32, Int64
from torch import Tensor

from dlm.class_table import ClassTable, check_size
from dlm.cuts import Cut, columns
from dlm.distributions import distributions
from dlm.grammar import Posterior
from dlm.kernels.expectation import Distributions
from dlm.kernels.vocab import vocab_pass
from dlm.kernels.vocab_cpu import forbid_
from dlm.kernels.vocab_cut import Cuts, cut_masks
from dlm.kernels.vocab_rows import VocabPass, heated
from dlm.link import Link
from dlm.logits import CANDIDATES, THRESHOLD

_GONE = 1e-6  # probability that a text is still going on, under which its position is padding


def check(posterior: Posterior, length: int, vocab_size: int) -> None:
    """Raises `ValueError` for a posterior that does not fit a canvas of `length` positions."""
    T, C = posterior.factors.shape
    check_size(posterior.classes, vocab_size)
    most = int(posterior.classes.max())
    if most > C - 2:
        raise ValueError(f"factors of {C} classes, the last of them padding, for a class {most}")
    if length < T or len(posterior.pinned) > T:
        raise ValueError(
            f"{T} positions with factors, {len(posterior.pinned)} of them pinned, for {length}"
        )


class CanvasRows(NamedTuple):
    """A canvas as the model sees it; log-sum-exps are of heated logits, and on the host."""

    logits: Float[Tensor, "L V"]
    inverse_temperature: float
    softcap: float | None
    lse: Float32[Tensor, " L"]


class Certain(NamedTuple):
    """Positions that can take one token alone."""

    positions: Int64[Tensor, " c"]
    tokens: Int64[Tensor, " c"]


def certain(posterior: Posterior) -> Certain:
    """Of the trusted positions: what is pinned, and what is padding."""
    padding, pinned = posterior.factors[:, -1].astype(np.float64), list(posterior.pinned)
    over = np.flatnonzero(padding >= np.log1p(-_GONE))
    positions = [*range(len(pinned)), *over[over >= len(pinned)].tolist()]
    tokens = pinned + [posterior.pad] * (len(positions) - len(pinned))
    return Certain(torch.tensor(positions).long(), torch.tensor(tokens).long())


class Reweighted:
    """Those `rows` of a canvas, one at least, that are trusted and not certain."""

    def __init__(
        self,
        canvas: CanvasRows,
        rows: Int64[Tensor, " m"],
        posterior: Posterior,
        table: ClassTable,
        link: Link,
        by_kernel: bool | None = None,
        cut: Cut | None = None,
    ):
        """`by_kernel` is `vocab_pass`'s. With a `cut`, tokens outside of it are drawn only where a
        text leaves no other."""
        self.rows, self._by_kernel, numbers = rows, by_kernel, rows.numpy()
        rows, factors, lse, drawn, uniform = link.to_device(
            self.rows,
            torch.tensor(posterior.factors[numbers]),
            canvas.lse[self.rows],
            torch.tensor(posterior.drawn[numbers]),
            torch.tensor(posterior.uniform[numbers]),
        )
        of, heat = table.place(posterior.classes, link).of, canvas.inverse_temperature
        x = heated(canvas.logits[rows], torch.full_like(lse, heat), canvas.softcap)
        x.sub_(lse[:, None]).add_(factors[:, of])
        for position, barred in posterior.without.items():
            x[(rows == position).nonzero(), list(barred)] = -torch.inf
        within = x.masked_fill(of != drawn[:, None], -torch.inf)
        x[:, posterior.pad] = factors[:, -1]
        if cut is not None:
            left = self._left(x, cut, canvas.inverse_temperature, link)
            forbid_(x, left)
            likely = within.clone()
            forbid_(likely, left)
            within = likely.where(likely.amax(-1, keepdim=True) > -torch.inf, within)
        within = self._passed(within, uniform)
        draw = within.draw.where(drawn < factors.shape[1] - 1, posterior.pad)
        self._sent = self._passed(x, uniform).packed()
        host = link.to_host(torch.cat((self._sent, draw.int()[:, None]), dim=1))
        found = VocabPass.unpacked(host[:, :-1].contiguous())
        self.found, self._logits = found._replace(draw=host[:, -1].long()), x

    def distributions(self, link: Link) -> Distributions:
        """Of `rows`, in their order."""
        every, heat = torch.ones(len(self.rows), dtype=torch.bool), torch.ones(len(self.rows))
        none = torch.empty(0, dtype=torch.int64)
        more = every, self._logits, heat, None, None, link
        return distributions(self.found, self._sent, (none, none), *more)

    def _left(
        self, x: Float32[Tensor, "m V"], cut: Cut, inverse_temperature: float, link: Link
    ) -> Int32[Tensor, "m W"]:
        """Return the masks of what a cut leaves. Its probabilities are as warm as it says."""
        heat, cuts = columns([cut] * len(x))
        heat, *sent = link.to_device(heat / inverse_temperature, *cuts)
        return cut_masks(x, heat, Cuts(*sent), by_kernel=self._by_kernel).bitmask

    def _passed(self, x: Float32[Tensor, "m V"], uniform: Float32[Tensor, " m"]) -> VocabPass:
        """Of logits that are heated already."""
        options = {"threshold": THRESHOLD, "k": CANDIDATES, "by_kernel": self._by_kernel}
        return vocab_pass(x, torch.ones_like(uniform), uniform, **options)
