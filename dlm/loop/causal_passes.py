"""Forward passes of a causal model: read each request's new tokens, predict the next one.

A draft is judged by the same pass: its leading tokens are kept as long as they are the ones that
would have been written anyway. Each row yields its likeliest allowed token, or one that is drawn.
This module knows no text and no queue.
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
    copies: DeviceCopies,
    by_kernel: bool | None = None,
    cuts: abc.Sequence[Cut | None] = (),
) -> list[int]:
    """Return a token for each of the n rows; -1 if the logits leave none.

    `rows[i]` is a mask, None if every token is allowed, or ~token if only that one is; then its
    logits are not read. `uniform[i]`, in [0, 1), decides what is drawn. At a temperature of 0 the
    likeliest token is taken, the lowest of equals. `cuts` holds the cut of each row, if there are
    any.
    """
    picks = [~row if isinstance(row, int) else -1 for row in rows]
    read = [i for i, row in enumerate(rows) if not isinstance(row, int)]
    if not read:
        return picks
    temperature = torch.tensor([float(temperatures[i]) for i in read])
    drawn = temperature > 0
    heat = torch.where(drawn, 1 / temperature.clamp(min=COLDEST), 1.0)
    numbers = heat, torch.tensor([uniform[i] for i in read]), torch.tensor(read), drawn
    words = [row.view(np.int32) for i in read if isinstance(row := rows[i], np.ndarray)]
    masks = None
    if words:
        free = torch.tensor([rows[i] is None for i in read])
        places = torch.where(free, -1, (~free).cumsum(0) - 1)
        *numbers, bitmask, places = copies.to_device(
            *numbers, torch.from_numpy(np.stack(words)), places
        )
        masks = RowMasks(bitmask, places)
    else:
        numbers = copies.to_device(*numbers)
    heat, drawn_by, places, drawn = numbers
    cut = [(place, one) for place, i in enumerate(read) if cuts and (one := cuts[i]) is not None]
    if cut:
        masks = _cut_rows(logits, places, masks, cut, softcap, copies, by_kernel)
    found = vocab_pass(
        logits, heat, drawn_by, masks, places, softcap=softcap, k=0, by_kernel=by_kernel
    )
    tokens = copies.to_host(torch.where(drawn, found.draw, found.argmax)).tolist()
    for i, token in zip(read, tokens, strict=True):
        picks[i] = token
    return picks


def _cut_rows(
    logits: Float[Tensor, "n V"],
    rows: Int64[Tensor, " r"],
    masks: RowMasks | None,
    cut: abc.Sequence[tuple[int, Cut]],
    softcap: float | None,
    copies: DeviceCopies,
    by_kernel: bool | None,
) -> RowMasks:
    """Return the masks of `rows` after `cut` was applied: pairs of an index into `rows` and its
    cut."""
    heat, cuts = columns([one for _, one in cut])
    at = torch.tensor([place for place, _ in cut])
    at, heat, *columns_sent = copies.to_device(at, heat, *cuts)
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
    """Tokens that a pass wrote for one request."""

    tokens: list[int]
    whole: bool  # the whole draft was kept


StepResults = dict[int, StepResult | Exception]  # by slot


class CausalPasses:
    """Passes in which all running requests take part: none waits for another."""

    def __init__(self, context: EngineContext, temperature: float, drafts: Drafts | None = None):
        """`temperature` 0 writes the likeliest token. `drafts` makes drafts; None: there are
        none."""
        self._model: CausalLM = context.model
        self._cache, self._policy = context.cache, context.policy
        self._by_kernel = context.by_kernel
        self._temperature, self._drafts = temperature, drafts
        self.idle = False

    def step(self, running: Mapping[int, Sequence]) -> Iterator[tuple[int, StepResult | Exception]]:
        """Run one more pass. Drafts are made after all that the pass wrote is committed."""
        ready = {slot: s for slot, s in running.items() if s.ready}
        start, ready_to_pass, failed = perf_counter(), dict[int, Sequence](), StepResults()
        for slot, sequence in ready.items():
            try:
                self._constrain(slot, sequence, max(1, self._policy.step_work // len(ready)))
                ready_to_pass[slot] = sequence
            except Exception as error:
                failed[slot] = error
        plan = plan_pass(ready_to_pass, self._cache, self._policy.encode_tokens)
        self.idle = not plan and not failed
        guided = perf_counter() - start
        yield from failed.items()
        if not plan:
            return
        results, canvases = self._pass(plan, guided)
        yield from results.items()
        if self._drafts is not None and canvases is not None:
            wanted = {
                slot: s if running.get(slot) is s and s.ready and _whole(results[slot]) else None
                for slot, s in plan.canvases.items()
            }
            yield from self._drafts.draft(canvases, wanted)

    def _constrain(self, slot: int, sequence: Sequence, work: int) -> None:
        """Query the constraint for the next tokens, unless that has been done. Forced tokens are
        written at once: the next pass reads them along with the rest."""
        state = sequence.state
        if state.next_tokens is None:
            state.constraint.work = work
            draft, refused = state.draft, set[int]()
            if sequence.refused:  # a draft may repeat refused tokens
                draft, refused = [], sequence.refused.get(tuple(sequence.tokens), refused)
            next_tokens = state.constraint.look(draft, refused, state.exact)
            if sequence.tokens:
                sequence.write(next_tokens.forced)
            else:  # its prompt is not read yet
                next_tokens = _all_drafted(next_tokens)
            state.next_tokens, state.work = next_tokens, 0
        committed = len(sequence.prompt) + len(sequence.tokens)
        if self._cache.length(slot) == committed:  # a prediction needs its last token to be read
            self._cache.rewind(slot, committed - 1)

    @torch.inference_mode()
    def _pass(
        self, plan: PassPlan, guided: float
    ) -> tuple[StepResults, Float[Tensor, "B L V"] | None]:
        """Encode what `plan` lists, and predict for the requests that this completes. Returns their
        results, and the logits of the canvases after them if there are drafts."""
        start, copies, predicted = perf_counter(), DeviceCopies(self._model.device), plan.canvases
        next_tokens = {
            slot: _within_pass(s.state.next_tokens, len(plan.encode[slot]))
            for slot, s in predicted.items()
        }
        tokens = {slot: list(some) for slot, some in plan.encode.items()}
        for slot, each in next_tokens.items():
            tokens[slot] += each.draft
        counts = {slot: len(each.rows) for slot, each in next_tokens.items()}
        canvases = None
        if self._drafts is None or not predicted:
            logits = self._model.predict(tokens, counts, self._cache)
        else:
            drafts = {slot: each.draft for slot, each in next_tokens.items()}
            logits, canvases = self._drafts.predict(tokens, counts, predicted, drafts, self._cache)
        read = perf_counter()
        rows = [row for each in next_tokens.values() for row in each.rows]
        uniform = [u for slot, s in predicted.items() for u in self._uniform(s, counts[slot])]
        temperatures = [
            self._temperature_of(s) for slot, s in predicted.items() for _ in range(counts[slot])
        ]
        cuts = [self._cut(s) for slot, s in predicted.items() for _ in range(counts[slot])]
        more = self._model.softcap, copies, self._by_kernel, cuts
        picks = iter(pick(logits, rows, uniform, temperatures, *more))
        results = StepResults()
        for slot, sequence in predicted.items():
            picked = list(islice(picks, counts[slot]))
            results[slot] = self._judge(slot, sequence, next_tokens[slot].draft, picked)
        for sequence in predicted.values():
            sequence.stats.causal_calls += 1
            sequence.stats.copies += copies.count
            sequence.stats.spend(read - start, guided, perf_counter() - read)
        return results, canvases

    def _temperature_of(self, sequence: Sequence) -> float:
        """Return the decoding's temperature times the request's."""
        return self._temperature * sequence.request.temperature

    def _cut(self, sequence: Sequence) -> Cut | None:
        """Return the cut of the request's distributions; None if the likeliest token is taken
        anyway."""
        temperature = self._temperature_of(sequence)
        return Cut.of(sequence.request, max(temperature, COLDEST)) if temperature else None

    def _uniform(self, sequence: Sequence, count: int) -> list[float]:
        """Return the numbers that the next `count` tokens are drawn by; zeros if none is drawn."""
        begin = len(sequence.tokens)
        if not self._temperature_of(sequence):
            return [0.0] * count
        return sequence.state.numbers.between(begin, begin + count)

    def _judge(
        self, slot: int, sequence: Sequence, draft: list[int], picks: list[int]
    ) -> StepResult | Exception:
        """Keep the leading tokens of the draft that were picked anyway, and the first pick after
        them."""
        if min(picks) < 0:
            return DlmError("the model's logits leave no token that may come next")
        kept = common_prefix(draft, picks[: len(draft)])
        if kept < len(draft):
            self._cache.rewind(slot, len(sequence.prompt) + len(sequence.tokens) + kept)
        if self._drafts is not None:
            sequence.stats.drafted += len(draft)
            sequence.stats.drafts_kept += kept
        sequence.state.draft, sequence.state.next_tokens = [], None
        return self._fitting(sequence, picks[: kept + 1], kept == len(draft))

    def _fitting(
        self, sequence: Sequence, tokens: list[int], whole: bool
    ) -> StepResult | Exception:
        """Return the tokens that leave enough of the budget to complete the text. If the last one
        does not, it is left out: the next pass predicts again under an exact query."""
        state = sequence.state
        try:
            fits = state.constraint.fits(tokens)
        except Exception as error:
            return error
        if fits == 0 and state.exact:
            return DlmError("the constraint allows only what it does not take")
        state.exact = fits < len(tokens)
        if state.exact:  # a draw by the same number would not be independent of the refusal
            state.numbers.renew(len(sequence.tokens) + fits)
        return StepResult(tokens[:fits], whole and not state.exact)


def _within_pass(next_tokens: NextTokens | None, encoded: int) -> NextTokens:
    """Drop the draft if it does not fit a pass that encodes `encoded` tokens of the request."""
    if next_tokens is None:
        raise ValueError("a request takes part in a pass only after its constraint was queried")
    if encoded + len(next_tokens.draft) <= CHUNK:
        return next_tokens
    return replace(next_tokens, draft=[], rows=next_tokens.rows[:1])


def _all_drafted(next_tokens: NextTokens) -> NextTokens:
    """Turn forced tokens into the beginning of the draft: they will be kept for certain."""
    rows = [*(~token for token in next_tokens.forced), *next_tokens.rows]
    return NextTokens(forced=[], draft=next_tokens.forced + next_tokens.draft, rows=rows)


def _whole(outcome: StepResult | Exception) -> bool:
    return isinstance(outcome, StepResult) and outcome.whole
