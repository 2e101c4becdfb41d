"""What the vocabulary pass is given and gives, row by row; and what a logit counts as.

Shapes: `n` rows of `V` logits, `M` masks of `W` words, W * 32 >= V; `K` candidates at most.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float, Float32, Int32, Int64
from torch import Tensor

_HUGE = 3e38  # added to any logit but -inf, it is more than a softcap
_LEAST = -80.0  # torch's exp is slow where it underflows, and 1 + e^-80 is 1


class Masks(NamedTuple):
    """Which tokens each of n rows may take.

    Bit `v % 32` of word `v // 32` says whether token v is allowed, as in xgrammar's masks; bits
    behind the vocabulary mean nothing.
    """

    bitmask: Int32[Tensor, "M W"]
    rows: Int64[Tensor, " n"]  # which row of `bitmask` counts; -1: any token is allowed


class VocabPass(NamedTuple):
    """Of a row that may take no token: lse -inf, argmax and draw -1, no `ids`, and all else 0."""

    lse: Float[Tensor, " n"]  # log of the sum of e^x over allowed tokens; x is a heated logit
    entropy: Float[Tensor, " n"]  # nats
    argmax: Int64[Tensor, " n"]  # of the allowed logits; of equals, the lowest token
    draw: Int64[Tensor, " n"]  # the first token up to which there is more mass than `uniform`
    above: Int64[Tensor, " n"]  # tokens of probability `threshold` or more; K + 1: more than K
    tail: Float[Tensor, " n"]  # probability of all others; 1 if `above` is K + 1
    ids: Int32[Tensor, "n K"]  # those above, ascending, then -1; arbitrary if they are K + 1
    logits: Float[Tensor, "n K"]  # theirs, as they were given; then 0

    def packed(self) -> Int32[Tensor, "n 6+2*K"]:
        """All of it as one tensor, fp32 numbers by their bits; `unpacked` reads it."""
        columns = (x.view(torch.int32) if x.is_floating_point() else x.int() for x in self)
        return torch.cat([x if x.ndim == 2 else x[:, None] for x in columns], dim=1)

    @classmethod
    def unpacked(cls, packed: Int32[Tensor, "n 6+2*K"]) -> "VocabPass":
        """Views of `packed`, but for what is int64."""
        k, floats = (packed.shape[1] - 6) // 2, packed.view(torch.float32)
        lse, entropy, tail = floats[:, 0], floats[:, 1], floats[:, 5]
        argmax, draw, above = packed[:, 2:5].long().unbind(1)
        ids, logits = packed[:, 6 : 6 + k], floats[:, 6 + k :]
        return cls(lse, entropy, argmax, draw, above, tail, ids, logits)

    @classmethod
    def certain(cls, tokens: Int64[Tensor, " n"], k: int) -> "VocabPass":
        """Of rows that allow one token each; their lse is that of a logit of 0."""
        ids = torch.full((len(tokens), k), -1, dtype=torch.int32)
        ids[:, 0] = tokens
        lse, entropy, tail = torch.zeros(3, len(tokens))
        argmax, draw, above = tokens.clone(), tokens.clone(), torch.ones_like(tokens)
        return cls(lse, entropy, argmax, draw, above, tail, ids, torch.zeros(len(tokens), k))


def heated(
    logits: Float[Tensor, "n m"],
    inverse_temperature: Float32[Tensor, " n"],
    softcap: float | None,
) -> Float32[Tensor, "n m"]:
    """What logits count as: softcap * tanh(logits / softcap) * inverse_temperature; -inf stays.

    The tanh is 1 - 2 / (e^2x + 1). On a CPU torch's takes twice as long, and its sigmoid rounds the
    last numbers of a tensor otherwise than the rest: what a row is must not depend on others.
    """
    x, heat = logits.float(), inverse_temperature[:, None]
    if softcap is None:
        return x * heat
    capped = x.mul(2 / softcap).clamp_(min=_LEAST).exp_().add_(1).reciprocal_()
    capped.mul_(-2 * softcap).add_(softcap)
    if x.device.type != "cpu" or (x.numel() and x.amin(-1).isneginf().any()):
        capped = torch.minimum(capped, x + _HUGE)  # -inf stays; costs more than a look
    return capped.mul_(heat)
