"""Constraints within the sampler of another engine: the interface for serving stacks.

A request's constraint is made by `Frontier(compiled, budget)`. An engine moves it with
`commit(tokens)` after a canvas is taken, and with `rollback(n)`. In each denoising step
`LogitsGuide.guide_` reads the logits of all constrained canvases once, queries the constraints, and
rewrites those logits in place, so that a sampler that knows no grammar reads them correctly:

- rows before the first suspect position are masked, or take one token alone;
- rows from there on are nearly uniform, so that nothing about them counts as sure.

There are two kinds of samplers:

- One replaces unsure positions by noise, and commits the argmax of a stable and confident canvas.
  The guess is the argmax of every row. If it commits any canvas after its last pass,
  `Fixed(last=True)` makes the whole guess valid.
- One unmasks sure positions, whose tokens then stand (`masked=True`). `Fixed(held=...)` has the
  tokens that stand; their rows take one token alone. The guess is the argmax of all rows that are
  not suspect, and those are exactly uniform. `Guidance.misplaced` finds what must be masked again
  if a sampler unmasks a suspect position all the same. If it unmasks all positions in its last
  pass, `Fixed(last=True)` leaves suspect rows only their guess, and the whole guess is valid.

Neither commits what a grammar forbids.

This module knows neither the tokens of a canvas nor the engine. Its decisions depend on logits and
constraints alone, and work is counted in units, not seconds: ranks that have the same logits decide
alike.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from jaxtyping import Float, Int32, Int64
from torch import Tensor

from dlm.grammar import NOTHING, Constraint, Fixed, Free, Guidance, Unfinished
from dlm.kernels.pinned import PinnedMemory
from dlm.kernels.vocab import vocab_pass
from dlm.kernels.vocab_cut import Cuts, cut_masks
from dlm.kernels.vocab_rows import RowMasks, VocabPass, forbid_, mask_words
from dlm.logits.canvas_logits import (
    CANDIDATES,
    THRESHOLD,
    CanvasLogits,
    DeviceCopies,
    HostRows,
    UnderMask,
)
from dlm.logits.masks import MaskedRows, MaskTable, alone, certain, changed_by_masks, checked_rows
from dlm.logits.refused import RefusedRow, RefusedRows
from dlm.logits.sampling import Cut, columns
from dlm.logits.work_shares import answers_within
from dlm.policy import Policy

_LEAD = 1.0  # logits between the guess and the next token
_STEPS = 2.0**-6  # relative to a logit: a difference that survives rounding to bf16
_BLOCK = 1 << 24  # logits that are copied at a time


def mask_rows_(
    logits: Float[Tensor, "N V"],
    rows: Int64[Tensor, " n"],
    masks: RowMasks,
    guess: Int64[Tensor, " n"],
) -> None:
    """Apply `masks` to `rows`, and make `guess` the argmax: a repaired guess need not be the
    likeliest. A row without any allowed token takes its guess for certain."""
    size = max(1, _BLOCK // logits.shape[1])
    for begin in range(0, len(rows), size):
        some = slice(begin, begin + size)
        block = logits[rows[some]].float()
        forbid_(block, mask_words(masks.bitmask, masks.rows[some]))
        _lead_(block, guess[some])
        logits[rows[some]] = block.to(logits.dtype)


def name_rows_(
    logits: Float[Tensor, "N V"], rows: Int64[Tensor, " n"], tokens: Int64[Tensor, " n"]
) -> None:
    """Leave each of `rows` only its token."""
    logits[rows] = -torch.inf
    logits[rows, tokens] = 0.0


def flatten_rows_(
    logits: Float[Tensor, "N V"], rows: Int64[Tensor, " n"], guess: Int64[Tensor, " n"]
) -> None:
    """Make each of `rows` nearly uniform: its entropy never counts as sure, and a draw is like new
    noise."""
    logits[rows] = 0.0
    logits[rows, guess] = _LEAD


def _lead_(block: Float[Tensor, "n V"], guess: Int64[Tensor, " n"]) -> None:
    best = block.max(-1)
    top = best.values.nan_to_num(neginf=0.0)
    ahead = top + (top.abs() * _STEPS).clamp(min=_LEAD)
    own = block.gather(1, guess[:, None])[:, 0]
    leads = (best.indices == guess) & ~own.isneginf()
    block.scatter_(1, guess[:, None], torch.where(leads, own, ahead)[:, None])


_MIDDLE = 0.5  # a number to draw by; nothing is drawn, and a token of the middle is a likely one


@dataclass(frozen=True, slots=True, kw_only=True)
class GuidedCanvas:
    """Canvas of one request in a step: `length` rows of the step's logits, from row `first`."""

    constraint: Constraint
    first: int
    length: int
    fixed: Fixed = NOTHING
    cut: Cut | None = None  # applied to the tokens that the constraint allows
    masked: bool = False  # whether positions without a token in `fixed.held` are masks, not noise
    edit_threshold: float | None = None  # probability of tokens that may replace those that stand

    def fixed_by(self, results: VocabPass) -> Fixed:
        """Return what is fixed, given a pass over the canvas: also which tokens may be replaced."""
        if self.edit_threshold is None:
            return self.fixed
        probability, held = _sureness(results), self.fixed.held
        edits = [
            position
            for position, token in held.items()
            if results.argmax[position] != token and probability[position] > self.edit_threshold
        ]
        return replace(self.fixed, edits=edits)


def _sureness(results: VocabPass) -> np.ndarray:
    """Return the probability of each row's argmax; if the row lists no tokens, its least value for
    the row's entropy."""
    above = results.above.numpy()
    listed = np.arange(CANDIDATES) < np.where(above <= CANDIDATES, above, 0)[:, None]
    best = results.logits.numpy().max(1, initial=-np.inf, where=listed)
    least = np.exp(-results.entropy.numpy())
    return np.where(listed.any(1), np.exp(best - results.lse.numpy()), least)


_Pairs = list[tuple[np.ndarray, np.ndarray]]  # rows of the logits, and a token for each


class _PendingRows:
    """Rows to rewrite after all constraints were queried."""

    def __init__(self):
        self.masked: _Pairs = []
        self.named: _Pairs = []
        self.suspect: _Pairs = []
        self.hidden: list[np.ndarray] = []  # suspect rows of masks
        self.grammar_rows: list[tuple[Tensor, list[int]]] = []  # bitmasks, and rows of them
        self.at_grammar_rows: list[np.ndarray] = []  # indices of these rows into `masked`
        self.cut_at: list[int] = []  # indices into `masked` of the rows with a cut
        self.cuts: list[Cut] = []  # the cuts of these rows
        self._count = 0  # rows in `masked`

    def add(
        self, canvas: GuidedCanvas, guidance: Guidance, results: VocabPass, vocab_size: int
    ) -> None:
        """Note the rows that `guidance` changes on a canvas. Raises `ValueError`, and notes
        nothing, for guidance that does not fit the canvas."""
        L, guess = canvas.length, np.asarray(guidance.guess, dtype=np.int64)
        masks = checked_rows(guidance, L, vocab_size)[: guidance.suspect]
        positions = np.arange(len(masks))
        named, masked = positions[masks < 0], positions[masks >= 0]
        named = named[~certain(results, named, ~masks[named])]
        if canvas.cut is None and guidance.bitmask is not None:
            masked = masked[~alone(results, guess)[masked]]
            rows = MaskedRows(masked, guidance.bitmask, masks[masked])
            changed = changed_by_masks(results, [rows])
            masked = masked[changed | (results.argmax.numpy()[masked] != guess[masked])]
        unmasked = np.arange(len(masks), guidance.suspect if canvas.cut is not None else len(masks))
        suspect = np.arange(guidance.suspect, L)
        self.named.append((canvas.first + named, ~masks[named]))
        if canvas.masked:
            standing = np.isin(suspect, list(canvas.fixed.held)) | canvas.fixed.last
            self.named.append((canvas.first + suspect[standing], guess[suspect[standing]]))
            self.hidden.append(canvas.first + suspect[~standing])
        else:
            self.suspect.append((canvas.first + suspect, guess[suspect]))
        self._mask(canvas, masked, unmasked, guess)
        if len(masked) and guidance.bitmask is not None:
            self.grammar_rows.append((guidance.bitmask, masks[masked].tolist()))

    def _mask(
        self, canvas: GuidedCanvas, masked: np.ndarray, unmasked: np.ndarray, guess: np.ndarray
    ) -> None:
        both = np.concatenate((masked, unmasked))
        self.masked.append((canvas.first + both, guess[both]))
        self.at_grammar_rows.append(self._count + np.arange(len(masked)))
        if canvas.cut is not None:
            self.cut_at += range(self._count, self._count + len(both))
            self.cuts += [canvas.cut] * len(both)
        self._count += len(both)


def _joined(pairs: _Pairs) -> tuple[Int64[Tensor, " n"], Int64[Tensor, " n"]]:
    rows = [row for row, _ in pairs] or [np.empty(0, dtype=np.int64)]
    tokens = [token for _, token in pairs] or [np.empty(0, dtype=np.int64)]
    return torch.from_numpy(np.concatenate(rows)), torch.from_numpy(np.concatenate(tokens))


class LogitsGuide:
    """Rewriter of an engine's logits; keeps the masks of all grammars on their device."""

    def __init__(
        self,
        vocab_size: int,
        work: int = Policy().step_work,
        by_kernel: bool | None = None,
    ):
        """`work` limits the units, of about 10 us each, that all constraints of a step do together,
        in the shares of `answers_within`. `by_kernel` is that of `vocab_pass`."""
        self._vocab_size, self._work, self._by_kernel = vocab_size, work, by_kernel
        self._table = MaskTable(-(-vocab_size // 32))
        self._memory = PinnedMemory()
        self.copies = 0  # so far, between host and device in both directions
        # Of the last step, by the identity of its constraint, which is kept to keep that.
        self._refused: dict[int, tuple[Constraint, RefusedRow]] = {}

    def warm_up(self, device: torch.device) -> None:
        """Compile kernels before the first step needs them, if there are any, and allocate the
        table of masks, which later steps only fill."""
        self._table.reserve(device)
        logits = torch.zeros(2, self._vocab_size, device=device)
        first = torch.zeros(1, dtype=torch.int64, device=device)
        self._read(logits, first, RowMasks(self._table.bitmask, first))  # as refused rows are read
        cut = Cut(temperature=1.0, top_k=1)
        self.guide_(logits, [GuidedCanvas(constraint=Free(()), first=0, length=2, cut=cut)])

    @torch.no_grad()
    def guide_(
        self, logits: Float[Tensor, "N V"], canvases: Sequence[GuidedCanvas]
    ) -> list[Guidance | Exception]:
        """Rewrite the rows of `canvases` in `logits`; returns the guidance of each constraint.

        An exception of a constraint is the result of its canvas, and its rows stay as they are: the
        engine must not advance that canvas. After `Unfinished` the same logits are to be passed
        again. All other rows of `logits` stay as they are. Raises `ValueError` for logits of
        another vocabulary size.
        """
        if logits.shape[1] != self._vocab_size:
            raise ValueError(f"{logits.shape[1]} logits for {self._vocab_size} tokens")
        last, self._refused = self._refused, {}
        if not canvases:
            return []
        copies = DeviceCopies(logits.device, self._memory)
        pending = _PendingRows()
        passed = [
            (
                canvas,
                results,
                CanvasLogits(
                    HostRows.of(results, self._vocab_size),
                    self._rows_of(logits, canvas),
                    1.0,
                    None,
                    copies,
                    under_mask,
                ),
            )
            for canvas, results, under_mask in self._passed(logits, canvases, last, copies)
        ]
        queries = [partial(self._guided, *canvas, pending) for canvas in passed]
        answers = answers_within(self._work, queries)
        for canvas, answer in zip(canvases, answers, strict=True):
            at = id(canvas.constraint)
            if isinstance(answer, Guidance) and (row := RefusedRow.of(answer)) is not None:
                self._refused[at] = canvas.constraint, row
            elif isinstance(answer, Unfinished) and at in last:
                self._refused[at] = last[at]
        self._write(logits, pending, copies)
        self.copies += copies.count
        return answers

    def _rows_of(self, logits: Float[Tensor, "N V"], canvas: GuidedCanvas) -> Float[Tensor, "L V"]:
        return logits[canvas.first : canvas.first + canvas.length]

    def _guided(
        self,
        canvas: GuidedCanvas,
        results: VocabPass,
        scores: CanvasLogits,
        pending: _PendingRows,
        work: int,
    ) -> tuple[Guidance | Exception, int]:
        """Query a canvas's constraint, and note the rows that it changes. Returns its answer and
        the units that it took."""
        try:
            canvas.constraint.work = work
            answer = canvas.constraint.guide(scores, canvas.fixed_by(results))
            pending.add(canvas, answer, results, self._vocab_size)
        except Exception as error:
            answer = error
        return answer, getattr(canvas.constraint, "spent", work)

    def _passed(
        self,
        logits: Float[Tensor, "N V"],
        canvases: Sequence[GuidedCanvas],
        last: Mapping[int, tuple[Constraint, RefusedRow]],
        copies: DeviceCopies,
    ) -> Iterator[tuple[GuidedCanvas, VocabPass, UnderMask | None]]:
        """Read all rows of `canvases`, and those that were refused in the `last` step under their
        masks, too."""
        rows = torch.cat([torch.arange(c.first, c.first + c.length) for c in canvases])
        (sent_rows,) = copies.to_device(rows)
        passed = self._read(logits, sent_rows)
        by_canvas: dict[int, RefusedRow] = {}
        for i, canvas in enumerate(canvases):
            _, row = last.get(id(canvas.constraint), (None, None))
            if row is not None and row.position < canvas.length:
                by_canvas[i] = row
        refused = RefusedRows(
            by_canvas,
            [canvas.first for canvas in canvases],
            self._table,
            copies,
            partial(self._read, logits),
        )
        results = VocabPass.unpacked(copies.to_host(passed)).split([c.length for c in canvases])
        under_masks = refused.under_masks
        for i, canvas in enumerate(canvases):
            yield canvas, results[i], under_masks.get(i)

    def _read(
        self, logits: Float[Tensor, "N V"], rows: Int64[Tensor, " n"], masks: RowMasks | None = None
    ) -> Int32[Tensor, "n packed"]:
        results = vocab_pass(
            logits,
            torch.ones(len(rows), device=rows.device),
            torch.full((len(rows),), _MIDDLE, device=rows.device),
            masks,
            rows,
            threshold=THRESHOLD,
            k=CANDIDATES,
            by_kernel=self._by_kernel,
        )
        return results.packed()

    def _write(
        self, logits: Float[Tensor, "N V"], pending: _PendingRows, copies: DeviceCopies
    ) -> None:
        """Rewrite the pending rows without waiting for the device."""
        (rows, guess), named, suspect = (
            _joined(pairs) for pairs in (pending.masked, pending.named, pending.suspect)
        )
        masks = torch.full((len(rows),), -1)
        if pending.grammar_rows:
            under = torch.from_numpy(np.concatenate(pending.at_grammar_rows))
            masks[under] = torch.tensor(self._table.place(pending.grammar_rows, copies))
        cut = torch.zeros(len(rows), dtype=torch.bool)
        cut[torch.tensor(pending.cut_at, dtype=torch.int64)] = True
        masked = [part[~cut] for part in (rows, guess, masks)]
        to_cut = [part[cut] for part in (rows, guess, masks)]
        heat, cuts = columns(pending.cuts)
        hidden = torch.from_numpy(np.concatenate([np.empty(0, np.int64), *pending.hidden]))
        sent = copies.to_device(*masked, *to_cut, *named, *suspect, hidden, heat, *cuts)
        rows, guess, masks, cut_rows, cut_guess, cut_under, *sent = sent
        named_rows, tokens, suspect_rows, suspect_guess, hidden, heat, top_k, top_p, min_p = sent
        bitmask = self._table.bitmask
        if len(rows):
            mask_rows_(logits, rows, RowMasks(bitmask, masks), guess)
        if len(cut_rows):
            cut_bitmask = cut_masks(
                logits,
                heat,
                Cuts(top_k, top_p, min_p),
                RowMasks(bitmask, cut_under) if pending.grammar_rows else None,
                cut_rows,
                by_kernel=self._by_kernel,
            )
            mask_rows_(logits, cut_rows, cut_bitmask, cut_guess)
        name_rows_(logits, named_rows, tokens)
        flatten_rows_(logits, suspect_rows, suspect_guess)
        logits[hidden] = 0.0
