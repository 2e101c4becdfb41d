"""What becomes of one request between two passes: it is committed, told, checked, ended.

Knows neither who else runs nor how a pass is made.
"""

from collections.abc import Iterator
from concurrent.futures import Future
from time import perf_counter
from typing import Any

import torch

from dlm.config import DecodeConfig
from dlm.denoise import Denoiser, Outcome
from dlm.errors import DlmError
from dlm.events import Committed, Draft, Event, Finished
from dlm.grammar import Compiler, InvalidValueError, Unfinished, Vocabulary
from dlm.policy import Policy
from dlm.request import FinishReason
from dlm.sequence import Sequence
from dlm.turn import Cache

_AT_ONCE = 256  # tokens of an answer that a step reads: a few milliseconds of it


class Decoder:
    """Its methods tell what happened; `Finished` is the last event of a request.

    What they raise ends the request that it is about.
    """

    def __init__(
        self,
        model: Denoiser,
        cache: Cache,
        config: DecodeConfig,
        policy: Policy,
        vocabulary: Vocabulary,
        compiler: Compiler,
    ):
        self._model, self._cache, self._config, self._policy = model, cache, config, policy
        self._vocabulary, self._compiler = vocabulary, compiler

    def begin(self, slot: int, sequence: Sequence) -> None:
        """Start a request in an empty slot."""
        self._cache.reserve(slot, sequence.most_tokens)
        sequence.begun = perf_counter()
        sequence.stats.queued = sequence.begun - sequence.started
        self._begin_canvas(sequence)

    def fits(self, sequence: Sequence) -> bool:
        """Whether the cache can take a request now."""
        return self._cache.fits(sequence.most_tokens)

    def _begin_canvas(self, sequence: Sequence) -> None:
        """Start the next canvas of a request from noise."""
        L, device = self._model.canvas_length, self._model.device
        noise = torch.randint(self._model.vocab_size, (L,), generator=sequence.rng, device=device)
        sequence.begin_canvas(noise, self._model.no_soft_embedding())

    def advance(
        self, slot: int, sequence: Sequence, outcome: Outcome | Exception
    ) -> Iterator[Event]:
        """Tell of the pass; commit the canvas if it settled, and see whether the answer ends."""
        if isinstance(outcome, Unfinished):
            self._count_look(sequence)
            return
        if isinstance(outcome, Exception):
            raise outcome
        guidance, canvas = outcome.guidance, sequence.canvas
        if not sequence.stats.prefill:
            sequence.stats.prefill = perf_counter() - sequence.begun
        yield Draft(
            request=sequence.number,
            step=canvas.steps,
            entropy=outcome.entropy,
            tokens=guidance.guess,
            accepted=outcome.accepted,
            pinned=len(canvas.pinned),
        )
        if not outcome.settled:
            yield from self._tell(sequence)
            return
        room = sequence.request.max_tokens - len(sequence.tokens)
        tokens = guidance.guess[: guidance.stop + 1][:room]
        known = len(sequence.tokens)
        cut = sequence.stream.stopped_at(sequence.tokens + tokens, known)
        if cut is not None:
            tokens, sequence.cut = tokens[: cut - known], True
        sequence.constraint.commit(tokens)
        sequence.commit(tokens)
        if sequence.cut or guidance.stop < len(tokens):
            yield from self._finish(sequence, "stop")
        elif len(tokens) == room:
            yield from self._finish(sequence, "length")
        else:
            self._begin_canvas(sequence)
            yield from self._tell(sequence)

    def _count_look(self, sequence: Sequence) -> None:
        """The grammar has not finished its look at the canvas: nothing of it counts yet."""
        canvas, limit = sequence.canvas, self._policy.looks * self._policy.step_work
        canvas.work += sequence.constraint.work
        if canvas.work > limit:
            raise DlmError(f"the grammar takes over {limit} units of work to match a canvas")

    def _tell(self, sequence: Sequence, reason: FinishReason | None = None) -> Iterator[Event]:
        """What has become final, if anything has. What may yet be taken back waits for the end,
        for which there is a `reason`."""
        if sequence.checked and reason is None:
            return
        said = sequence.final if reason is None else sequence.said(reason == "stop")
        tokens, text, reasoning = sequence.stream.tell(sequence.final, reason is not None, said)
        if tokens or text or reasoning:
            number = sequence.number
            yield Committed(request=number, tokens=tokens, text=text, reasoning=reasoning)

    def _finish(self, sequence: Sequence, reason: FinishReason) -> Iterator[Event]:
        """A complete answer is read: in the background if it is long, or may be refused because its
        grammar is wider than its spec."""
        spec = sequence.request.constraint
        if spec is None or reason == "length":
            yield from self._end(sequence, None, reason)
            return
        answer = sequence.answer(stopped=True)[1]
        if sequence.checked or len(answer) > _AT_ONCE:
            seconds = self._policy.check_seconds
            sequence.checking = self._compiler.check(spec, answer, seconds)
            return
        try:
            parsed = spec.read(answer, self._vocabulary)
        except InvalidValueError as error:
            raise DlmError(f"the result is refused: {error}") from error
        yield from self._end(sequence, parsed, reason)

    def prepare(self, slot: int, sequence: Sequence) -> Iterator[Event]:
        """Before a pass: look for the prompt in the cache, and see to an answer's check."""
        if not sequence.attached:
            found = self._cache.attach(slot, sequence.prompt)
            if found is not None:
                sequence.attached, sequence.stats.cached = True, found
        elif sequence.checking is not None and sequence.checking.done():
            yield from self._judge(slot, sequence, sequence.checking)

    def _judge(self, slot: int, sequence: Sequence, checking: "Future[Any]") -> Iterator[Event]:
        """An answer has been checked: it ends the request, or is tried again."""
        sequence.checking = None
        try:
            parsed = checking.result()
        except InvalidValueError as error:
            if sequence.refusals >= self._config.refusals:
                raise DlmError(f"the result is refused: {error}") from error
            self._turn_back(slot, sequence, sequence.turning_point(error.path))
            return
        yield from self._end(sequence, parsed, "stop")

    def _turn_back(self, slot: int, sequence: Sequence, at: int) -> None:
        """Go back in front of the token `at`, which is to become another."""
        L = self._model.canvas_length
        canvas = at // L * L
        sequence.constraint.rollback(len(sequence.tokens) - canvas)
        self._cache.rewind(slot, len(sequence.prompt) + canvas)
        self._begin_canvas(sequence)
        sequence.turn_back(at, canvas)

    def _end(self, sequence: Sequence, parsed: Any, reason: FinishReason) -> Iterator[Event]:
        yield from self._tell(sequence, reason)
        result = sequence.result(parsed, reason)
        yield Finished(request=sequence.number, result=result)
