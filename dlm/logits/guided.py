"""Constraints within the sampler of another engine: the seam for serving stacks.

A constraint is an object for each request, made by `Frontier(compiled, budget)`, that an engine
moves with `commit(tokens)` once a canvas is taken, and with `rollback(n)`. In each denoising step
`LogitsGuide.guide_` reads the logits of all constrained canvases once, asks the constraints, and
rewrites those logits in place:

- up to the first suspect position, rows are masked, and the guess is their argmax;
- from there on rows are nearly uniform, with the guess as argmax.

So a sampler that accepts what is sure, noises again what is not, and commits the argmax of a canvas
that is stable and confident, never commits what a grammar refuses. Where it commits whatever there
is, after its last pass, `Fixed(last=True)` makes the whole guess valid.

Knows no canvas's tokens and no engine. What it decides depends on logits and constraints alone,
and work is counted in units, not seconds: ranks that have the same logits decide alike.

Rows of logits, rewritten in place so that a sampler that knows no grammar reads them aright.

Three kinds: rows under a mask, rows that may take one token alone, and suspect rows, which are
nearly flat, so that nothing about them passes for sure. In each the guess is the argmax.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from dlm.grammar import NOTHING, Constraint, Fixed, Free, Guidance
from dlm.kernels.vocab import vocab_pass
from dlm.kernels.vocab_cut import Cuts, cut_masks
from dlm.kernels.vocab_rows import RowMasks, VocabPass, forbid_, mask_words
from dlm.logits.canvas_logits import CANDIDATES, THRESHOLD, CanvasLogits, DeviceCopies
from dlm.logits.masks import MaskTable, certain, checked_rows, moved
from dlm.logits.sampling import Cut, columns
from dlm.policy import Policy

_AHEAD = 1.0  # logits between the guess and the next token
_STEPS = 2.0**-6  # of a logit: what rounding to bf16 leaves of a difference
_BLOCK = 1 << 24  # logits that are copied at a time


def mask_rows_(
    logits: Float[Tensor, "N V"],
    rows: Int64[Tensor, " n"],
    masks: RowMasks,
    guess: Int64[Tensor, " n"],
) -> None:
    """Forbid in `rows` what `masks` forbids, and let `guess` lead: a repair need not be likeliest.

    A row that the logits leave nothing of takes its guess for certain.
    """
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
    """Leave each of `rows` one token."""
    logits[rows] = -torch.inf
    logits[rows, tokens] = 0.0


def flatten_rows_(
    logits: Float[Tensor, "N V"], rows: Int64[Tensor, " n"], guess: Int64[Tensor, " n"]
) -> None:
    """Make each of `rows` nearly uniform: an entropy that never counts as sure, and a draw that is
    as good as new noise."""
    logits[rows] = 0.0
    logits[rows, guess] = _AHEAD


def _lead_(block: Float[Tensor, "n V"], guess: Int64[Tensor, " n"]) -> None:
    best = block.max(-1)
    top = best.values.nan_to_num(neginf=0.0)
    ahead = top + (top.abs() * _STEPS).clamp(min=_AHEAD)
    own = block.gather(1, guess[:, None])[:, 0]
    leads = (best.indices == guess) & ~own.isneginf()
    block.scatter_(1, guess[:, None], torch.where(leads, own, ahead)[:, None])


_MIDDLE = 0.5  # nothing is drawn here; the token that this would draw is a likely one


@dataclass(frozen=True, slots=True, kw_only=True)
class GuidedCanvas:
    """One request's canvas in a step: `length` rows of the step's logits, from row `first`."""

    constraint: Constraint
    first: int
    length: int
    fixed: Fixed = NOTHING
    cut: Cut | None = None  # made among the tokens that the constraint allows


_Pairs = list[tuple[np.ndarray, np.ndarray]]  # rows of the logits, and a token for each


class _Changes:
    """Rows that are rewritten once all constraints have been asked."""

    def __init__(self):
        self.masked: _Pairs = []
        self.named: _Pairs = []
        self.suspect: _Pairs = []
        self.wanted: list[tuple[Tensor, list[int]]] = []  # bitmasks, and rows of them
        self.under_mask: list[np.ndarray] = []  # places in `masked` that those masks are of
        self.cut_at: list[int] = []  # places in `masked` that are cut
        self.cuts: list[Cut] = []  # theirs
        self._count = 0  # of `masked`

    def add(self, canvas: GuidedCanvas, read: Guidance, found: VocabPass, vocab_size: int) -> None:
        """Note what `read` makes of a canvas. Raises `ValueError`, and notes nothing, for guidance
        that does not fit it."""
        L, guess = canvas.length, np.asarray(read.guess, dtype=np.int64)
        if len(guess) != L:
            raise ValueError(f"a guess of {len(guess)} tokens for {L} positions")
        if not 0 <= read.suspect <= L:
            raise ValueError(f"position {read.suspect} of {L} is suspect")
        masks = checked_rows(read, L, vocab_size)[: read.suspect]
        positions = np.arange(len(masks))
        named, masked = positions[masks < 0], positions[masks >= 0]
        named = named[~certain(found, named, ~masks[named])]
        changed = np.ones(len(masked), dtype=bool)
        if canvas.cut is None and read.bitmask is not None:
            words = read.bitmask.numpy().view(np.uint32)
            changed = moved(found, masked, words, masks[masked])
            changed |= found.argmax.numpy()[masked] != guess[masked]
        masked = masked[changed]
        free = np.arange(len(masks), read.suspect if canvas.cut is not None else len(masks))
        suspect = np.arange(read.suspect, L)
        self.named.append((canvas.first + named, ~masks[named]))
        self.suspect.append((canvas.first + suspect, guess[suspect]))
        self._mask(canvas, masked, free, guess)
        if len(masked) and read.bitmask is not None:
            self.wanted.append((read.bitmask, masks[masked].tolist()))

    def _mask(
        self, canvas: GuidedCanvas, masked: np.ndarray, free: np.ndarray, guess: np.ndarray
    ) -> None:
        both = np.concatenate((masked, free))
        self.masked.append((canvas.first + both, guess[both]))
        self.under_mask.append(self._count + np.arange(len(masked)))
        if canvas.cut is not None:
            self.cut_at += range(self._count, self._count + len(both))
            self.cuts += [canvas.cut] * len(both)
        self._count += len(both)


def _joined(pairs: _Pairs) -> tuple[Int64[Tensor, " n"], Int64[Tensor, " n"]]:
    rows = [row for row, _ in pairs] or [np.empty(0, dtype=np.int64)]
    tokens = [token for _, token in pairs] or [np.empty(0, dtype=np.int64)]
    return torch.from_numpy(np.concatenate(rows)), torch.from_numpy(np.concatenate(tokens))


class LogitsGuide:
    """One for an engine: it keeps the masks of all grammars where the logits are."""

    def __init__(
        self,
        vocab_size: int,
        work: int = Policy().step_work,
        by_kernel: bool | None = None,
    ):
        """All constraints of a step together may do `work` units, of about 10 us each; what takes
        one more is `Unfinished`. `by_kernel` is that of `vocab_pass`."""
        self._vocab_size, self._work, self._by_kernel = vocab_size, work, by_kernel
        self._table = MaskTable(-(-vocab_size // 32))
        self.copies = 0  # between host and device so far, both ways

    def warm_up(self, device: torch.device) -> None:
        """Have kernels compiled before the first step needs them, where there are any."""
        logits = torch.zeros(2, self._vocab_size, device=device)
        cut = Cut(temperature=1.0, top_k=1)
        self.guide_(logits, [GuidedCanvas(constraint=Free(()), first=0, length=2, cut=cut)])

    @torch.no_grad()
    def guide_(
        self, logits: Float[Tensor, "N V"], canvases: Sequence[GuidedCanvas]
    ) -> list[Guidance | Exception]:
        """Rewrite the rows of `canvases` in `logits`; return what each constraint said.

        What a constraint raises is its canvas's result, and its rows stay as they are: the engine
        must not take that canvas further. With `Unfinished` the same logits are to be shown again.
        All other rows of `logits` are left alone. Raises `ValueError` for logits that do not fit.
        """
        if logits.shape[1] != self._vocab_size:
            raise ValueError(f"{logits.shape[1]} logits for {self._vocab_size} tokens")
        if not canvases:
            return []
        link = DeviceCopies(logits.device)
        readings: list[Guidance | Exception] = []
        changes = _Changes()
        share = max(1, self._work // len(canvases))
        for canvas, found in self._passed(logits, canvases, link):
            try:
                canvas.constraint.work = share
                rows = logits[canvas.first : canvas.first + canvas.length]
                scores = CanvasLogits(found, rows, 1.0, None, link)
                read = canvas.constraint.guide(scores, canvas.fixed)
                changes.add(canvas, read, found, self._vocab_size)
            except Exception as error:
                readings.append(error)
            else:
                readings.append(read)
        self._write(logits, changes, link)
        self.copies += link.copies
        return readings

    def _passed(
        self, logits: Float[Tensor, "N V"], canvases: Sequence[GuidedCanvas], link: DeviceCopies
    ) -> Iterator[tuple[GuidedCanvas, VocabPass]]:
        """Read all rows of `canvases` in one pass; its results come to the host in one copy."""
        rows = torch.cat([torch.arange(c.first, c.first + c.length) for c in canvases])
        sent_rows, heat, uniform = link.to_device(
            rows, torch.ones(len(rows)), torch.full((len(rows),), _MIDDLE)
        )
        found = vocab_pass(
            logits,
            heat,
            uniform,
            rows=sent_rows,
            threshold=THRESHOLD,
            k=CANDIDATES,
            by_kernel=self._by_kernel,
        )
        parts = link.to_host(found.packed()).split([canvas.length for canvas in canvases])
        for canvas, part in zip(canvases, parts, strict=True):
            yield canvas, VocabPass.unpacked(part)

    def _write(self, logits: Float[Tensor, "N V"], changes: _Changes, link: DeviceCopies) -> None:
        """Rewrite rows. Nothing here waits for the device: where each row goes is known before."""
        (rows, guess), named, suspect = (
            _joined(pairs) for pairs in (changes.masked, changes.named, changes.suspect)
        )
        masks = torch.full((len(rows),), -1)
        if changes.wanted:
            under = torch.from_numpy(np.concatenate(changes.under_mask))
            masks[under] = torch.tensor(self._table.place(changes.wanted, link))
        cut = torch.zeros(len(rows), dtype=torch.bool)
        cut[torch.tensor(changes.cut_at, dtype=torch.int64)] = True
        masked = [part[~cut] for part in (rows, guess, masks)]
        to_cut = [part[cut] for part in (rows, guess, masks)]
        heat, cuts = columns(changes.cuts)
        sent = link.to_device(*masked, *to_cut, *named, *suspect, heat, *cuts)
        rows, guess, masks, cut_rows, cut_guess, cut_under, *sent = sent
        named_rows, tokens, suspect_rows, suspect_guess, heat, top_k, top_p, min_p = sent
        bitmask = self._table.bitmask
        if len(rows):
            mask_rows_(logits, rows, RowMasks(bitmask, masks), guess)
        if len(cut_rows):
            left = cut_masks(
                logits,
                heat,
                Cuts(top_k, top_p, min_p),
                RowMasks(bitmask, cut_under) if changes.wanted else None,
                cut_rows,
                by_kernel=self._by_kernel,
            )
            mask_rows_(logits, cut_rows, left, cut_guess)
        name_rows_(logits, named_rows, tokens)
        flatten_rows_(logits, suspect_rows, suspect_guess)
