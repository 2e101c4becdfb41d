"""Decoding left to right: what an engine needs to serve a causal language model.

A diffusion language model is one too: its encoder predicts the next token. A pass reads each
request's new tokens and predicts the next one. It also judges a draft, whose leading tokens are
kept as long as they are the ones that would have been written anyway. Each row yields its likeliest
allowed token, or one that is drawn.
"""

from collections import abc
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from time import perf_counter
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from dlm.config import DecodeConfig
from dlm.errors import DlmError, UndefinedLogitsError
from dlm.events import Event
from dlm.grammar import (
    BoundedTokens,
    Compiled,
    Free,
    FreeTokens,
    Frontier,
    LeftToRight,
    NextTokens,
    Reasoning,
    Row,
    Unfinished,
)
from dlm.grammar.vocabulary import common_prefix
from dlm.kernels.vocab import vocab_pass
from dlm.kernels.vocab_cut import Cuts, cut_masks
from dlm.kernels.vocab_rows import RowMasks
from dlm.left_to_right_state import DrawNumbers, LeftToRightState
from dlm.logits.canvas_logits import DeviceCopies
from dlm.logits.sampling import COLDEST, Cut, columns, fixed
from dlm.loop.decoding import Decoder, EngineContext, PassPlan, check_canvases, plan_pass
from dlm.loop.denoise import exclude_mask_
from dlm.loop.drafts import Drafts
from dlm.loop.interfaces import CausalLM, DraftingLM, Model
from dlm.models.pages import CHUNK
from dlm.sequence import Sequence

UNDEFINED = -2
"""Pick of a row whose logits are NaN or infinite."""


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
    """Return a token for each of the n rows; -1 if the logits leave none, and `UNDEFINED` if they
    are NaN or infinite.

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
    options = {"softcap": softcap, "by_kernel": by_kernel}
    found = vocab_pass(logits, heat, drawn_by, masks, places, k=0, **options)
    tokens = torch.where(drawn, found.draw, found.argmax)
    tokens = copies.to_host(tokens.masked_fill(found.lse.isnan(), UNDEFINED)).tolist()
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Autoregressive:
    """Decoding left to right, one token after another. Raises `DlmError` for an invalid
    temperature. Drafts do not change an answer, except that a pass over several tokens may round
    otherwise: a drafted token is kept only where it would have been written."""

    shares_passes: ClassVar[bool] = False  # an additional token costs a pass next to nothing
    temperature: float = 0.0  # 0: the likeliest token; otherwise tokens are drawn by the seed
    drafts: bool = False  # the same weights draft on canvases: fewer passes (arXiv:2211.17192)

    @property
    def name(self) -> str:
        return "drafted" if self.drafts else "left-to-right"

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise DlmError(f"temperature must be at least 0, got {self.temperature}")

    def check(self, model: Model, config: DecodeConfig) -> None:
        if not isinstance(model, CausalLM):
            raise DlmError(f"a {type(model).__name__} predicts no next token: it has no `predict`")
        if self.drafts:
            if not isinstance(model, DraftingLM):
                raise DlmError(f"a {type(model).__name__} denoises no canvases: it cannot draft")
            check_canvases(model, config)

    def answer_capacity(self, model: CausalLM, positions: int) -> int:
        if isinstance(model, DraftingLM) and self.drafts:
            return max(0, positions - model.canvas_length)  # room for a canvas after the last token
        return positions

    def decoder(self, context: EngineContext) -> "TokenDecoder":
        return TokenDecoder(context, self)


class TokenDecoder(Decoder):
    """Decoder of tokens from left to right."""

    def __init__(self, context: EngineContext, decoding: Autoregressive):
        super().__init__(context)
        self._model: CausalLM = context.model
        self._by_kernel = context.by_kernel
        self._temperature = decoding.temperature
        self._drafts = Drafts(context) if decoding.drafts else None

    def constrain(
        self, sequence: Sequence, compiled: Compiled | None, reasoning: Reasoning | None
    ) -> None:
        request, drafting = sequence.request, None
        stops, budget = {*self._config.stops, *request.stop_token_ids}, request.max_tokens
        if compiled is None:
            constraint = FreeTokens(stops, budget)
            if reasoning is not None and reasoning.limited:
                constraint = BoundedTokens(stops, budget, reasoning)
            if self._drafts:
                sequence.constraint = drafting = Free(stops)
        else:
            work = self._policy.step_work
            constraint = LeftToRight(compiled, budget, reasoning, work)
            if self._drafts:
                sequence.constraint = drafting = Frontier(compiled, budget, reasoning, work)
        numbers = DrawNumbers(fixed(request.seed), sequence.rng.device)
        sequence.state = LeftToRightState(constraint=constraint, drafting=drafting, numbers=numbers)

    def step(self, running: Mapping[int, Sequence]) -> Iterator[tuple[int, StepResult | Exception]]:
        """Run one more pass, in which all running requests take part. Drafts are made after all
        that the pass wrote is committed."""
        ready = {slot: s for slot, s in running.items() if s.ready}
        start, ready_to_pass, failed = perf_counter(), dict[int, Sequence](), StepResults()
        for slot, sequence in ready.items():
            try:
                self._query(slot, sequence, max(1, self._policy.step_work // len(ready)))
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

    def _query(self, slot: int, sequence: Sequence, work: int) -> None:
        """Query the constraint for the next tokens, unless that has been done. Forced tokens are
        written at once: the next pass reads them along with the rest."""
        state = sequence.state
        if state.next_tokens is None:
            state.constraint.work = work
            draft, refused = state.draft, set[int]()
            if sequence.refused:  # a draft may repeat refused tokens
                draft, refused = [], sequence.refused.get(tuple(sequence.tokens), refused)
            try:
                next_tokens = state.constraint.look(draft, refused, state.exact)
            finally:
                sequence.grammar_work += state.constraint.spent
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
        exclude_mask_(logits, self._config.sampler)
        read = perf_counter()
        rows = [row for each in next_tokens.values() for row in each.rows]
        uniform = [u for slot, s in predicted.items() for u in self._uniform(s, counts[slot])]
        temperatures = [
            self._temperature_of(s) for slot, s in predicted.items() for _ in range(counts[slot])
        ]
        cuts = [self._cut(s) for slot, s in predicted.items() for _ in range(counts[slot])]
        picks = iter(
            pick(
                logits,
                rows,
                uniform,
                temperatures,
                self._model.softcap,
                copies,
                self._by_kernel,
                cuts,
            )
        )
        results = StepResults()
        for slot, sequence in predicted.items():
            picked = list(islice(picks, counts[slot]))
            results[slot] = self._keep(slot, sequence, next_tokens[slot].draft, picked)
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

    def _keep(
        self, slot: int, sequence: Sequence, draft: list[int], picks: list[int]
    ) -> StepResult | Exception:
        """Keep the leading tokens of the draft that were picked anyway, and the first pick after
        them."""
        if UNDEFINED in picks:
            return UndefinedLogitsError()
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

    def _start(self, sequence: Sequence) -> None:
        """Do nothing: the constraint is first queried before the first pass."""

    def advance(
        self, slot: int, sequence: Sequence, outcome: StepResult | Exception
    ) -> Iterator[Event]:
        """Commit what was written, and end the request if its answer ends."""
        state = sequence.state
        self.check_work(sequence)
        if isinstance(outcome, Unfinished):
            state.work += state.constraint.work
            self._count_work(state.work, "a token")
            return
        if isinstance(outcome, Exception):
            raise outcome
        self._note_pass(sequence)
        sequence.write(self._stopped(sequence, outcome.tokens))
        sequence.squeezed = state.constraint.squeezed
        if sequence.cut or sequence.halted or state.constraint.ended:
            yield from self._finish(sequence, "stop")
        elif len(sequence.tokens) == sequence.request.max_tokens:
            yield from self._finish(sequence, "length")
        else:
            yield from self._emit(sequence)

    def _go_back(self, slot: int, sequence: Sequence, at: int) -> None:
        sequence.state.rollback(len(sequence.tokens) - at)
        sequence.state.numbers.renew(at)
        kept = len(sequence.prompt) + at
        self._cache.rewind(slot, min(self._cache.length(slot), kept))
        sequence.go_back(at, at)
