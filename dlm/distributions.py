"""From what a vocabulary pass lists of rows to distributions, for an expectation under them."""

from functools import partial

import torch
from jaxtyping import Bool, Float, Float32
from torch import Tensor

from dlm.kernels.expectation import Distributions, Flat, Listed
from dlm.kernels.vocab_rows import Masks, VocabPass, heated
from dlm.link import Link

_TAIL = 1e-4  # probability that may be missing in the list of a row's tokens


def distributions(
    found: VocabPass,
    counted: Bool[Tensor, " n"],
    logits: Float[Tensor, "n V"],
    heat: Float32[Tensor, " n"],
    softcap: float | None,
    masks: Masks | None,
    link: Link,
) -> Distributions:
    """Of those rows of `logits` that are `counted`; all but `logits` and a bitmask is on the host.

    `heat` are inverse temperatures. What is left out of a list has a probability of 1e-4 at most.
    """
    short = found.tail <= _TAIL
    rows, flat = (short & counted).nonzero()[:, 0], (~short & counted).nonzero()[:, 0]
    above = found.above[rows]
    most = int(above.max()) if len(rows) else 0
    listed = torch.arange(most) < above[:, None]
    tokens = found.ids[rows, :most].masked_select(listed)
    theirs = torch.full_like(flat, -1) if masks is None else masks.rows[flat]
    rows, above, offsets, tokens, kept, row_heat, row_lse, flat, theirs, flat_heat, lse = (
        link.to_device(
            rows,
            above,
            (above.cumsum(0) - above).int(),
            tokens,
            found.logits[rows, :most].masked_select(listed),
            heat[rows],
            found.lse[rows],
            flat,
            theirs,
            heat[flat],
            found.lse[flat],
        )
    )
    repeat = partial(torch.repeat_interleave, repeats=above, output_size=len(tokens))
    probs = (heated(kept[:, None], repeat(row_heat), softcap)[:, 0] - repeat(row_lse)).exp()
    return Distributions(
        n=len(found.lse),
        listed=Listed(rows=rows, offsets=offsets, tokens=tokens, probs=probs),
        flat=Flat(
            rows=flat,
            logits=logits,
            inverse_temperature=flat_heat,
            lse=lse,
            masks=None if masks is None else Masks(masks.bitmask, theirs),
            softcap=softcap,
        ),
    )
