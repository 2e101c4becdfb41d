"""Token distributions of a step, position by position: all its decisions are made from them.

The logits are read once, and the host gets its part of the results in one copy, beside those of
rows that constraints refused in the last pass. After the constraints were queried, rows that they
change are read again under their masks. A row that may take only one token is not read again.

Shapes: `B` canvases of `L` positions, `B * L` rows of `V` logits.
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from jaxtyping import Bool, Float, Float32, Int32, Int64
from torch import Tensor

from dlm.grammar import Guidance
from dlm.kernels.expectation import Certain, Distributions, Flat, Listed
from dlm.kernels.vocab import vocab_pass
from dlm.kernels.vocab_cut import Cuts, cut_masks
from dlm.kernels.vocab_rows import RowMasks, VocabPass, heated
from dlm.logits import sampling
from dlm.logits.canvas_logits import CANDIDATES, THRESHOLD, CanvasLogits, DeviceCopies, HostRows
from dlm.logits.masks import MaskedRows, MaskTable, alone, changed_by_masks, checked_rows
from dlm.logits.refused import RefusedRow, RefusedRows
from dlm.logits.sampling import Cut, columns
from dlm.logits.token_logprobs import token_logprobs
from dlm.logprobs import TokenLogprob

_TAIL = 1e-4  # probability that may be missing in a row's list of tokens
_ANY = np.iinfo(np.int64).max  # a row that no constraint restricts


def distributions(
    results: VocabPass,
    sent: Int32[Tensor, "n packed"],
    certain: tuple[Int64[Tensor, " c"], Int64[Tensor, " c"]],
    counted: Bool[Tensor, " n"],
    logits: Float[Tensor, "n V"],
    heat: Float32[Tensor, " n"],
    softcap: float | None,
    masks: RowMasks | None,
    copies: DeviceCopies,
) -> Distributions:
    """Return the distributions of the rows of `logits` that are `counted` or `certain`, for an
    expectation under them.

    `results` are those of the vocabulary pass; `sent` are the same results, packed and on the
    device. `certain` are rows that are given one token each, and these tokens: they are not
    `counted`. `heat` are inverse temperatures. All but `sent`, `logits` and a bitmask is on the
    host. A list may leave out a probability of 1e-4 at most.
    """
    short = results.tail <= _TAIL
    rows, flat = (short & counted).nonzero()[:, 0], (~short & counted).nonzero()[:, 0]
    lengths = results.above[rows]
    theirs = torch.full_like(flat, -1) if masks is None else masks.rows[flat]
    of_rows = rows, lengths, heat[rows], results.lse[rows]
    of_flat = flat, theirs, heat[flat], results.lse[flat]
    total, sent_columns = int(lengths.sum()), copies.to_device(*of_rows, *of_flat, *certain)
    rows, lengths, row_heat, row_lse = sent_columns[:4]
    flat, theirs, flat_heat, lse, certain_rows, certain_tokens = sent_columns[4:]
    return Distributions(
        n=len(results.lse),
        certain=Certain(rows=certain_rows, tokens=certain_tokens),
        listed=Listed(
            rows=rows,
            found=sent,
            lengths=lengths,
            total=total,
            inverse_temperature=row_heat,
            lse=row_lse,
            softcap=softcap,
        ),
        flat=Flat(
            rows=flat,
            logits=logits,
            inverse_temperature=flat_heat,
            lse=lse,
            masks=None if masks is None else RowMasks(masks.bitmask, theirs),
            softcap=softcap,
        ),
    )


class TokenDistributions:
    """Token distributions of canvases, unmasked at first. `restrict` notes what a constraint allows
    on one canvas; `mask` applies all of these."""

    def __init__(
        self,
        logits: Float[Tensor, "B L V"],
        temperatures: list[float],
        uniform: Float32[Tensor, "B L"],
        softcap: float | None,
        table: MaskTable,
        by_kernel: bool | None = None,
        cuts: Sequence[Cut | None] = (),
        skipped: Sequence[int] = (),
        refused: Sequence[RefusedRow | None] = (),
    ):
        """`logits` are the model's, before softcap and temperature. `temperatures` has one for each
        canvas, and `uniform` a number in [0, 1) for each position to draw by. Of canvas `i`,
        constraints read and restrict the positions after the first `skipped[i]`, by default all.
        `refused` has a row of each canvas that is read under its mask, too.

        `by_kernel` is that of `vocab_pass`. `cuts` has one for each canvas. They are
        applied under the masks: constraints query whole distributions.
        """
        (self._B, self._L, self._V), self._softcap = logits.shape, softcap
        self._logits, self._table = logits, table
        self._by_kernel = by_kernel
        self._uniform, self.copies = uniform.flatten(), DeviceCopies(logits.device)
        self._heat = (1 / torch.tensor(temperatures)).repeat_interleave(self._L)
        (self._sent_heat,) = self.copies.to_device(self._heat)
        self._skipped = list(skipped) or [0] * self._B
        self._cuts = {i: cut for i, cut in enumerate(cuts) if cut is not None}
        self._sent = self._passed(self._sent_heat, self._uniform, None, None)
        self._refused = RefusedRows(
            {i: row for i, row in enumerate(refused) if row is not None},
            [i * self._L + skip for i, skip in enumerate(self._skipped)],
            table,
            self.copies,
            self._read,
        )
        self._results = VocabPass.unpacked(self.copies.to_host(self._sent))
        self._certain: list[tuple[Tensor, Tensor]] = []  # rows and their tokens
        self._masks = torch.full((self._B * self._L,), -1)  # `table` rows, of rows read again
        # By row: a row of its canvas's bitmask, ~token, or `_ANY`; and a token that is allowed.
        self._allowed = np.full(self._B * self._L, _ANY)
        self._guess = np.zeros(self._B * self._L, dtype=np.int64)
        self._bitmasks: dict[int, Tensor] = {}  # by canvas
        # By canvas: rows to be read again, and their masks.
        self._reread: list[tuple[np.ndarray, Tensor, np.ndarray]] = []
        self._excluded: list[int] = []  # canvases
        self._under_cut: list[tuple[np.ndarray, Cut]] = []  # rows that are read again under a cut
        self._bitmask = table.bitmask  # the one that `_masks` points to

    def undefined(self, i: int) -> bool:
        """Return whether a row of canvas `i` has an allowed logit that is NaN or infinite."""
        return bool(self._results.lse[i * self._L : (i + 1) * self._L].isnan().any())

    @property
    def entropies(self) -> Float32[Tensor, "B L"]:
        """Entropies in nats; infinite where no token is possible."""
        impossible = self._results.argmax < 0
        return self._results.entropy.masked_fill(impossible, torch.inf).view(self._B, self._L)

    @property
    def confidences(self) -> Float32[Tensor, "B L"]:
        """Probability of the likeliest token; 0 where no token is possible."""
        results, rows = self._results, torch.arange(self._B * self._L)
        best = results.argmax.clamp(min=0)
        logits = results.logits.where(results.ids == best[:, None], 0.0).sum(1)
        unlisted = rows[results.above > CANDIDATES]
        if len(unlisted):
            at, tokens = self.copies.to_device(unlisted, best[unlisted])
            logits[unlisted] = self.copies.to_host(self._logits.flatten(0, 1)[at, tokens].float())
        x = heated(logits[:, None], self._heat, self._softcap)[:, 0]
        confidences = (x - results.lse).exp().masked_fill(results.argmax < 0, 0.0)
        return confidences.view(self._B, self._L)

    def draws(self, temperatures: list[float]) -> Int64[Tensor, "B L"]:
        """Return a token for every position; an arbitrary one where none is possible.
        `temperatures` has one for each canvas, on top of its own. Below 1 a listed token is drawn,
        at 0 the likeliest. A row without a list is drawn from at 1."""
        drawn = self._results.draw.clamp(0, self._V - 1)
        sharp = torch.tensor(temperatures).repeat_interleave(self._L)
        rows = ((sharp < 1) & (self._results.argmax >= 0)).nonzero()[:, 0]
        if len(rows):
            drawn[rows] = self._sharpened(rows, sharp[rows])
        return drawn.view(self._B, self._L)

    def _sharpened(self, rows: Tensor, temperatures: Tensor) -> Tensor:
        results = self._results
        most = max(1, int(results.above[rows].clamp(max=CANDIDATES).max()))
        x = heated(results.logits[rows, :most], self._heat[rows], self._softcap)
        listed = torch.arange(most) < results.above[rows, None]
        uniform = self.copies.to_host(self._uniform)[rows]
        at = sampling.sharpen(x.masked_fill(~listed, -torch.inf), temperatures, uniform)
        chosen = results.ids[rows].gather(1, at[:, None])[:, 0].long()
        named = (results.above[rows] >= 1) & (results.above[rows] <= CANDIDATES)
        chosen = torch.where(named, chosen, results.draw[rows])
        return torch.where(temperatures == 0, results.argmax[rows], chosen)

    def scores(self) -> list[CanvasLogits]:
        """Return the logits of each canvas for its constraint. They hold until `mask`."""
        rows, L, device = HostRows.of(self._results, self._V), self._L, self._logits.device
        canvases = zip(self._logits, self._heat[::L].tolist(), self._skipped, strict=True)
        under_masks = self._refused.under_masks
        return [
            CanvasLogits(
                rows.between(i * L + skip, (i + 1) * L),
                logits[skip:],
                heat,
                self._softcap,
                DeviceCopies(device),
                under_masks.get(i),
            )
            for i, (logits, heat, skip) in enumerate(canvases)
        ]

    def restrict(self, i: int, guidance: Guidance) -> None:
        """Restrict the leading positions of canvas `i` to what `guidance` allows. Raises
        `ValueError`, and does nothing, for guidance that does not fit the canvas."""
        length, begin = self._L - self._skipped[i], i * self._L + self._skipped[i]
        masks = checked_rows(guidance, length, self._V)
        guess = np.array(guidance.guess[: len(masks)], dtype=np.int64)
        restricted = slice(begin, begin + len(masks))
        self._allowed[restricted], self._guess[restricted] = masks, guess
        if guidance.bitmask is not None:
            self._bitmasks[i] = guidance.bitmask
        if (cut := self._cuts.get(i)) is not None:
            several = np.flatnonzero(masks >= 0)  # rows that no constraint restricts come after
            rows = begin + np.concatenate((several, np.arange(len(masks), length)))
            self._under_cut.append((rows, cut))

    def logprobs(
        self, i: int, positions: Sequence[int], tokens: Sequence[int], top: int
    ) -> list[TokenLogprob]:
        """Return the log-probabilities of `tokens` at `positions` of canvas `i`, those that its
        constraint reads, without masks, cuts and temperature."""
        logits = self._logits[i, self._skipped[i] :]
        return token_logprobs(logits, positions, tokens, top, self._softcap, self.copies)

    def exclude(self, i: int) -> None:
        """Leave canvas `i` out of `distributions`."""
        self._excluded.append(i)

    def mask(self) -> None:
        """Apply all masks, and read the rows again that they change."""
        self._sort_rows()
        self._under_cut = [(rows, cut) for rows, cut in self._under_cut if len(rows)]
        again = [rows for rows, *_ in (*self._reread, *self._under_cut)]
        if not again:
            return
        if self._reread:
            grammar_rows = [(bitmask, masks.tolist()) for _, bitmask, masks in self._reread]
            changed = torch.from_numpy(np.concatenate([rows for rows, _, _ in self._reread]))
            self._masks[changed] = torch.tensor(self._table.place(grammar_rows, self.copies))
            self._bitmask = self._table.bitmask
        if self._under_cut:
            self._make_cuts()
        reread = torch.from_numpy(np.unique(np.concatenate(again)))
        if self._reread:
            reread = self._adopt(reread)
        if not len(reread):
            return
        sent_rows, sent_masks = self.copies.to_device(reread, self._masks[reread])
        passed = self._read(sent_rows, RowMasks(self._bitmask, sent_masks))
        self._sent[sent_rows] = passed
        self._replace(reread.numpy(), VocabPass.unpacked(self.copies.to_host(passed)))

    def _sort_rows(self) -> None:
        """Name the token of each row that takes one, and note which rows their masks change."""
        named = np.flatnonzero(self._allowed < 0)
        if len(named):
            self._name(named, ~self._allowed[named])
        several = (self._allowed >= 0) & (self._allowed < _ANY)
        if not several.any():
            return
        doubtful = ~alone(self._results, self._guess)
        for i in self._cuts:
            doubtful[i * self._L : (i + 1) * self._L] = True
        rows = np.flatnonzero(doubtful & several)
        if not len(rows):
            return
        bounds = np.searchsorted(rows, self._L * np.arange(self._B + 1)).tolist()
        parts = [(i, begin, end) for i, (begin, end) in enumerate(pairwise(bounds)) if begin < end]
        masked = [
            MaskedRows(rows[begin:end], self._bitmasks[i], self._allowed[rows[begin:end]])
            for i, begin, end in parts
        ]
        changed = changed_by_masks(self._results, masked)
        for (i, begin, end), (part, bitmask, masks) in zip(parts, masked, strict=True):
            again = changed[begin:end] | (i in self._cuts)
            if again.any():
                self._reread.append((part[again], bitmask, masks[again]))

    def _adopt(self, rows: Int64[Tensor, " n"]) -> Int64[Tensor, " m"]:
        """Take the results that were read for refused rows whose masks have come again; return
        which of `rows` are still to be read. Rows under a cut have other masks."""
        at = self._refused.again(self._masks)
        adopted = self._refused.rows[at]
        if not len(adopted):
            return rows
        self._replace(adopted.numpy(), VocabPass(*(column[at] for column in self._refused.results)))
        sent_rows, sent_at = self.copies.to_device(adopted, at)
        self._sent[sent_rows] = self._refused.sent[sent_at]
        return rows[~torch.isin(rows, adopted)]

    def _make_cuts(self) -> None:
        """Make masks for rows with cuts, after those of the table."""
        rows = torch.from_numpy(np.concatenate([rows for rows, _ in self._under_cut]))
        heat, cuts = columns([cut for rows, cut in self._under_cut for _ in rows])
        sent_rows, sent_masks, heat, *sent = self.copies.to_device(
            rows, self._masks[rows], heat, *cuts
        )
        bitmask = self._bitmask if self._reread else None
        cut_bitmask = cut_masks(
            self._logits.flatten(0, 1),
            heat,
            Cuts(*sent),
            None if bitmask is None else RowMasks(bitmask, sent_masks),
            sent_rows,
            softcap=self._softcap,
            by_kernel=self._by_kernel,
        ).bitmask
        count = 0 if bitmask is None else self._table.count
        words = cut_bitmask.shape[1]
        self._bitmask = (
            cut_bitmask if bitmask is None else torch.cat((bitmask[:count, :words], cut_bitmask))
        )
        self._masks[rows] = count + torch.arange(len(rows))

    def distributions(self) -> Distributions:
        """Return the distributions of all `B * L` rows, for the expectation of the model's
        embedding. Excluded canvases have none."""
        counted = torch.ones(self._B * self._L, dtype=torch.bool)
        counted.view(self._B, self._L)[self._excluded] = False
        masks = RowMasks(self._bitmask, self._masks) if self._reread or self._under_cut else None
        none = torch.empty(0, dtype=torch.int64)
        rows, tokens = (
            torch.cat(parts) for parts in zip((none, none), *self._certain, strict=True)
        )
        kept = counted[rows]
        rows, tokens = rows[kept], tokens[kept]
        counted[rows] = False
        return distributions(
            self._results,
            self._sent,
            (rows, tokens),
            counted,
            self._logits.flatten(0, 1),
            self._heat,
            self._softcap,
            masks,
            self.copies,
        )

    def _read(self, rows: Int64[Tensor, " n"], masks: RowMasks) -> Int32[Tensor, "n packed"]:
        """Return the packed results of some rows under masks, on the device."""
        return self._passed(self._sent_heat[rows], self._uniform[rows], masks, rows)

    def _passed(
        self, heat: Tensor, uniform: Tensor, masks: RowMasks | None, rows: Tensor | None
    ) -> Int32[Tensor, "n packed"]:
        """Return what the vocabulary pass finds, packed and on the device."""
        results = vocab_pass(
            self._logits.flatten(0, 1),
            heat,
            uniform,
            masks,
            rows,
            softcap=self._softcap,
            threshold=THRESHOLD,
            k=CANDIDATES,
            by_kernel=self._by_kernel,
        )
        return results.packed()

    def _name(self, rows: Int64[np.ndarray, " n"], tokens: Int64[np.ndarray, " n"]) -> None:
        """Let each of `rows` take the one token in `tokens`."""
        named = torch.from_numpy(rows), torch.from_numpy(tokens)
        self._certain.append(named)
        self._results.name_(*named)

    def _replace(self, rows: Int64[np.ndarray, " n"], results: VocabPass) -> None:
        """Replace the host's results of `rows` by `results`."""
        for column, new in zip(self._results, results, strict=True):
            column.numpy()[rows] = new.numpy()  # torch takes three times as long
