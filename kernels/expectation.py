"""Expectations of a table's rows under the distributions that a vocabulary pass has found.

Most rows give nearly all of their mass to a few tokens, which are gathered and summed. For flat
rows the vocabulary is processed in pieces: probabilities are computed again from the logits and the
log-sum-exp, and multiplied by a piece of the table. No tensor as large as the logits is created.

The result of a row is the same, bit for bit, whatever rows are beside it (CPU, fp32): pieces and
blocks have fixed sizes, and products are padded to row counts that round alike.

Shapes: `n` distributions over `V` tokens, `s` of them listed, with `t` tokens in all, and `f` flat;
`N` rows of logits; a table of `D` columns.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Float32, Int32, Int64
from torch import Tensor
from torch.nn import functional as F

from dlm.kernels.nvfp4 import ROWS
from dlm.kernels.vocab_rows import RowMasks, forbid_, heated, mask_words

_CPU_PIECE = 1 << 6, 1 << 12  # rows and tokens at a time: 1 MiB of fp32
_GPU_PIECE = 1 << 10, 1 << 14  # 64 MiB; with fewer rows, more tokens
_LEAST = -80.0  # nats: torch's exp is slow when it underflows; smaller terms are negligible


@dataclass(frozen=True, kw_only=True)
class Listed:
    """Distributions over a few tokens each, one after another."""

    rows: Int64[Tensor, " s"]  # which of the n
    offsets: Int32[Tensor, " s"]  # where the tokens of each begin
    tokens: Int32[Tensor, " t"]
    probs: Float32[Tensor, " t"]


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
    """`n` distributions of tokens. One that is neither listed nor flat is empty."""

    n: int
    listed: Listed
    flat: Flat

    def expected(self, table: Float[Tensor, "V D"]) -> Float[Tensor, "n D"]:
        """Return the mean of the table's rows under each distribution, in the table's dtype.

        Probabilities are rounded to that dtype, and so is each piece's product; pieces are added in
        fp32. Mass that a list leaves out is left out of the mean, which is not rescaled: its error
        is at most that mass times the longest row of the table.
        """
        listed, out = self.listed, table.new_zeros(self.n, table.shape[1])
        if len(listed.rows):
            out[listed.rows] = F.embedding_bag(
                listed.tokens,
                table,
                listed.offsets,
                mode="sum",
                per_sample_weights=listed.probs.type_as(table),
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
