"""Picks: a token for each row of logits, the likeliest of those allowed, or one that is drawn."""

from collections import abc

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from dlm.grammar import Row
from dlm.kernels.vocab import vocab_pass
from dlm.kernels.vocab_cut import Cuts, cut_masks
from dlm.kernels.vocab_rows import RowMasks
from dlm.logits.canvas_logits import DeviceCopies
from dlm.logits.sampling import COLDEST, Cut, columns

UNDEFINED = -2
"""Pick of a row whose logits are NaN or infinite."""


def pick(
    logits: Float[Tensor, "n V"],
    rows: abc.Sequence[Row],
    uniform: abc.Sequence[float],
    temperatures: abc.Sequence[float],
    softcap: float | None,
    copies: DeviceCopies,
    by_kernel: bool | None = None,
    cuts: abc.Sequence[Cut | None] = (),
) -> list[int]:
    """Return a token for each of the n rows; -1 if the logits leave none, and `UNDEFINED` if they
    are NaN or infinite.

    `rows[i]` is a mask, None if every token is allowed, or ~token if only that one is; then its
    logits are not read. `uniform[i]`, in [0, 1), decides what is drawn. At a temperature of 0 the
    likeliest token is taken, the lowest of equals. `cuts` holds the cut of each row, if there are
    any.
    """
    picks = [~row if isinstance(row, int) else -1 for row in rows]
    read = [i for i, row in enumerate(rows) if not isinstance(row, int)]
    if not read:
        return picks
    temperature = torch.tensor([float(temperatures[i]) for i in read])
    drawn = temperature > 0
    heat = torch.where(drawn, 1 / temperature.clamp(min=COLDEST), 1.0)
    numbers = heat, torch.tensor([uniform[i] for i in read]), torch.tensor(read), drawn
    words = [row.view(np.int32) for i in read if isinstance(row := rows[i], np.ndarray)]
    masks = None
    if words:
        free = torch.tensor([rows[i] is None for i in read])
        places = torch.where(free, -1, (~free).cumsum(0) - 1)
        *numbers, bitmask, places = copies.to_device(
            *numbers, torch.from_numpy(np.stack(words)), places
        )
        masks = RowMasks(bitmask, places)
    else:
        numbers = copies.to_device(*numbers)
    heat, drawn_by, places, drawn = numbers
    cut = [
        (place, row_cut)
        for place, i in enumerate(read)
        if cuts and (row_cut := cuts[i]) is not None
    ]
    if cut:
        masks = _cut_rows(logits, places, masks, cut, softcap, copies, by_kernel)
    options = {"softcap": softcap, "by_kernel": by_kernel}
    results = vocab_pass(logits, heat, drawn_by, masks, places, k=0, **options)
    tokens = torch.where(drawn, results.draw, results.argmax)
    tokens = copies.to_host(tokens.masked_fill(results.lse.isnan(), UNDEFINED)).tolist()
    for i, token in zip(read, tokens, strict=True):
        picks[i] = token
    return picks


def _cut_rows(
    logits: Float[Tensor, "n V"],
    rows: Int64[Tensor, " r"],
    masks: RowMasks | None,
    cut: abc.Sequence[tuple[int, Cut]],
    softcap: float | None,
    copies: DeviceCopies,
    by_kernel: bool | None,
) -> RowMasks:
    """Return the masks of `rows` after `cut` was applied: pairs of an index into `rows` and its
    cut."""
    heat, cuts = columns([row_cut for _, row_cut in cut])
    at = torch.tensor([place for place, _ in cut])
    at, heat, *columns_sent = copies.to_device(at, heat, *cuts)
    chosen = None if masks is None else RowMasks(masks.bitmask, masks.rows[at])
    options = {"softcap": softcap, "by_kernel": by_kernel}
    remaining = cut_masks(logits, heat, Cuts(*columns_sent), chosen, rows[at], **options)
    if masks is None:
        bitmask, of = remaining.bitmask, torch.full_like(rows, -1)
    else:
        words = remaining.bitmask.shape[1]
        bitmask, of = torch.cat((masks.bitmask[:, :words], remaining.bitmask)), masks.rows.clone()
    of[at] = remaining.rows + (len(bitmask) - len(remaining.bitmask))
    return RowMasks(bitmask, of)
