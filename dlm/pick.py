"""Which token comes next, row by row: the likeliest that is allowed, or one that is drawn."""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from dlm.cuts import Cut, columns
from dlm.grammar import Row
from dlm.kernels.vocab import vocab_pass
from dlm.kernels.vocab_cut import Cuts, cut_masks
from dlm.kernels.vocab_rows import Masks
from dlm.link import Link
from dlm.sampling import COLDEST


def pick(
    logits: Float[Tensor, "n V"],
    rows: Sequence[Row],
    uniform: Sequence[float],
    temperatures: Sequence[float],
    softcap: float | None,
    link: Link,
    by_kernel: bool | None = None,
    cuts: Sequence[Cut | None] = (),
) -> list[int]:
    """A token for each of the n rows; -1 where the logits leave none.

    `rows[i]` says what row i may take; what one names is not read. `uniform[i]` is the number in
    [0, 1) that it is drawn by; where `temperatures[i]` is 0 the likeliest is taken, the lowest of
    equals. `cuts`, where there are some, are those of the rows.
    """
    picks = [~row if isinstance(row, int) else -1 for row in rows]
    read = [i for i, row in enumerate(rows) if not isinstance(row, int)]
    if not read:
        return picks
    warm = torch.tensor([float(temperatures[i]) for i in read])
    drawn = warm > 0
    heat = torch.where(drawn, 1 / warm.clamp(min=COLDEST), 1.0)
    numbers = heat, torch.tensor([uniform[i] for i in read]), torch.tensor(read), drawn
    words = [row.view(np.int32) for i in read if isinstance(row := rows[i], np.ndarray)]
    masks = None
    if words:
        free = torch.tensor([rows[i] is None for i in read])
        places = torch.where(free, -1, (~free).cumsum(0) - 1)
        *numbers, bitmask, places = link.to_device(
            *numbers, torch.from_numpy(np.stack(words)), places
        )
        masks = Masks(bitmask, places)
    else:
        numbers = link.to_device(*numbers)
    heat, drawn_by, places, drawn = numbers
    cut = [(place, one) for place, i in enumerate(read) if cuts and (one := cuts[i]) is not None]
    if cut:
        masks = _cut(logits, places, masks, cut, softcap, link, by_kernel)
    found = vocab_pass(
        logits, heat, drawn_by, masks, places, softcap=softcap, k=0, by_kernel=by_kernel
    )
    tokens = link.to_host(torch.where(drawn, found.draw, found.argmax)).tolist()
    for i, token in zip(read, tokens, strict=True):
        picks[i] = token
    return picks


def _cut(
    logits: Float[Tensor, "n V"],
    rows: Int64[Tensor, " r"],
    masks: Masks | None,
    cut: Sequence[tuple[int, Cut]],
    softcap: float | None,
    link: Link,
    by_kernel: bool | None,
) -> Masks:
    """Return the masks of `rows`, with those cut that `cut` names by their places in `rows`."""
    heat, cuts = columns([one for _, one in cut])
    at = torch.tensor([place for place, _ in cut])
    at, heat, *columns_sent = link.to_device(at, heat, *cuts)
    chosen = None if masks is None else Masks(masks.bitmask, masks.rows[at])
    options = {"softcap": softcap, "by_kernel": by_kernel}
    left = cut_masks(logits, heat, Cuts(*columns_sent), chosen, rows[at], **options)
    if masks is None:
        bitmask, of = left.bitmask, torch.full_like(rows, -1)
    else:
        words = left.bitmask.shape[1]
        bitmask, of = torch.cat((masks.bitmask[:, :words], left.bitmask)), masks.rows.clone()
    of[at] = left.rows + (len(bitmask) - len(left.bitmask))
    return Masks(bitmask, of)
