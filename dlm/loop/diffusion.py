"""Decoding in canvases: what an engine needs to serve a diffusion language model.

All canvases share each pass, since the model's weights are then read once for all of them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from dlm.config import DecodeConfig
from dlm.errors import DlmError
from dlm.events import Draft, Event
from dlm.grammar import Bounded, Compiled, Free, Frontier, Reasoning, Unfinished
from dlm.loop.decoding import Decoder, EngineContext, check_canvases, plan_pass
from dlm.loop.denoise import Outcome, PassOutput, denoise, first_embedding, guide, settle
from dlm.loop.interfaces import Denoiser, Model
from dlm.sequence import Sequence

SlotOutcomes = Iterator[tuple[int, Outcome | Exception | None]]  # by slot


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

    def answer_capacity(self, model: Denoiser, positions: int) -> int:
        return positions // model.canvas_length * model.canvas_length

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
            limits = request.max_tokens, reasoning, self._policy.step_work
            sequence.constraint = Frontier(compiled, *limits)

    def step(self, running: Mapping[int, Sequence]) -> SlotOutcomes:
        """Run one more pass. Yields the outcomes of the canvases that it completes, and None for a
        question after its labels are summed. No pass is under way between two calls: caches and
        slots may be changed there. Raises what the model raises."""
        plan = plan_pass(running, self._cache, self._policy.encode_tokens)
        self.idle = not plan
        if plan:
            output = denoise(self._context, plan)
            if output:
                yield from self._outcomes(output)
        yield from self._summed(running)

    def _outcomes(self, output: PassOutput) -> SlotOutcomes:
        """Query the constraints of the canvases of a pass, and advance these by one step."""
        guided = guide(self._context, output)
        yield from settle(self._context, output, guided).items()

    def _summed(self, running: Mapping[int, Sequence]) -> SlotOutcomes:
        """Sum the labels of questions whose canvases have been read, the oldest first. This does a
        step's work, and goes at most one position beyond it."""
        work = self._policy.step_work
        for slot, sequence in list(running.items()):
            question = sequence.question
            if question is None or not question.was_read:
                continue
            self.idle = False
            try:
                work = question.sum(work)
            except Exception as error:
                yield slot, error
            else:
                if question.ready:
                    yield slot, None

    def _start(self, sequence: Sequence) -> None:
        self._begin_canvas(sequence)

    def _begin_canvas(self, sequence: Sequence) -> None:
        """Start the next canvas of a request."""
        model, sampler = self._model, self._config.sampler
        tokens = sampler.start(sequence.rng, model.canvas_length, model.vocab_size)
        sequence.begin_canvas(tokens, first_embedding(model, sampler))

    def advance(
        self, slot: int, sequence: Sequence, outcome: Outcome | Exception | None
    ) -> Iterator[Event]:
        """Emit a `Draft`, and commit the canvas if it settled. A question is answered."""
        self.check_work(sequence)
        if isinstance(outcome, Unfinished):
            canvas = sequence.canvas  # the query is not finished: nothing of it counts yet
            canvas.work += sequence.constraint.work
            self._count_work(canvas.work, "a canvas")
            return
        if isinstance(outcome, Exception):
            raise outcome
        self._note_pass(sequence)
        if outcome is None:
            yield from self._decide(sequence)
            return
        guidance, canvas = outcome.guidance, sequence.canvas
        yield Draft(
            request=sequence.number,
            step=canvas.steps,
            entropy=outcome.entropy,
            tokens=guidance.guess,
            accepted=outcome.accepted,
            pinned=len(canvas.pinned),
            suspect=guidance.suspect,
            passes=sequence.stats.denoiser_calls,
            repairs=sequence.stats.repairs,
        )
        if not outcome.settled:
            yield from self._emit(sequence)
            return
        budget_left = sequence.request.max_tokens - len(sequence.tokens)
        tokens = self._stopped(sequence, guidance.guess[: guidance.stop + 1][:budget_left])
        sequence.constraint.commit(tokens)
        sequence.canvas.pinned = []
        sequence.commit(tokens)
        sequence.squeezed = sequence.constraint.squeezed
        if sequence.cut or sequence.halted or guidance.stop < len(tokens):
            yield from self._finish(sequence, "stop")
        elif len(tokens) == budget_left:
            yield from self._finish(sequence, "length")
        else:
            self._begin_canvas(sequence)
            yield from self._emit(sequence)

    def _decide(self, sequence: Sequence) -> Iterator[Event]:
        sequence.ended = True
        if sequence.question is not None:
            decided = sequence.question.answer(len(sequence.prompt), sequence.stats)
            yield from () if decided is None else (decided,)

    def _final(self, sequence: Sequence) -> list[int]:
        return sequence.tokens + sequence.canvas.pinned

    def _go_back(self, slot: int, sequence: Sequence, at: int) -> None:
        L = self._model.canvas_length
        canvas = at // L * L
        sequence.constraint.rollback(len(sequence.tokens) - canvas)
        self._cache.rewind(slot, len(sequence.prompt) + canvas)
        pinned = sequence.tokens[canvas:at]
        self._begin_canvas(sequence)
        barred = sequence.go_back(at, canvas)
        sequence.canvas.pinned, sequence.canvas.barred = pinned, {at - canvas: barred}
