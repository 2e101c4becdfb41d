"""Decoding in canvases: what an engine needs to serve a diffusion language model.

Passes one after another: the model reads all canvases that are ready, their constraints decide.

All canvases share a pass, since its weights are read once for all of them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch

from dlm.config import DecodeConfig
from dlm.errors import DlmError
from dlm.events import Draft, Event
from dlm.grammar import Bounded, Compiled, Free, Frontier, Reasoning, Unfinished
from dlm.logits.masks import MaskTable
from dlm.loop.decoding import Decoder, EngineContext, Model
from dlm.loop.denoise import Denoiser, Outcome, PassOutput, denoise, settle
from dlm.loop.pass_plan import Cache, plan_pass
from dlm.sequence import Sequence

SlotOutcomes = Iterator[tuple[int, Outcome | Exception | None]]  # by slot


class Pipeline:
    """No pass is under way between two calls of `step`: caches and slots may be changed there."""

    def __init__(
        self,
        model: Denoiser,
        cache: Cache,
        config: DecodeConfig,
        encode_tokens: int,
        work: int,
        by_kernel: bool | None = None,
    ):
        """A pass encodes `encode_tokens` of prompts, constraints do `work` units in a step.
        `by_kernel` says whether a kernel reads logits; None: where they are on a GPU."""
        self._model, self._cache, self._config = model, cache, config
        self._encode_tokens, self._work = encode_tokens, work
        self.masks = MaskTable(-(-model.vocab_size // 32))
        more = {"config": config, "masks": self.masks, "by_kernel": by_kernel}
        self._denoise = partial(denoise, model, cache, **more)
        self.idle = False  # the last step had nothing to do

    def step(self, running: Mapping[int, Sequence]) -> SlotOutcomes:
        """Do one more pass for the requests that are `running`, by slot.

        Yields what became of the canvases that the pass completes, by slot. A question's is None,
        once its labels are summed. Raises what the model raises.
        """
        turn = plan_pass(running, self._cache, self._encode_tokens)
        self.idle = not turn
        reading = self._denoise(turn=turn) if turn else None
        if reading:
            yield from self._settled(reading, running)
        yield from self._summed(running)

    def _settled(self, reading: PassOutput, running: Mapping[int, Sequence]) -> SlotOutcomes:
        """Ask the constraints of the canvases of a pass, and take these a step further."""
        yield from settle(self._model, reading, self._config, self._work).items()

    def _summed(self, running: Mapping[int, Sequence]) -> SlotOutcomes:
        """Sum up the labels of questions whose canvases have been read, who came first first: a
        step's work of it, and at most one position more."""
        work = self._work
        for slot, sequence in list(running.items()):
            asked = sequence.asked
            if asked is None or not asked.was_read:
                continue
            self.idle = False
            try:
                work = asked.sum(work)
            except Exception as error:
                yield slot, error
            else:
                if asked.ready:
                    yield slot, None


@dataclass(frozen=True, slots=True, kw_only=True)
class Diffusion:
    """A canvas is denoised until it is settled, and then committed as a whole."""

    shares_passes: ClassVar[bool] = True  # a pass over more than two canvases takes longer

    def check(self, model: Model, config: DecodeConfig) -> None:
        if not isinstance(model, Denoiser):
            raise DlmError(f"a {type(model).__name__} denoises no canvases: decode left to right")
        config.check_padding()

    def room(self, model: Denoiser, positions: int) -> int:
        return positions // model.canvas_length * model.canvas_length

    def decoder(self, parts: EngineContext) -> "CanvasDecoder":
        return CanvasDecoder(parts)

    def passes(self, parts: EngineContext) -> Pipeline:
        limits = parts.policy.encode_tokens, parts.policy.step_work
        return Pipeline(parts.model, parts.cache, parts.config, *limits, parts.by_kernel)

    def constrain(
        self,
        sequence: Sequence,
        compiled: Compiled | None,
        reasoning: Reasoning | None,
        parts: EngineContext,
    ) -> None:
        config, request = parts.config, sequence.request
        room = request.max_tokens
        if compiled is None:
            stops = {*config.stops, *request.stop_token_ids}
            sequence.constraint = Free(stops)
            if reasoning is not None and reasoning.budget is not None:
                sequence.constraint = Bounded(stops, reasoning, -(-len(parts.vocabulary) // 32))
        else:
            sequence.constraint = Frontier(compiled, room, reasoning, parts.policy.step_work)


class CanvasDecoder(Decoder):
    """Requests go from canvas to canvas, questions are answered from one."""

    decides = True

    def __init__(self, parts: EngineContext):
        more = parts.policy, parts.vocabulary, parts.compiler
        super().__init__(parts.cache, parts.config, *more)
        self._model: Denoiser = parts.model

    def _start(self, sequence: Sequence) -> None:
        self._begin_canvas(sequence)

    def _begin_canvas(self, sequence: Sequence) -> None:
        """Start the next canvas of a request from noise."""
        L, device = self._model.canvas_length, self._model.device
        noise = torch.randint(self._model.vocab_size, (L,), generator=sequence.rng, device=device)
        sequence.begin_canvas(noise, self._model.no_soft_embedding())

    def advance(
        self, slot: int, sequence: Sequence, outcome: Outcome | Exception | None
    ) -> Iterator[Event]:
        """Tell of the pass; commit the canvas if it settled, and see whether the answer ends. A
        question is answered."""
        if isinstance(outcome, Unfinished):
            canvas = sequence.canvas  # nothing of the look counts yet
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
            yield from self._tell(sequence)
            return
        room = sequence.request.max_tokens - len(sequence.tokens)
        tokens = self._stopped(sequence, guidance.guess[: guidance.stop + 1][:room])
        sequence.constraint.commit(tokens)
        sequence.canvas.pinned = []
        sequence.commit(tokens)
        if sequence.cut or sequence.halted or guidance.stop < len(tokens):
            yield from self._finish(sequence, "stop")
        elif len(tokens) == room:
            yield from self._finish(sequence, "length")
        else:
            self._begin_canvas(sequence)
            yield from self._tell(sequence)

    def _decide(self, sequence: Sequence) -> Iterator[Event]:
        sequence.ended = True
        if sequence.asked is not None:
            decided = sequence.asked.answer(len(sequence.prompt), sequence.stats)
            yield from () if decided is None else (decided,)

    def _final(self, sequence: Sequence) -> list[int]:
        return sequence.tokens + sequence.canvas.pinned

    def _turn_back(self, slot: int, sequence: Sequence, at: int) -> None:
        L = self._model.canvas_length
        canvas = at // L * L
        sequence.constraint.rollback(len(sequence.tokens) - canvas)
        self._cache.rewind(slot, len(sequence.prompt) + canvas)
        pinned = sequence.tokens[canvas:at]
        self._begin_canvas(sequence)
        barred = sequence.turn_back(at, canvas)
        sequence.canvas.pinned, sequence.canvas.barred = pinned, {at - canvas: barred}
