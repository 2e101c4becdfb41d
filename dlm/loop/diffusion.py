"""Decoding in canvases: what an engine needs to serve a diffusion language model.

All canvases share each pass, since the model's weights are then read once for all of them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from dlm.config import DecodeConfig
from dlm.errors import DlmError
from dlm.events import Draft, Event
from dlm.grammar import Bounded, Compiled, Free, Frontier, Reasoning, Unfinished
from dlm.logprobs import TokenLogprob
from dlm.loop.canvas_grid import CanvasGrid
from dlm.loop.decoding import Decoder, EngineContext, check_canvases
from dlm.loop.denoise import Guided, Outcome, PassOutput, denoise, first_embedding, guide, settle
from dlm.loop.interfaces import Denoiser, Model
from dlm.loop.pass_plan import PassPlan, plan_pass
from dlm.sequence import Sequence

CanvasOutcomes = dict[int, Outcome | Exception | None]
"""Outcomes by slot; None for a question whose labels are summed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Diffusion:
    """Decoding in canvases: each is denoised until it is settled, and then committed as a whole."""

    @property
    def name(self) -> str:
        return "canvas"

    shares_passes: ClassVar[bool] = True  # passes take longer from three canvases on

    def check(self, model: Model, config: DecodeConfig) -> None:
        if not isinstance(model, Denoiser):
            raise DlmError(f"a {type(model).__name__} denoises no canvases: decode left to right")
        check_canvases(model, config)

    def answer_capacity(self, model: Denoiser, grid: CanvasGrid, positions: int) -> int:
        return grid.capacity(positions, model.max_positions)

    def decoder(self, context: EngineContext) -> "CanvasDecoder":
        return CanvasDecoder(context)


class CanvasDecoder(Decoder):
    """Decoder of canvases: a text takes one after another, a question takes one."""

    decides = True

    def __init__(self, context: EngineContext):
        super().__init__(context)
        self._model: Denoiser = context.model
        self._context = context

    def constrain(
        self, sequence: Sequence, compiled: Compiled | None, reasoning: Reasoning | None
    ) -> None:
        request = sequence.request
        if compiled is None:
            stops = {*self._config.stops, *request.stop_token_ids}
            sequence.constraint = Free(stops)
            if reasoning is not None and reasoning.limited:
                words = -(-len(self._vocabulary) // 32)
                sequence.constraint = Bounded(stops, request.max_tokens, reasoning, words)
        else:
            sequence.constraint = Frontier(
                compiled, request.max_tokens, reasoning, self._policy.step_work
            )

    def plan(self, running: Mapping[int, Sequence]) -> PassPlan:
        plan = plan_pass(running, self._cache, self._policy.encode_tokens, self._grid)
        questions = {slot: s for slot, s in running.items() if s.question is not None}
        return replace(plan, questions=questions)

    def run(self, plan: PassPlan) -> PassOutput | None:
        return denoise(self._context, plan) if plan.runs else None

    def guide(self, output: PassOutput | None) -> list[Guided]:
        """Query the constraint of each canvas, within its share of a step's work."""
        return [] if output is None else guide(self._context, output)

    def settle(
        self, plan: PassPlan, output: PassOutput | None, guidance: list[Guided]
    ) -> CanvasOutcomes:
        """Advance the canvases of the pass by one step, and sum the labels of questions."""
        outcomes: CanvasOutcomes = {}
        if output is not None:
            outcomes |= settle(self._context, output, guidance)
        return outcomes | self._summed(plan, outcomes)

    def _summed(self, plan: PassPlan, outcomes: CanvasOutcomes) -> CanvasOutcomes:
        """Sum the labels of questions whose canvases have been read, the oldest first. This does a
        step's work, and goes at most one position beyond it. Decisions that have failed in this
        pass are left out."""
        failed = {
            plan.questions[slot].number
            for slot, outcome in outcomes.items()
            if slot in plan.questions and isinstance(outcome, Exception)
        }
        work, summed = self._policy.step_work, CanvasOutcomes()
        for slot, sequence in plan.questions.items():
            question = sequence.question
            if question is None or not question.was_read or sequence.number in failed:
                continue
            try:
                work = question.sum(work)
            except Exception as error:
                summed[slot] = error
            else:
                if question.ready:
                    summed[slot] = None
        return summed

    def _start(self, sequence: Sequence) -> None:
        self._begin_canvas(sequence)

    def _begin_canvas(self, sequence: Sequence) -> None:
        """Start the next canvas of a request. The end of its prompt may be the beginning."""
        model, sampler = self._model, self._config.sampler
        tokens = sampler.start(sequence.rng, model.canvas_length, model.vocab_size)
        committed = len(sequence.prompt) + len(sequence.tokens)
        prompted = sequence.unencoded(self._grid.encodable(committed))
        tokens[: len(prompted)] = torch.tensor(prompted, dtype=tokens.dtype)
        sequence.begin_canvas(tokens, first_embedding(model, sampler))
        sequence.canvas.prompted = len(prompted)

    def commit(
        self, sequence: Sequence, outcome: Outcome | Exception | None, events: list[Event]
    ) -> None:
        """Emit a `Draft`, and commit the canvas if it settled. A question is answered."""
        self.check_work(sequence)
        if isinstance(outcome, Unfinished):
            self._count_work(sequence.canvas.work, "a canvas")  # nothing of the query counts yet
            return
        if isinstance(outcome, Exception):
            raise outcome
        self._note_pass(sequence)
        if outcome is None:
            self._decide(sequence, events)
            return
        guidance, canvas = outcome.guidance, sequence.canvas
        pinned, accepted = len(canvas.pinned), outcome.accepted
        masked = [False] * len(accepted)
        if self._config.sampler.mask is not None:
            masked = [i >= pinned and not kept for i, kept in enumerate(accepted)]
        draft = Draft(
            request=sequence.number,
            step=canvas.steps,
            committed=len(sequence.tokens),
            entropy=outcome.entropy,
            tokens=guidance.guess,
            accepted=accepted,
            masked=masked,
            pinned=pinned,
            suspect=guidance.suspect,
            passes=sequence.stats.denoiser_calls,
            repairs=sequence.stats.repairs,
        )
        events.append(draft)
        budget_left = self._budget_left(sequence)
        tokens = guidance.guess[: guidance.stop + 1][:budget_left]
        if not outcome.settled:
            if guidance.stop < len(tokens) and canvas.repeats(
                guidance, outcome.entropy, self._config
            ):
                self._check_ahead(sequence, tokens)
            self._emit(sequence, events)
            return
        tokens = self._stopped(sequence, tokens)
        sequence.constraint.commit(tokens)
        canvas.pinned = []
        sequence.commit(tokens)
        if sequence.request.logprobs is not None:
            sequence.logprobs += [canvas.logprobs[place] for place in range(len(tokens))]
        sequence.squeezed = sequence.constraint.squeezed
        if sequence.cut or sequence.halted or guidance.stop < len(tokens):
            self._finish(sequence, "stop", events)
        elif len(tokens) == budget_left:
            self._finish(sequence, "length", events)
        else:
            self._begin_canvas(sequence)
            self._emit(sequence, events)

    def _decide(self, sequence: Sequence, events: list[Event]) -> None:
        sequence.ended = True
        if sequence.question is not None:
            decided = sequence.question.answer(len(sequence.prompt), sequence.stats)
            if decided is not None:
                events.append(decided)

    def _final(self, sequence: Sequence) -> list[int]:
        pinned = sequence.canvas.pinned[: self._budget_left(sequence)]
        pinned, _, halted = self._up_to_stop(sequence, pinned)
        return sequence.tokens + (pinned[:-1] if halted else pinned)  # a stop token is no text

    def _final_logprobs(self, sequence: Sequence) -> list[TokenLogprob]:
        canvas = sequence.canvas
        places = range(len(self._final(sequence)) - len(sequence.tokens))
        return sequence.logprobs + [canvas.logprobs[place] for place in places]

    def _budget_left(self, sequence: Sequence) -> int:
        """Return how many tokens may follow the committed ones."""
        return sequence.request.max_tokens - len(sequence.tokens)

    def _go_back(self, slot: int, sequence: Sequence, at: int) -> None:
        begin = self._grid.begin(len(sequence.prompt), at)
        first = max(0, begin - len(sequence.prompt))  # token of the answer in the canvas
        sequence.constraint.rollback(len(sequence.tokens) - first)
        self._cache.rewind(slot, begin)
        pinned, logprobs = sequence.tokens[first:at], sequence.logprobs[first:at]
        barred = sequence.go_back(at, first)
        self._begin_canvas(sequence)
        sequence.canvas.pinned, sequence.canvas.barred = pinned, {at - first: barred}
        sequence.canvas.logprobs = dict(enumerate(logprobs))
        if self._config.sampler.mask is not None:
            sequence.canvas.show_pinned()
