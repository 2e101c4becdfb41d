"""Passes of a causal model: each reads what its requests have written, and says what comes next.

A request's draft, where it has one, is judged by the same pass: of its tokens those are kept that
would have been written anyway, one by one. Knows no text and no queue.

Which token comes next, row by row: the likeliest that is allowed, or one that is drawn.
"""

from collections import abc
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from time import perf_counter

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from dlm.errors import DlmError
from dlm.grammar import NextTokens, Row
from dlm.grammar.tokens import common_prefix
from dlm.kernels.vocab import vocab_pass
from dlm.kernels.vocab_cut import Cuts, cut_masks
from dlm.kernels.vocab_rows import RowMasks
from dlm.logits.canvas_logits import DeviceCopies
from dlm.logits.sampling import COLDEST, Cut, columns
from dlm.loop.causal import CausalLM
from dlm.loop.decoding import EngineContext
from dlm.loop.drafts import Drafts
from dlm.loop.pass_plan import CHUNK, PassPlan, plan_pass
from dlm.sequence import Sequence


def pick(
    logits: Float[Tensor, "n V"],
    rows: abc.Sequence[Row],
    uniform: abc.Sequence[float],
    temperatures: abc.Sequence[float],
    softcap: float | None,
    link: DeviceCopies,
    by_kernel: bool | None = None,
    cuts: abc.Sequence[Cut | None] = (),
) -> list[int]:
    """A token for each of the n rows; -1 where the logits leave none.

    `rows[i]` says what row i may take; what one names is not read. `uniform[i]` is the number in
    [0, 1) that it is drawn by; where `temperatures[i]` is 0 the likeliest is taken, the lowest of
    equals. `cuts`, where there are some, are those of the rows.
    """
    picks = [~row if isinstance(row, int) else -1 for row in rows]
    read = [i for i, row in enumerate(rows) if not isinstance(row, int)]
    if not read:
        return picks
    warm = torch.tensor([float(temperatures[i]) for i in read])
    drawn = warm > 0
    heat = torch.where(drawn, 1 / warm.clamp(min=COLDEST), 1.0)
    numbers = heat, torch.tensor([uniform[i] for i in read]), torch.tensor(read), drawn
    words = [row.view(np.int32) for i in read if isinstance(row := rows[i], np.ndarray)]
    masks = None
    if words:
        free = torch.tensor([rows[i] is None for i in read])
        places = torch.where(free, -1, (~free).cumsum(0) - 1)
        *numbers, bitmask, places = link.to_device(
            *numbers, torch.from_numpy(np.stack(words)), places
        )
        masks = RowMasks(bitmask, places)
    else:
        numbers = link.to_device(*numbers)
    heat, drawn_by, places, drawn = numbers
    cut = [(place, one) for place, i in enumerate(read) if cuts and (one := cuts[i]) is not None]
    if cut:
        masks = _cut_rows(logits, places, masks, cut, softcap, link, by_kernel)
    found = vocab_pass(
        logits, heat, drawn_by, masks, places, softcap=softcap, k=0, by_kernel=by_kernel
    )
    tokens = link.to_host(torch.where(drawn, found.draw, found.argmax)).tolist()
    for i, token in zip(read, tokens, strict=True):
        picks[i] = token
    return picks


def _cut_rows(
    logits: Float[Tensor, "n V"],
    rows: Int64[Tensor, " r"],
    masks: RowMasks | None,
    cut: abc.Sequence[tuple[int, Cut]],
    softcap: float | None,
    link: DeviceCopies,
    by_kernel: bool | None,
) -> RowMasks:
    """Return the masks of `rows`, with those cut that `cut` names by their places in `rows`."""
    heat, cuts = columns([one for _, one in cut])
    at = torch.tensor([place for place, _ in cut])
    at, heat, *columns_sent = link.to_device(at, heat, *cuts)
    chosen = None if masks is None else RowMasks(masks.bitmask, masks.rows[at])
    options = {"softcap": softcap, "by_kernel": by_kernel}
    left = cut_masks(logits, heat, Cuts(*columns_sent), chosen, rows[at], **options)
    if masks is None:
        bitmask, of = left.bitmask, torch.full_like(rows, -1)
    else:
        words = left.bitmask.shape[1]
        bitmask, of = torch.cat((masks.bitmask[:, :words], left.bitmask)), masks.rows.clone()
    of[at] = left.rows + (len(bitmask) - len(left.bitmask))
    return RowMasks(bitmask, of)


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a pass wrote of one request."""

    tokens: list[int]
    whole: bool  # its draft stands in it, all of it


StepResults = dict[int, StepResult | Exception]  # by slot


class CausalPasses:
    """All that run take part in every pass: none waits for another."""

    def __init__(self, parts: EngineContext, temperature: float, drafts: Drafts | None = None):
        """At a temperature of 0 the likeliest token is written. With `drafts`, there are some."""
        self._model: CausalLM = parts.model
        self._cache, self._policy, self._by_kernel = parts.cache, parts.policy, parts.by_kernel
        self._temperature, self._drafts = temperature, drafts
        self.idle = False

    def step(self, running: Mapping[int, Sequence]) -> Iterator[tuple[int, StepResult | Exception]]:
        """One more pass. When all that it wrote is committed, what comes next is drafted."""
        ready = {slot: s for slot, s in running.items() if s.ready}
        start, looked, failed = perf_counter(), dict[int, Sequence](), StepResults()
        for slot, sequence in ready.items():
            try:
                self._look(slot, sequence, max(1, self._policy.step_work // len(ready)))
                looked[slot] = sequence
            except Exception as error:
                failed[slot] = error
        turn = plan_pass(looked, self._cache, self._policy.encode_tokens)
        self.idle = not turn and not failed
        guided = perf_counter() - start
        yield from failed.items()
        if not turn:
            return
        written, canvases = self._pass(turn, guided)
        yield from written.items()
        if self._drafts is not None and canvases is not None:
            wanted = {
                slot: s if running.get(slot) is s and s.ready and _whole(written[slot]) else None
                for slot, s in turn.canvases.items()
            }
            yield from self._drafts.draft(canvases, wanted)

    def _look(self, slot: int, sequence: Sequence, work: int) -> None:
        """Ask the constraint what comes next, unless it has said so. What it leaves no choice about
        is written at once: the next pass reads it along with the rest."""
        writing = sequence.writing
        if writing.look is None:
            writing.constraint.work = work
            draft, refused = writing.draft, set[int]()
            if sequence.refused:  # of which a draft knows nothing
                draft, refused = [], sequence.refused.get(tuple(sequence.tokens), refused)
            look = writing.constraint.look(draft, refused, writing.exact)
            if sequence.tokens:
                sequence.write(look.forced)
            else:  # its prompt is not read yet
                look = _all_drafted(look)
            writing.look, writing.work = look, 0
        written = len(sequence.prompt) + len(sequence.tokens)
        if self._cache.length(slot) == written:  # what comes behind a token is said as it is read
            self._cache.rewind(slot, written - 1)

    @torch.inference_mode()
    def _pass(
        self, turn: PassPlan, guided: float
    ) -> tuple[StepResults, Float[Tensor, "B L V"] | None]:
        """It encodes what `turn` says, and writes the requests that this completes; the logits of
        the canvases behind them, if there are drafts."""
        start, link, predicted = perf_counter(), DeviceCopies(self._model.device), turn.canvases
        looks = {
            slot: _cut(s.writing.look, len(turn.encode[slot])) for slot, s in predicted.items()
        }
        tokens = {slot: list(some) for slot, some in turn.encode.items()}
        for slot, look in looks.items():
            tokens[slot] += look.draft
        counts = {slot: len(look.rows) for slot, look in looks.items()}
        canvases = None
        if self._drafts is None or not predicted:
            logits = self._model.predict(tokens, counts, self._cache)
        else:
            drafts = {slot: look.draft for slot, look in looks.items()}
            logits, canvases = self._drafts.predict(tokens, counts, predicted, drafts, self._cache)
        read = perf_counter()
        rows = [row for look in looks.values() for row in look.rows]
        uniform = [u for slot, s in predicted.items() for u in self._uniform(s, counts[slot])]
        heat = [self._heat(s) for slot, s in predicted.items() for _ in range(counts[slot])]
        cuts = [self._cut(s) for slot, s in predicted.items() for _ in range(counts[slot])]
        more = self._model.softcap, link, self._by_kernel, cuts
        picks = iter(pick(logits, rows, uniform, heat, *more))
        written = StepResults()
        for slot, sequence in predicted.items():
            picked = list(islice(picks, counts[slot]))
            written[slot] = self._judge(slot, sequence, looks[slot].draft, picked)
        for sequence in predicted.values():
            sequence.stats.causal_calls += 1
            sequence.stats.copies += link.copies
            sequence.stats.spend(read - start, guided, perf_counter() - read)
        return written, canvases

    def _heat(self, sequence: Sequence) -> float:
        """The decoding's temperature, and on top of it the request's."""
        return self._temperature * sequence.request.temperature

    def _cut(self, sequence: Sequence) -> Cut | None:
        """Return what the request leaves of its distributions; the likeliest token it leaves."""
        heat = self._heat(sequence)
        return Cut.of(sequence.request, max(heat, COLDEST)) if heat else None

    def _uniform(self, sequence: Sequence, count: int) -> list[float]:
        """The numbers that its next tokens are drawn by, if they are."""
        begin = len(sequence.tokens)
        if not self._heat(sequence):
            return [0.0] * count
        return sequence.writing.numbers.between(begin, begin + count)

    def _judge(
        self, slot: int, sequence: Sequence, draft: list[int], picks: list[int]
    ) -> StepResult | Exception:
        """Keep of a draft what was picked anyway, and the first pick that it did not have."""
        if min(picks) < 0:
            return DlmError("the model's logits leave no token that may come next")
        kept = common_prefix(draft, picks[: len(draft)])
        if kept < len(draft):
            self._cache.rewind(slot, len(sequence.prompt) + len(sequence.tokens) + kept)
        if self._drafts is not None:
            sequence.stats.drafted += len(draft)
            sequence.stats.drafts_kept += kept
        sequence.writing.draft, sequence.writing.look = [], None
        return self._fitting(sequence, picks[: kept + 1], kept == len(draft))

    def _fitting(
        self, sequence: Sequence, tokens: list[int], whole: bool
    ) -> StepResult | Exception:
        """What was written, but for a last token that leaves too little room to complete the text:
        the next pass says again what comes there, under an exact look."""
        writing = sequence.writing
        try:
            fits = writing.constraint.fits(tokens)
        except Exception as error:
            return error
        if fits == 0 and writing.exact:
            return DlmError("the constraint allows only what it does not take")
        writing.exact = fits < len(tokens)
        if writing.exact:  # a new draw by the same number would be no draw from what is left
            writing.numbers.renew(len(sequence.tokens) + fits)
        return StepResult(tokens[:fits], whole and not writing.exact)


def _cut(look: NextTokens | None, encoded: int) -> NextTokens:
    """What a pass that encodes so many tokens of a request can judge of its draft."""
    if look is None:
        raise ValueError("a request takes part in a pass only when its constraint has looked")
    if encoded + len(look.draft) <= CHUNK:
        return look
    return replace(look, draft=[], rows=look.rows[:1])


def _all_drafted(look: NextTokens) -> NextTokens:
    """The same, with what is forced as a draft that stands for certain."""
    rows = [*(~token for token in look.forced), *look.rows]
    return NextTokens(forced=[], draft=look.forced + look.draft, rows=rows)


def _whole(outcome: StepResult | Exception) -> bool:
    return isinstance(outcome, StepResult) and outcome.whole
