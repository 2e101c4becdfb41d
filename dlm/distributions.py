"""From what a vocabulary pass lists of rows to distributions, for an expectation under them."""

import torch
from jaxtyping import Bool, Float, Float32, Int32, Int64
from torch import Tensor

from dlm.kernels.expectation import Distributions, Flat, Listed
from dlm.kernels.vocab_rows import Masks, VocabPass, heated
from dlm.link import Link

_TAIL = 1e-4  # probability that may be missing in the list of a row's tokens


def distributions(
    found: VocabPass,
    sent: Int32[Tensor, "n packed"],
    named: tuple[Int64[Tensor, " m"], Int64[Tensor, " m"]],
    counted: Bool[Tensor, " n"],
    logits: Float[Tensor, "n V"],
    heat: Float32[Tensor, " n"],
    softcap: float | None,
    masks: Masks | None,
    link: Link,
) -> Distributions:
    """Return those of the rows of `logits` that are `counted`.

    `sent` is what was `found`, packed and on the device, but for rows that are `named`, which take
    one token each: here it gets them. All but `sent`, `logits` and a bitmask is on the host. `heat`
    are inverse temperatures. What is left out of a list has a probability of 1e-4 at most.
    """
    short = found.tail <= _TAIL
    rows, flat = (short & counted).nonzero()[:, 0], (~short & counted).nonzero()[:, 0]
    above = found.above[rows]
    begins, count = above.cumsum(0) - above, int(above.sum())
    theirs = torch.full_like(flat, -1) if masks is None else masks.rows[flat]
    of_rows = rows, above, begins, heat[rows], found.lse[rows]
    of_flat = flat, theirs, heat[flat], found.lse[flat]
    moved = link.to_device(*of_rows, *of_flat, *named)
    rows, above, begins, row_heat, row_lse = moved[:5]
    flat, theirs, flat_heat, lse, named_rows, named_tokens = moved[5:]
    if len(named_rows):
        sent[named_rows] = VocabPass.certain(named_tokens, found.ids.shape[1]).packed()
    on_device = VocabPass.unpacked(sent)
    # Of each token that is listed: which of `rows` has it, and where.
    of = torch.repeat_interleave(above, output_size=count)
    row, at = rows[of], torch.arange(count, device=of.device) - begins[of]
    x = heated(on_device.logits[row, at][:, None], row_heat[of], softcap)[:, 0]
    tokens, probs, offsets = on_device.ids[row, at], (x - row_lse[of]).exp(), begins.int()
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
