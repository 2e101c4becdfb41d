"""Sums over classes of tokens: what forward-backward over an automaton asks of a step's logits.

The vocabulary's rows are reduced where they are, so that `[n, C]` numbers leave the device instead
of `[n, V]`. Tokens that no state of the automaton takes are not even read: of a choice, that is
nearly all of them. Plain torch on every device: three scatters over the tokens that count.

Shapes: `n` rows of `V` logits, `m` tokens that count, `C` classes.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float, Float32, Int32, Int64
from torch import Tensor

from dlm.kernels.vocab_rows import heated

_CPU_BLOCK, _GPU_BLOCK = 1 << 20, 1 << 24  # numbers at a time, of which there are five copies


class Members(NamedTuple):
    """The tokens that count, and the classes that they belong to."""

    tokens: Int64[Tensor, " m"]
    classes: Int64[Tensor, " m"]


class ClassPass(NamedTuple):
    """By row and class. A class without tokens that count: -inf, and -1."""

    mass: Float[Tensor, "n C"]  # log of the sum of e^x over its tokens; x is a heated logit
    top: Float[Tensor, "n C"]  # the highest x
    best: Int64[Tensor, "n C"]  # the lowest token of that x

    def packed(self) -> Int32[Tensor, "n 3*C"]:
        """All of it as one tensor, fp32 numbers by their bits; `unpacked` reads it."""
        mass, top, best = self
        return torch.cat((mass.view(torch.int32), top.view(torch.int32), best.int()), dim=1)

    @classmethod
    def unpacked(cls, packed: Int32[Tensor, "n 3*C"]) -> "ClassPass":
        mass, top, best = packed.chunk(3, dim=1)
        return cls(mass.view(torch.float32), top.view(torch.float32), best.long())


def class_pass_reference(
    logits: Float[Tensor, "n V"],
    inverse_temperature: Float32[Tensor, " n"],
    members: Members,
    count: int,
    softcap: float | None = None,
) -> ClassPass:
    """What `class_pass` means: in fp64, class by class."""
    x = logits.double()
    if softcap is not None:
        x = softcap * torch.tanh(x / softcap)
    x = x.masked_fill(logits.isneginf(), -torch.inf) * inverse_temperature.double()[:, None]
    mass, best = torch.full((2, len(x), count), -torch.inf, dtype=x.dtype, device=x.device)
    top, best = mass.clone(), best.fill_(-1).long()
    for label in members.classes.unique().tolist():
        tokens = members.tokens[members.classes == label].sort().values
        mass[:, label] = x[:, tokens].logsumexp(-1)
        top[:, label], at = x[:, tokens].max(-1)
        best[:, label] = tokens[at].where(top[:, label] > -torch.inf, -1)
    return ClassPass(mass, top, best)


def class_pass(
    logits: Float[Tensor, "n V"],
    inverse_temperature: Float32[Tensor, " n"],
    members: Members,
    count: int,
    softcap: float | None = None,
) -> ClassPass:
    """`class_pass_reference` in fp32, for tensors on one device.

    A logit counts as in `vocab_pass`. Reads `n * m` logits and, on a GPU, adds them in any order:
    a sum may differ in its last bits from one call to the next. Classes are 0 to `count - 1`.
    """
    n, size = len(logits), _CPU_BLOCK if logits.device.type == "cpu" else _GPU_BLOCK
    size = max(1, size // max(1, len(members.tokens)))
    parts = [
        _reduced(
            logits[at : at + size], inverse_temperature[at : at + size], members, count, softcap
        )
        for at in range(0, max(1, n), size)
    ]
    return ClassPass(*(torch.cat(column) for column in zip(*parts, strict=True)))


def _reduced(
    logits: Tensor, heat: Tensor, members: Members, count: int, softcap: float | None
) -> ClassPass:
    x = heated(logits[:, members.tokens], heat, softcap)
    (n, V), of = logits.shape, members.classes.expand(len(x), -1)
    top = x.new_full((n, count), -torch.inf).scatter_reduce_(1, of, x, "amax")
    shift = top.masked_fill(top.isneginf(), 0)
    sums = x.new_zeros(n, count).scatter_add_(1, of, (x - shift.gather(1, of)).exp_())
    highest = (x == top.gather(1, of)) & (x > -torch.inf)
    tokens = members.tokens.where(highest, V)
    best = of.new_full((n, count), V).scatter_reduce_(1, of, tokens, "amin")
    return ClassPass(sums.log_().add_(shift), top, best.masked_fill_(best == V, -1))
