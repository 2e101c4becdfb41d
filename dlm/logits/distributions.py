"""A step's distributions of tokens, position by position: what all decisions of it are made from.

The logits are read once, and what the host must know of them comes to it in one copy. Once the
constraints have spoken, those rows of which they change something are read again, under their
masks. A row that may take one token alone is not even read.

Shapes: `B` canvases of `L` positions, `B * L` rows of `V` logits.

From what a vocabulary pass lists of rows to distributions, for an expectation under them.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from jaxtyping import Bool, Float, Float32, Int32, Int64
from torch import Tensor

from dlm.grammar import Guidance
from dlm.kernels.expectation import Distributions, Flat, Listed
from dlm.kernels.vocab import vocab_pass
from dlm.kernels.vocab_cut import Cuts, cut_masks
from dlm.kernels.vocab_rows import RowMasks, VocabPass, heated
from dlm.logits import sampling
from dlm.logits.canvas_logits import CANDIDATES, THRESHOLD, CanvasLogits, DeviceCopies
from dlm.logits.masks import MaskTable, checked_rows, moved
from dlm.logits.sampling import Cut, columns

_TAIL = 1e-4  # probability that may be missing in the list of a row's tokens


def distributions(
    found: VocabPass,
    sent: Int32[Tensor, "n packed"],
    named: tuple[Int64[Tensor, " m"], Int64[Tensor, " m"]],
    counted: Bool[Tensor, " n"],
    logits: Float[Tensor, "n V"],
    heat: Float32[Tensor, " n"],
    softcap: float | None,
    masks: RowMasks | None,
    link: DeviceCopies,
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
            masks=None if masks is None else RowMasks(masks.bitmask, theirs),
            softcap=softcap,
        ),
    )


class TokenDistributions:
    """Unmasked at first. `restrict` tells what a constraint allows, canvas by canvas; `mask` then
    makes it count for all."""

    def __init__(
        self,
        logits: Float[Tensor, "B L V"],
        temperatures: list[float],
        uniform: Float32[Tensor, "B L"],
        softcap: float | None,
        table: MaskTable,
        by_kernel: bool | None = None,
        cuts: Sequence[Cut | None] = (),
    ):
        """`logits` are the model's, neither capped nor heated: each canvas has its temperature,
        and each position a number in [0, 1) to draw by. `by_kernel` is `vocab_pass`'s. `cuts`
        are those of the canvases, made under their masks: what a constraint may ask is of whole
        distributions."""
        (self._B, self._L, self._V), self._softcap = logits.shape, softcap
        self._logits, self._table, self._by_kernel = logits, table, by_kernel
        self._uniform, self.link = uniform.flatten(), DeviceCopies(logits.device)
        self._heat = (1 / torch.tensor(temperatures)).repeat_interleave(self._L)
        (self._sent_heat,) = self.link.to_device(self._heat)
        self._sent = self._passed(logits.flatten(0, 1), self._sent_heat, self._uniform, None, None)
        self._found = VocabPass.unpacked(self.link.to_host(self._sent))
        self._names: list[tuple[Tensor, Tensor]] = []  # rows and their tokens, which `_sent` lacks
        self._masks = torch.full((self._B * self._L,), -1)  # in `table`, of rows read again
        # By canvas: rows and the tokens that they name; rows to be read again, and their masks.
        self._named: list[tuple[np.ndarray, np.ndarray]] = []
        self._moved: list[tuple[np.ndarray, Tensor, np.ndarray]] = []
        self._left_out: list[int] = []  # canvases
        self._cuts = {i: cut for i, cut in enumerate(cuts) if cut is not None}
        self._cut: list[tuple[np.ndarray, Cut]] = []  # rows that are read again, cut
        self._bitmask = table.bitmask  # that `_masks` are of

    @property
    def entropies(self) -> Float32[Tensor, "B L"]:
        """Nats; infinite where nothing is possible."""
        impossible = self._found.argmax < 0
        return self._found.entropy.masked_fill(impossible, torch.inf).view(self._B, self._L)

    def draws(self, temperatures: list[float]) -> Int64[Tensor, "B L"]:
        """A token of every position; any one where nothing is possible.

        Where the temperature of a canvas, on top of its heat, is under 1, it is one of those that
        are listed; at 0 the likeliest. A row without a list is drawn from as it is.
        """
        drawn = self._found.draw.clamp(0, self._V - 1)
        sharp = torch.tensor(temperatures).repeat_interleave(self._L)
        rows = ((sharp < 1) & (self._found.argmax >= 0)).nonzero()[:, 0]
        if len(rows):
            drawn[rows] = self._sharpened(rows, sharp[rows])
        return drawn.view(self._B, self._L)

    def _sharpened(self, rows: Tensor, temperatures: Tensor) -> Tensor:
        found, most = self._found, max(1, int(self._found.above[rows].clamp(max=CANDIDATES).max()))
        x = heated(found.logits[rows, :most], self._heat[rows], self._softcap)
        listed = torch.arange(most) < found.above[rows, None]
        uniform = self.link.to_host(self._uniform)[rows]
        at = sampling.sharpen(x.masked_fill(~listed, -torch.inf), temperatures, uniform)
        chosen = found.ids[rows].gather(1, at[:, None])[:, 0].long()
        named = (found.above[rows] >= 1) & (found.above[rows] <= CANDIDATES)
        chosen = torch.where(named, chosen, found.draw[rows])
        return torch.where(temperatures == 0, found.argmax[rows], chosen)

    def scores(self, i: int) -> CanvasLogits:
        """What the constraint of canvas `i` may ask, before it is masked."""
        rows = slice(i * self._L, (i + 1) * self._L)
        found = VocabPass(*(column[rows] for column in self._found))
        heat = float(self._heat[rows.start])
        return CanvasLogits(
            found, self._logits[i], heat, self._softcap, DeviceCopies(self._logits.device)
        )

    def restrict(self, i: int, read: Guidance) -> None:
        """Let the leading positions of canvas `i` take what `read` allows them.

        Raises `ValueError`, and does nothing, for masks that do not fit the canvas.
        """
        cut, first = self._cuts.get(i), i * self._L
        free = first + np.arange(self._L)  # rows that no constraint speaks of
        if read.bitmask is None:
            if cut is not None:
                self._cut.append((free, cut))
            return
        bitmask, masks = read.bitmask, checked_rows(read, self._L, self._V)
        rows = first + np.arange(len(masks))
        named = masks < 0
        self._named.append((rows[named], ~masks[named]))
        rows, masks = rows[~named], masks[~named]
        if cut is not None:
            self._cut.append((np.concatenate((rows, free[free >= first + len(named)])), cut))
            changed = np.ones(len(rows), dtype=bool)
        else:
            changed = moved(self._found, rows, bitmask.numpy().view(np.uint32), masks)
        if changed.any():
            self._moved.append((rows[changed], bitmask, masks[changed]))

    def leave_out(self, i: int) -> None:
        """Nobody asks what is expected of canvas `i`: it is not looked for."""
        self._left_out.append(i)

    def mask(self) -> None:
        """Apply all masks: rows that they change are read again."""
        if self._named:
            rows, tokens = (
                torch.from_numpy(np.concatenate(each)) for each in zip(*self._named, strict=True)
            )
            self._name(rows, tokens)
        self._cut = [(rows, cut) for rows, cut in self._cut if len(rows)]
        again = [rows for rows, *_ in (*self._moved, *self._cut)]
        if not again:
            return
        if self._moved:
            wanted = [(bitmask, masks.tolist()) for _, bitmask, masks in self._moved]
            changed = torch.from_numpy(np.concatenate([rows for rows, _, _ in self._moved]))
            self._masks[changed] = torch.tensor(self._table.place(wanted, self.link))
            self._bitmask = self._table.bitmask
        if self._cut:
            self._make_cuts()
        rows = torch.from_numpy(np.unique(np.concatenate(again)))
        sent_rows, sent_masks = self.link.to_device(rows, self._masks[rows])
        chosen = RowMasks(self._bitmask, sent_masks)
        numbers = self._sent_heat[sent_rows], self._uniform[sent_rows]
        passed = self._passed(self._logits.flatten(0, 1), *numbers, chosen, sent_rows)
        self._sent[sent_rows] = passed
        self._replace(rows, VocabPass.unpacked(self.link.to_host(passed)))

    def _make_cuts(self) -> None:
        """Give rows that are cut masks of their own, behind those of the table."""
        rows = torch.from_numpy(np.concatenate([rows for rows, _ in self._cut]))
        heat, cuts = columns([cut for rows, cut in self._cut for _ in rows])
        sent_rows, sent_masks, heat, *sent = self.link.to_device(
            rows, self._masks[rows], heat, *cuts
        )
        known = self._bitmask if self._moved else None
        left = cut_masks(
            self._logits.flatten(0, 1),
            heat,
            Cuts(*sent),
            None if known is None else RowMasks(known, sent_masks),
            sent_rows,
            softcap=self._softcap,
            by_kernel=self._by_kernel,
        ).bitmask
        count = 0 if known is None else self._table.count
        words = left.shape[1]
        self._bitmask = left if known is None else torch.cat((known[:count, :words], left))
        self._masks[rows] = count + torch.arange(len(rows))

    def expected(
        self, embedding: Callable[[Distributions], Float[Tensor, "n hidden"]]
    ) -> Float[Tensor, "n hidden"]:
        """What `embedding` makes of all `B * L` rows, its expectation under each of them."""
        return embedding(self.distributions())

    def distributions(self) -> Distributions:
        """Of all `B * L` rows, for the model to take the expectation of its embedding under.

        Canvases that do not go on are left out.
        """
        counted = torch.ones(self._B, self._L, dtype=torch.bool)
        counted[self._left_out] = False
        masks = RowMasks(self._bitmask, self._masks) if self._moved or self._cut else None
        more = self._logits.flatten(0, 1), self._heat, self._softcap, masks, self.link
        none = torch.empty(0, dtype=torch.int64)
        rows, tokens = (torch.cat(each) for each in zip((none, none), *self._names, strict=True))
        self._names = []
        return distributions(self._found, self._sent, (rows, tokens), counted.flatten(), *more)

    def _passed(
        self,
        logits: Tensor,
        heat: Tensor,
        uniform: Tensor,
        masks: RowMasks | None,
        rows: Tensor | None,
    ) -> Int32[Tensor, "n packed"]:
        """Return what the vocabulary pass finds, packed and on the device."""
        found = vocab_pass(
            logits,
            heat,
            uniform,
            masks,
            rows,
            softcap=self._softcap,
            threshold=THRESHOLD,
            k=CANDIDATES,
            by_kernel=self._by_kernel,
        )
        return found.packed()

    def _name(self, rows: Tensor, tokens: Tensor) -> None:
        """Let rows take one token each."""
        self._names.append((rows, tokens))
        self._replace(rows, VocabPass.certain(tokens, CANDIDATES))

    def _replace(self, rows: Tensor, found: VocabPass) -> None:
        """Let `found` be what the host knows of rows."""
        for column, new in zip(self._found, found, strict=True):
            column[rows] = new
