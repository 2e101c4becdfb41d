"""Decoding left to right: what an engine needs to serve a causal language model.

A diffusion language model is one too: its encoder predicts the next token. A pass reads each
request's new tokens and predicts the next one. It also judges a draft, whose leading tokens are
kept as long as they are the ones that would have been written anyway. Each row yields its likeliest
allowed token, or one that is drawn.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from time import perf_counter
from typing import ClassVar

import torch
from jaxtyping import Float
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
    Unfinished,
)
from dlm.grammar.vocabulary import common_prefix
from dlm.left_to_right_state import DrawNumbers, LeftToRightState
from dlm.logits.canvas_logits import DeviceCopies
from dlm.logits.masks import is_forced
from dlm.logits.picks import UNDEFINED, pick
from dlm.logits.sampling import COLDEST, Cut, fixed
from dlm.logits.token_logprobs import token_logprobs
from dlm.logprobs import TokenLogprob
from dlm.loop.beside_questions import BesideQuestions
from dlm.loop.canvas_grid import CanvasGrid
from dlm.loop.decoding import Decoder, EngineContext, check_canvases
from dlm.loop.denoise import exclude_
from dlm.loop.diffusion import CanvasDecoder
from dlm.loop.draft_rows import take_draft_row
from dlm.loop.drafts import Drafts
from dlm.loop.interfaces import CausalLM, DraftingLM, Model
from dlm.loop.pass_plan import PassPlan, plan_pass
from dlm.models.pages import CHUNK
from dlm.sequence import Sequence


@dataclass(frozen=True, slots=True)
class StepResult:
    """Tokens that a pass wrote for one request."""

    tokens: list[int]
    whole: bool  # the whole draft was kept
    logprobs: list[TokenLogprob] = field(default_factory=list)  # of the tokens, if asked for


StepResults = dict[int, StepResult | Exception]  # by slot


@dataclass(frozen=True, slots=True)
class CausalOutput:
    """Output of the model for the requests of a plan. All but `canvases` is by slot."""

    plan: PassPlan
    next_tokens: dict[int, NextTokens]  # that the constraints allow
    logits: Float[Tensor, "n V"]  # row by row of `next_tokens`
    canvases: Float[Tensor, "B L V"] | None  # those after the tokens; None: no drafts are made
    copies: DeviceCopies
    seconds: float  # duration of the pass


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
    temperature: float = 0.0  # of requests without one. 0: the likeliest token; otherwise tokens
    # are drawn by the seed
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

    def answer_capacity(self, model: CausalLM, grid: CanvasGrid, positions: int) -> int:
        if isinstance(model, DraftingLM) and self.drafts:
            return max(0, positions - model.canvas_length)  # room for a canvas after the last token
        return positions

    def decoder(self, context: EngineContext) -> Decoder:
        texts = TokenDecoder(context, self)
        if not self.drafts:
            return texts
        return BesideQuestions(context, texts, CanvasDecoder(context))


class TokenDecoder(Decoder):
    """Decoder of tokens from left to right."""

    def __init__(self, context: EngineContext, decoding: Autoregressive):
        super().__init__(context)
        if self._grid.caches == "whole":
            raise DlmError("blocks of this model are cached whole: it writes in canvases alone")
        self._model: CausalLM = context.model
        self._by_kernel = context.by_kernel
        self._temperature = decoding.temperature
        self._drafts = Drafts(context) if decoding.drafts else None
        self._masks = self._config.sampler.mask is not None

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

    def plan(self, running: Mapping[int, Sequence]) -> PassPlan:
        """Query the constraints of all running requests, which needs no logits, and plan a pass for
        those that have answered."""
        ready = {slot: s for slot, s in running.items() if s.ready}
        start, answered, errors = perf_counter(), dict[int, Sequence](), dict[int, Exception]()
        for slot, sequence in ready.items():
            try:
                self._query(slot, sequence, max(1, self._policy.step_work // len(ready)))
                answered[slot] = sequence
            except Exception as error:
                errors[slot] = error
        plan = plan_pass(answered, self._cache, self._policy.encode_tokens, self._grid)
        return replace(plan, errors=errors, seconds=perf_counter() - start)

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
                if (top := sequence.request.logprobs) is not None:
                    forced = next_tokens.forced
                    sequence.logprobs += [TokenLogprob.forced(token, top) for token in forced]
            else:  # its prompt is not read yet
                next_tokens = _all_drafted(next_tokens)
            state.next_tokens, state.work = next_tokens, 0
        committed = len(sequence.prompt) + len(sequence.tokens)
        if self._cache.length(slot) == committed:  # a prediction needs its last token to be read
            self._cache.rewind(slot, committed - 1)

    @torch.inference_mode()
    def run(self, plan: PassPlan) -> CausalOutput | None:
        """Encode what `plan` lists, and predict for the requests that this completes. With drafts,
        canvases after them are denoised too."""
        if not plan.runs:
            return None
        start, copies, predicted = perf_counter(), DeviceCopies(self._model.device), plan.canvases
        next_tokens = {
            slot: _within_pass(s.state.next_tokens, len(plan.encode[slot]))
            for slot, s in predicted.items()
        }
        tokens = {slot: list(chunk) for slot, chunk in plan.encode.items()}
        for slot, allowed in next_tokens.items():
            tokens[slot] += allowed.draft
        counts = {slot: len(allowed.rows) for slot, allowed in next_tokens.items()}
        canvases = None
        if self._drafts is None or not predicted:
            logits = self._model.predict(tokens, counts, self._cache)
        else:
            drafts = {slot: allowed.draft for slot, allowed in next_tokens.items()}
            logits, canvases = self._drafts.predict(tokens, counts, predicted, drafts, self._cache)
        exclude_(logits, self._config)
        return CausalOutput(plan, next_tokens, logits, canvases, copies, perf_counter() - start)

    @torch.inference_mode()
    def guide(self, output: CausalOutput | None) -> dict[int, list[int]]:
        """Pick a token for each row, of those that its constraint allows; returns them by slot."""
        if output is None:
            return {}
        start, next_tokens = perf_counter(), output.next_tokens
        counts = {slot: len(allowed.rows) for slot, allowed in next_tokens.items()}
        rows = [row for allowed in next_tokens.values() for row in allowed.rows]
        running = output.plan.canvases
        uniform = [u for slot, s in running.items() for u in self._uniform(s, counts[slot])]
        temperatures = [
            self._temperature_of(s) for slot, s in running.items() for _ in range(counts[slot])
        ]
        cuts = [self._cut(s) for slot, s in running.items() for _ in range(counts[slot])]
        picks = iter(
            pick(
                output.logits,
                rows,
                uniform,
                temperatures,
                self._model.softcap,
                output.copies,
                self._by_kernel,
                cuts,
            )
        )
        picked = {slot: list(islice(picks, count)) for slot, count in counts.items()}
        seconds = perf_counter() - start
        for sequence in running.values():
            sequence.stats.spend(denoise=output.seconds, guide=output.plan.seconds, settle=seconds)
        return picked

    def settle(
        self, plan: PassPlan, output: CausalOutput | None, guidance: dict[int, list[int]]
    ) -> StepResults:
        """Keep the picked tokens of each request up to the first that a draft has wrong."""
        results, start = StepResults(plan.errors), perf_counter()
        if output is None:
            return results
        first_row = 0  # of the slot's in the logits
        for slot, sequence in plan.canvases.items():
            next_tokens = output.next_tokens[slot]
            results[slot] = result = self._keep(slot, sequence, next_tokens.draft, guidance[slot])
            if sequence.request.logprobs is not None and isinstance(result, StepResult):
                tokens = result.tokens
                logprobs = self._logprobs_of(output, first_row, next_tokens, tokens, sequence)
                results[slot] = replace(result, logprobs=logprobs)
            first_row += len(next_tokens.rows)
        for sequence in plan.canvases.values():
            sequence.stats.causal_calls += 1
            sequence.stats.copies += output.copies.count
            sequence.stats.spend(settle=perf_counter() - start)
        return results

    def draft(
        self,
        output: CausalOutput | None,
        outcomes: Mapping[int, StepResult | Exception],
        running: Mapping[int, Sequence],
        events: list[Event],
    ) -> dict[int, Exception]:
        if self._drafts is None or output is None or output.canvases is None:
            return {}
        written = {
            slot: s if running.get(slot) is s and s.ready and _whole(outcomes[slot]) else None
            for slot, s in output.plan.canvases.items()
        }
        drafted = self._drafts.draft(output.canvases, written)
        for slot, sequence in output.plan.canvases.items():
            canvas = drafted.get(slot)
            pictured = running.get(slot) is sequence and isinstance(outcomes[slot], StepResult)
            if pictured and sequence.ready and not isinstance(canvas, Exception):
                events.append(take_draft_row(sequence, canvas, self._masks))
        return {slot: each for slot, each in drafted.items() if isinstance(each, Exception)}

    def _logprobs_of(
        self,
        output: CausalOutput,
        first_row: int,
        next_tokens: NextTokens,
        tokens: list[int],
        sequence: Sequence,
    ) -> list[TokenLogprob]:
        """Return the log-probabilities of the `tokens` that a pass has written, whose logits begin
        at `first_row`."""
        top = sequence.request.logprobs or 0
        logprobs = {
            i: TokenLogprob.forced(token, top)
            for i, token in enumerate(tokens)
            if is_forced(next_tokens.rows[i])
        }
        chosen = [i for i in range(len(tokens)) if i not in logprobs]
        rows, theirs = [first_row + i for i in chosen], [tokens[i] for i in chosen]
        softcap, copies = self._model.softcap, output.copies
        of_chosen = token_logprobs(output.logits, rows, theirs, top, softcap, copies)
        logprobs |= zip(chosen, of_chosen, strict=True)
        return [logprobs[i] for i in range(len(tokens))]

    def _temperature_of(self, sequence: Sequence) -> float:
        """Return the request's temperature, or the decoding's if it has none. A request with a cut
        and neither draws at 1: a cut of the likeliest token would do nothing."""
        request = sequence.request
        if request.temperature is not None:
            return request.temperature
        if not self._temperature and Cut.of(request, 1.0) is not None:
            return 1.0
        return self._temperature

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

    def commit(
        self, sequence: Sequence, outcome: StepResult | Exception, events: list[Event]
    ) -> None:
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
        tokens = self._stopped(sequence, outcome.tokens)
        sequence.write(tokens)
        sequence.logprobs += outcome.logprobs[: len(tokens)]
        sequence.squeezed = state.constraint.squeezed
        ends = sequence.cut or sequence.halted or state.constraint.ended
        if self._drafts and (ends or len(sequence.tokens) == sequence.request.max_tokens):
            events.append(take_draft_row(sequence, None, self._masks))
        if ends:
            self._finish(sequence, "stop", events)
        elif len(sequence.tokens) == sequence.request.max_tokens:
            self._finish(sequence, "length", events)
        else:
            self._emit(sequence, events)

    def _go_back(self, slot: int, sequence: Sequence, at: int) -> None:
        sequence.state.rollback(len(sequence.tokens) - at)
        sequence.state.numbers.renew(at)
        kept = len(sequence.prompt) + at
        self._cache.rewind(slot, min(self._cache.length(slot), kept))
        sequence.go_back(at, at)
