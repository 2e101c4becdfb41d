"""Rows at which a constraint refused the model's choice in the pass before.

The next pass reads them twice: without a mask, as all rows, and under their masks. A refusal comes
again as long as the model does not change its mind: then its candidates are there already, without
a search, and the row need not be read again.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Int32, Int64
from torch import Tensor

from dlm.grammar import Guidance
from dlm.kernels.vocab_rows import RowMasks, VocabPass
from dlm.logits.canvas_logits import DeviceCopies, UnderMask
from dlm.logits.masks import MaskTable


class RefusedRow(NamedTuple):
    """Position of a canvas at which the model's choice was refused, and the mask there."""

    position: int
    bitmask: Int32[Tensor, "masks words"]
    mask: int  # a row of `bitmask`

    @classmethod
    def of(cls, guidance: Guidance) -> "RefusedRow | None":
        if guidance.refusal is None or guidance.bitmask is None:
            return None
        position, mask = guidance.refusal
        return cls(int(position), guidance.bitmask, int(mask))

    @property
    def words(self) -> np.ndarray:
        """The allowed tokens as packed bits."""
        return self.bitmask[self.mask].numpy().view(np.uint32)


Read = Callable[[Int64[Tensor, " r"], RowMasks], Int32[Tensor, "r packed"]]
"""Reads rows of a step's logits under masks; returns packed results. All are on the device."""


class RefusedRows:
    """Refused rows of a step, at most one of each canvas, read under their masks."""

    def __init__(
        self,
        by_canvas: Mapping[int, RefusedRow],
        begins: Sequence[int],
        table: MaskTable,
        copies: DeviceCopies,
        read: Read,
    ):
        """`begins` are the rows of the step's logits at which the canvases begin for their
        constraints. Masks that are not in `table` are sent by `copies`."""
        self._by_canvas, self._table = by_canvas, table
        rows = [begins[i] + row.position for i, row in by_canvas.items()]
        self.rows: Int64[Tensor, " r"] = torch.tensor(rows, dtype=torch.int64)
        if not by_canvas:
            return
        places = table.place([(row.bitmask, [row.mask]) for row in by_canvas.values()], copies)
        self._masks, self._age = torch.tensor(places), table.age
        rows, masks = copies.to_device(self.rows, self._masks)
        self.sent = read(rows, RowMasks(table.bitmask, masks))  # results, on the device
        self.results = VocabPass.unpacked(copies.to_host(self.sent))

    @property
    def under_masks(self) -> dict[int, UnderMask]:
        """The rows by canvas, as its constraint queries them."""
        return {
            i: UnderMask(row.position, row.words, self.results, at)
            for at, (i, row) in enumerate(self._by_canvas.items())
        }

    def again(self, masks: Int64[Tensor, " n"]) -> Int64[Tensor, " a"]:
        """Return which of the refused rows have the same mask in this step, if `masks` are rows of
        the table for all rows of the step."""
        if not self._by_canvas or self._table.age != self._age:
            return torch.empty(0, dtype=torch.int64)
        return (masks[self.rows] == self._masks).nonzero()[:, 0]
