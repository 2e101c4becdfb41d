"""Expectations of a table's rows under the distributions that a vocabulary pass has found.

Most rows give nearly all of their mass to a few tokens, which are gathered and summed. For flat
rows the vocabulary is processed in pieces: probabilities are computed again from the logits and the
log-sum-exp, and multiplied by a piece of the table. No tensor as large as the logits is created.

The result of a row is the same, bit for bit, whatever rows are beside it (CPU, fp32): pieces and
blocks have fixed sizes, and products are padded to row counts that round alike.

Shapes: `n` distributions over `V` tokens, `c` of them certain, `s` listed, with `t` tokens in all,
and `f` flat; `N` rows of logits; a table of `D` columns.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Float32, Int32, Int64
from torch import Tensor
from torch.nn import functional as F

from dlm.kernels.gpus import ROWS
from dlm.kernels.vocab_rows import RowMasks, forbid_, heated, listed, mask_words

_CPU_PIECE = 1 << 6, 1 << 12  # rows and tokens at a time: 1 MiB of fp32
_GPU_PIECE = 1 << 10, 1 << 14  # 64 MiB; with fewer rows, more tokens
_LEAST = -80.0  # nats: torch's exp is slow when it underflows; smaller terms are negligible


@dataclass(frozen=True, kw_only=True)
class Certain:
    """Distributions that give all mass to one token each."""

    rows: Int64[Tensor, " c"]  # which of the n
    tokens: Int64[Tensor, " c"]


@dataclass(frozen=True, kw_only=True)
class Listed:
    """Distributions over the few tokens that a vocabulary pass lists."""

    rows: Int64[Tensor, " s"]  # which of the n, and of `found`
    found: Int32[Tensor, "n packed"]  # results of the pass, which must stay until they are used
    lengths: Int64[Tensor, " s"]  # number of tokens of each
    total: int  # t
    inverse_temperature: Float32[Tensor, " s"]
    lse: Float32[Tensor, " s"]
    softcap: float | None

    def tokens(self) -> tuple[Int32[Tensor, " t"], Float32[Tensor, " t"], Int64[Tensor, " s"]]:
        """Return tokens, their probabilities, and where those of each distribution begin."""
        offsets = self.lengths.cumsum(0) - self.lengths
        own = torch.repeat_interleave(self.lengths, output_size=self.total)
        places = torch.arange(self.total, device=own.device) - offsets[own]
        ids, logits = listed(self.found, self.rows[own], places)
        x = heated(logits[:, None], self.inverse_temperature[own], self.softcap)[:, 0]
        return ids, (x - self.lse[own]).exp(), offsets


@dataclass(frozen=True, kw_only=True)
class Flat:
    """Distributions over the whole vocabulary, from `logits`."""

    rows: Int64[Tensor, " f"]  # which of the n, and of `logits`
    logits: Float[Tensor, "N V"]
    inverse_temperature: Float32[Tensor, " f"]
    lse: Float32[Tensor, " f"]
    masks: RowMasks | None
    softcap: float | None


@dataclass(frozen=True, kw_only=True)
class Distributions:
    """`n` distributions of tokens. One that is not certain, listed or flat is empty."""

    n: int
    certain: Certain
    listed: Listed
    flat: Flat

    def expected(self, table: Float[Tensor, "V D"]) -> Float[Tensor, "n D"]:
        """Return the mean of the table's rows under each distribution, in the table's dtype.

        Probabilities are rounded to that dtype, and so is each piece's product; pieces are added in
        fp32. Mass that a list leaves out is left out of the mean, which is not rescaled: its error
        is at most that mass times the longest row of the table.
        """
        out = table.new_zeros(self.n, table.shape[1])
        if len(self.certain.rows):
            out[self.certain.rows] = table[self.certain.tokens]
        if len(self.listed.rows):
            tokens, probs, offsets = self.listed.tokens()
            weights = probs.type_as(table)
            out[self.listed.rows] = F.embedding_bag(
                tokens, table, offsets.int(), mode="sum", per_sample_weights=weights
            )
        size, tokens = _CPU_PIECE if table.device.type == "cpu" else _GPU_PIECE
        for begin in range(0, len(self.flat.rows), size):
            some = slice(begin, begin + size)
            rows = self.flat.rows[some]
            if table.device.type != "cpu":
                tokens = size * _GPU_PIECE[1] // len(rows) // 32 * 32
            out[rows] = _walked(self.flat, some, table, tokens).type_as(table)
        return out


def _walked(
    flat: Flat, some: slice, table: Float[Tensor, "V D"], size: int
) -> Float32[Tensor, "m D"]:
    """Return the means of flat rows, by `size` tokens at a time."""
    rows, (V, D) = flat.rows[some], table.shape
    more = -len(rows) % ROWS
    out = torch.zeros(len(rows) + more, D, device=table.device)
    for begin in range(0, V, size):
        piece = slice(begin, min(begin + size, V))
        p = F.pad(_probabilities(flat, some, piece), (0, 0, 0, more))
        out += p.type_as(table) @ table[piece]
    return out[: len(rows)]


def _probabilities(flat: Flat, some: slice, piece: slice) -> Float32[Tensor, "m tokens"]:
    """Return probabilities of a piece of the vocabulary in some flat rows; 2e-35 instead of 0."""
    x = flat.logits[flat.rows[some], piece].float()
    if flat.masks:
        bitmask, rows = flat.masks
        words = bitmask[:, piece.start // 32 : -(-piece.stop // 32)]
        forbid_(x, mask_words(words, rows[some]))
    x = heated(x, flat.inverse_temperature[some], flat.softcap)
    return x.sub_(flat.lse[some, None]).clamp_(min=_LEAST).exp_()
