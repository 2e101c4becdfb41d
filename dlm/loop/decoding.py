"""Base classes of decoding: passes over the running requests, and what happens to each of them.

A `Decoder` runs passes, commits tokens, emits events, checks finished answers and ends requests. A
`Decoding` is how a model writes, in canvases or left to right; it makes an engine's decoder.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import takewhile
from time import perf_counter
from typing import Any, ClassVar, Protocol, runtime_checkable

from dlm.config import DecodeConfig
from dlm.errors import DlmError
from dlm.events import Committed, Event, Finished
from dlm.grammar import Compiled, Compiler, InvalidValueError, Reasoning, Spec, Task, Vocabulary
from dlm.logits.masks import MaskTable
from dlm.logprobs import TokenLogprob
from dlm.loop.canvas_grid import CanvasGrid
from dlm.loop.interfaces import Cache, Model, SelfConditioned
from dlm.loop.pass_plan import PassPlan
from dlm.policy import Policy
from dlm.request import FinishReason
from dlm.sequence import Sequence

_AT_ONCE = 256  # longest answer, in tokens, that a step parses itself: a few milliseconds


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineContext:
    """Objects of an engine that its decoding works with."""

    model: Any  # a `Model` that has the methods the decoding needs
    cache: Cache
    config: DecodeConfig
    policy: Policy
    vocabulary: Vocabulary
    compiler: Compiler
    masks: MaskTable  # of all grammars
    by_kernel: bool | None  # whether kernels read logits; None: on GPUs
    grid: CanvasGrid


class Decoder(ABC):
    """Passes of a model, and state changes of requests as events; `Finished` is the last one.

    A step calls `plan`, `run`, `guide` and `settle`, then `commit` for each outcome. An exception
    raised by a method about one request ends that request, and no other: `constrain`, `begin`,
    `prepare` and `commit`. These two add events to a list, so that none is lost by an exception.
    """

    decides: ClassVar[bool] = False  # whether questions are answered too, from canvases

    def __init__(self, context: EngineContext):
        self._cache, self._config, self._policy = context.cache, context.config, context.policy
        self._vocabulary, self._compiler = context.vocabulary, context.compiler
        self._grid = context.grid

    @abstractmethod
    def constrain(
        self, sequence: Sequence, compiled: Compiled | None, reasoning: Reasoning | None
    ) -> None:
        """Give a request that is about to run its constraint. Raises `BudgetError` if no answer
        fits its tokens."""

    @abstractmethod
    def plan(self, running: Mapping[int, Sequence]) -> PassPlan:
        """Return what the next pass does for the `running` requests, by slot."""

    @abstractmethod
    def run(self, plan: PassPlan) -> Any:
        """Run one pass of the model, and return its output; None if no canvas or token follows.
        Raises what the model raises."""

    @abstractmethod
    def guide(self, output: Any) -> Any:
        """Return what the constraints make of the output of `run`. No text moves on."""

    @abstractmethod
    def settle(self, plan: PassPlan, output: Any, guidance: Any) -> dict[int, Any]:
        """Move the running requests by one pass; returns outcomes for `commit`, by slot, which may
        be exceptions."""

    def draft(
        self,
        output: Any,
        outcomes: Mapping[int, Any],
        running: Mapping[int, Sequence],
        events: list[Event],
    ) -> dict[int, Exception]:
        """Draft what comes after the committed `outcomes`, where the model drafts for itself, and
        add a picture of each draft to `events`. Returns exceptions for `commit`, by slot."""
        return {}

    def begin(self, sequence: Sequence) -> None:
        """Start a request that has got a slot."""
        sequence.begun = perf_counter()
        sequence.stats.queued = sequence.begun - sequence.started
        self._start(sequence)

    @abstractmethod
    def _start(self, sequence: Sequence) -> None:
        """Prepare a request for its first pass; its part of the cache is reserved already."""

    @abstractmethod
    def commit(self, sequence: Sequence, outcome: Any, events: list[Event]) -> None:
        """Commit what a pass has settled, add its events to `events`, and end the request if its
        answer ends. `outcome` may be the exception that the pass raised."""

    @abstractmethod
    def _go_back(self, slot: int, sequence: Sequence, at: int) -> None:
        """Go back to before the token `at`, which is to be replaced."""

    def prepare(self, slot: int, sequence: Sequence, events: list[Event]) -> None:
        """Look for the prompt in the cache, and act on an answer's finished check, before a
        pass."""
        if not sequence.attached:
            prompt = sequence.prompt
            cached = self._cache.attach(slot, prompt[: self._grid.encodable(len(prompt))])
            if cached is not None:
                sequence.attached, sequence.stats.cached = True, cached
        else:
            self.judge(slot, sequence, events)

    def judge(self, slot: int, sequence: Sequence, events: list[Event]) -> None:
        """End the request if its answer's check is done, or try again if the answer was refused."""
        if sequence.checking is not None and sequence.checking.done():
            self._judge(slot, sequence, sequence.checking, events)

    def _final(self, sequence: Sequence) -> list[int]:
        """Return all tokens that can no longer change."""
        return sequence.tokens

    def _final_logprobs(self, sequence: Sequence) -> list[TokenLogprob]:
        """Return the log-probabilities of the tokens that `_final` returns."""
        return sequence.logprobs

    def _note_pass(self, sequence: Sequence) -> None:
        """Note how long the prompt took, at the first pass after it."""
        if not sequence.stats.prefill:
            sequence.stats.prefill = perf_counter() - sequence.begun

    def _stopped(self, sequence: Sequence, tokens: list[int]) -> list[int]:
        """Return the tokens to commit: all, or those up to a stop within free text, which is
        noted."""
        tokens, sequence.cut, sequence.halted = self._up_to_stop(sequence, tokens)
        return tokens

    def _up_to_stop(self, sequence: Sequence, tokens: list[int]) -> tuple[list[int], bool, bool]:
        """Return those of `tokens`, which follow the committed ones, up to a stop within free text.
        Also whether that is a text of `stop`, and whether it is a token of `stop_token_ids` that a
        grammar takes for text."""
        committed, stream = len(sequence.tokens), sequence.stream
        cut = stream.stopped_at(sequence.tokens + tokens, committed)
        tokens = tokens if cut is None else tokens[: cut - committed]
        if (halts := sequence.halts) and not halts.isdisjoint(tokens):
            every = sequence.tokens + tokens
            free = stream.free_text(every)
            end = next((i for i in free if i >= committed and every[i] in halts), None)
            if end is not None:
                return every[committed : end + 1], False, True
        return tokens, cut is not None, False

    def _count_work(self, so_far: int, what: str) -> None:
        """Raise `DlmError` if a grammar has done too much work for one query."""
        limit = self._policy.max_unfinished_steps * self._policy.step_work
        if so_far > limit:
            raise DlmError(f"the grammar takes over {limit} units of work to match {what}")

    def check_work(self, sequence: Sequence) -> None:
        """Raise `DlmError` if a request's grammar has done too much work for its whole answer."""
        self._policy.check_answer_work(sequence.grammar_work, sequence.request.max_tokens)

    def _emit(
        self, sequence: Sequence, events: list[Event], reason: FinishReason | None = None
    ) -> None:
        """Emit the tokens that have become final, if there are any. Tokens that may be taken back
        wait for the end, when `reason` is given."""
        final = self._final(sequence)
        if sequence.checked and reason is None:
            final = final[: sequence.stream.free_text(final).stop]
        content = final if reason is None else sequence.content_tokens(reason == "stop")
        new = sequence.stream.emit(final, reason is not None, content)
        logprobs = self._new_logprobs(sequence, content, reason is not None)
        if new.tokens or new.answer or new.text or new.reasoning or logprobs:
            event = Committed(
                request=sequence.number,
                tokens=new.tokens,
                answer=new.answer,
                text=new.text,
                reasoning=new.reasoning,
                logprobs=logprobs,
            )
            events.append(event)

    def _new_logprobs(
        self, sequence: Sequence, final: list[int], ended: bool
    ) -> list[TokenLogprob]:
        """Return those of the answer's `final` tokens, if they are asked for, that no event has had
        yet. Unless the answer has `ended`, they wait from a token on that may be its stop."""
        if sequence.request.logprobs is None:
            return []
        stops = {*self._config.stops, *sequence.request.stop_token_ids}
        if not ended and not stops.isdisjoint(final):
            final = list(takewhile(lambda token: token not in stops, final))
        places = sequence.stream.answer_places(final, ended)[sequence.logprobs_sent :]
        sequence.logprobs_sent += len(places)
        logprobs = self._final_logprobs(sequence)
        return [logprobs[place] for place in places]

    def _finish(self, sequence: Sequence, reason: FinishReason, events: list[Event]) -> None:
        """Parse a complete answer and end the request. In the background if the answer is long, or
        may be refused because its grammar is wider than its spec."""
        spec = sequence.request.constraint
        if spec is None or reason == "length":
            self._end(sequence, None, reason, events)
            return
        answer = sequence.answer_tokens()
        if sequence.checked or len(answer) > _AT_ONCE:
            sequence.checking = sequence.begun_check(answer) or self._check(spec, answer)
            sequence.leave_ahead()
            return
        try:
            parsed = self._instance(sequence, spec.read(answer, self._vocabulary))
        except InvalidValueError as error:
            raise DlmError(f"the result is refused: {error}") from error
        self._end(sequence, parsed, reason, events)

    def _check(self, spec: Spec, answer: list[int]) -> Task:
        """Begin to check a complete answer in another process."""
        return self._compiler.check(spec, answer, self._policy.check_seconds)

    def _check_ahead(self, sequence: Sequence, tokens: list[int]) -> None:
        """Begin the check of an answer that `tokens`, the last a stop, are likely to end, so that
        it is done when they are committed. One is begun in a canvas."""
        spec = sequence.request.constraint
        if spec is None or spec.opens_free or sequence.ahead is not None:
            return
        answer = sequence.stream.split(sequence.tokens + tokens[:-1])[1]
        if sequence.checked or len(answer) > _AT_ONCE:
            sequence.ahead = answer, self._check(spec, answer)

    def _judge(self, slot: int, sequence: Sequence, checking: Task, events: list[Event]) -> None:
        sequence.checking = None
        try:
            parsed = self._instance(sequence, checking.result())
        except InvalidValueError as error:
            if not sequence.checked or sequence.refusals >= self._config.refusals:
                raise DlmError(f"the result is refused: {error}") from error
            self._go_back(slot, sequence, sequence.token_to_replace(error))
            return
        self._end(sequence, parsed, "stop", events)

    def _instance(self, sequence: Sequence, value: Any) -> Any:
        """Return the value of a complete answer in the form that its spec gives to the caller."""
        spec = sequence.request.constraint
        if spec is None:
            return value
        return spec.instance(value, sequence.stream.text(sequence.answer_tokens()))

    def _end(
        self, sequence: Sequence, parsed: Any, reason: FinishReason, events: list[Event]
    ) -> None:
        spec = sequence.request.constraint
        if sequence.squeezed and spec is not None:
            sequence.stream.refused_opening = spec.opening
        self._emit(sequence, events, reason)
        sequence.ended = True
        result = sequence.result(parsed, reason)
        events.append(Finished(request=sequence.number, result=result))


def check_canvases(model: Model, config: DecodeConfig) -> None:
    """Raise `DlmError` if canvases of a `Denoiser` cannot be decoded with this `config`."""
    if config.sampler.carries and not isinstance(model, SelfConditioned):
        raise DlmError(
            f"a {type(model).__name__} takes no soft embedding, which the sampler carries"
        )
    if config.sampler.mask is None and config.pad in config.stops:
        raise DlmError(
            f"pad {config.pad} is a stop token too: on noisy canvases it must be another"
        )


@runtime_checkable
class Decoding(Protocol):
    """Way of decoding, as the engine sees it."""

    @property
    def name(self) -> str:
        """Its name in statistics, one of `Writes` for those of this project."""
        ...

    shares_passes: ClassVar[bool]
    """Whether a pass takes longer with more requests, so that clients have to share passes."""

    def check(self, model: Model, config: DecodeConfig) -> None:
        """Raise `DlmError` for a model that cannot write this way, or not with this `config`."""
        ...

    def answer_capacity(self, model: Any, grid: CanvasGrid, positions: int) -> int:
        """Return how many tokens an answer may have if the model has `positions` positions left."""
        ...

    def decoder(self, context: EngineContext) -> Decoder: ...
