"""Base classes of decoding: passes over the running requests, and what happens to each of them.

A `Decoder` runs passes, commits tokens, emits events, checks finished answers and ends requests. A
`Decoding` is how a model writes, in canvases or left to right; it makes an engine's decoder.
`plan_pass` schedules the work of a pass.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, ClassVar, Protocol, runtime_checkable

from dlm.config import DecodeConfig
from dlm.errors import DlmError
from dlm.events import Committed, Event, Finished
from dlm.grammar import Compiled, Compiler, InvalidValueError, Reasoning, Task, Vocabulary
from dlm.logits.masks import MaskTable
from dlm.loop.interfaces import Cache, Model, SelfConditioned
from dlm.models.image_tokens import piece_length
from dlm.models.pages import CHUNK
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


@dataclass(frozen=True, slots=True)
class PassPlan:
    """Work of one pass. A canvas can be denoised, or a next token predicted, in the pass that
    encodes the last tokens before it."""

    encode: dict[int, list[int]] = field(default_factory=dict)  # tokens to append, by slot
    canvases: dict[int, Sequence] = field(default_factory=dict)  # encoded thereby, by slot

    def __bool__(self) -> bool:
        return bool(self.encode or self.canvases)


def plan_pass(running: Mapping[int, Sequence], cache: Cache, budget: int) -> PassPlan:
    """Return what the next pass does for the `running` requests, by slot, the oldest first.

    Prompts are cut at multiples of `CHUNK`, and not within images, whatever else the pass has to
    do: chunks of other sizes may round differently, and a request's output must not depend on what
    runs beside it. Finished canvases are encoded at once. About `budget` tokens of prompts are
    encoded, and at least one chunk: a long prompt takes several passes, and delays no other
    request.
    """
    plan, prompts = PassPlan(), 0
    for slot, sequence in sorted(running.items(), key=lambda one: not one[1].tokens):
        if not sequence.ready:
            continue
        encoded = cache.length(slot)
        rest = sequence.unencoded(encoded)
        room = CHUNK - encoded % CHUNK if encoded < len(sequence.prompt) else CHUNK
        chunk = rest[: piece_length(rest, room)]
        if chunk and not sequence.tokens:
            if prompts and prompts + len(chunk) > budget:
                continue
            prompts += len(chunk)
        if chunk:
            plan.encode[slot] = chunk
        if len(chunk) == len(rest):
            plan.canvases[slot] = sequence
    return plan


class Decoder(ABC):
    """Passes of a model, and state changes of requests as events; `Finished` is the last one. An
    exception raised by a method about one request ends that request, and no other."""

    decides: ClassVar[bool] = False  # whether questions are answered too, from canvases

    def __init__(self, context: EngineContext):
        self._cache, self._config, self._policy = context.cache, context.config, context.policy
        self._vocabulary, self._compiler = context.vocabulary, context.compiler
        self.idle = False  # whether the last step had nothing to do

    @abstractmethod
    def constrain(
        self, sequence: Sequence, compiled: Compiled | None, reasoning: Reasoning | None
    ) -> None:
        """Give a request that is about to run its constraint. Raises `BudgetError` if no answer
        fits its tokens."""

    @abstractmethod
    def step(self, running: Mapping[int, Sequence]) -> Iterator[tuple[int, Any]]:
        """Run one more pass for the `running` requests, by slot. Yields outcomes for `advance`, or
        exceptions, by slot."""

    def begin(self, slot: int, sequence: Sequence) -> None:
        """Start a request in an empty slot."""
        self._cache.reserve(slot, sequence.most_tokens)
        sequence.begun = perf_counter()
        sequence.stats.queued = sequence.begun - sequence.started
        self._start(sequence)

    @abstractmethod
    def _start(self, sequence: Sequence) -> None:
        """Prepare a request for its first pass; its part of the cache is reserved already."""

    @abstractmethod
    def advance(self, slot: int, sequence: Sequence, outcome: Any) -> Iterator[Event]:
        """Yield the events of a pass, and end the request if its answer ends. `outcome` may be the
        exception that the pass raised."""

    @abstractmethod
    def _go_back(self, slot: int, sequence: Sequence, at: int) -> None:
        """Go back to before the token `at`, which is to be replaced."""

    def fits(self, sequence: Sequence) -> bool:
        """Whether the cache can take a request now."""
        return self._cache.fits(sequence.most_tokens)

    def prepare(self, slot: int, sequence: Sequence) -> Iterator[Event]:
        """Look for the prompt in the cache, and act on an answer's finished check, before a
        pass."""
        if not sequence.attached:
            found = self._cache.attach(slot, sequence.prompt)
            if found is not None:
                sequence.attached, sequence.stats.cached = True, found
        elif sequence.checking is not None and sequence.checking.done():
            yield from self._judge(slot, sequence, sequence.checking)

    def _final(self, sequence: Sequence) -> list[int]:
        """Return all tokens that can no longer change."""
        return sequence.tokens

    def _note_pass(self, sequence: Sequence) -> None:
        """Note how long the prompt took, at the first pass after it."""
        if not sequence.stats.prefill:
            sequence.stats.prefill = perf_counter() - sequence.begun

    def _stopped(self, sequence: Sequence, tokens: list[int]) -> list[int]:
        """Return the tokens to commit: all, or those up to a stop within free text. Such a stop is
        a text of `stop`, or a token of `stop_token_ids` that a grammar takes for text."""
        known, stream = len(sequence.tokens), sequence.stream
        cut = stream.stopped_at(sequence.tokens + tokens, known)
        sequence.cut = cut is not None
        tokens = tokens if cut is None else tokens[: cut - known]
        if (halts := sequence.halts) and not halts.isdisjoint(tokens):
            every = sequence.tokens + tokens
            free = stream.free_text(every)
            end = next((i for i in free if i >= known and every[i] in halts), None)
            if end is not None:
                sequence.cut, sequence.halted, tokens = False, True, every[known : end + 1]
        return tokens

    def _count_work(self, so_far: int, what: str) -> None:
        """Raise `DlmError` if a grammar has done too much work for one query."""
        limit = self._policy.max_unfinished_steps * self._policy.step_work
        if so_far > limit:
            raise DlmError(f"the grammar takes over {limit} units of work to match {what}")

    def check_work(self, sequence: Sequence) -> None:
        """Raise `DlmError` if a request's grammar has done too much work for its whole answer."""
        self._policy.check_answer_work(sequence.grammar_work, sequence.request.max_tokens)

    def _emit(self, sequence: Sequence, reason: FinishReason | None = None) -> Iterator[Event]:
        """Yield the tokens that have become final, if there are any. Tokens that may be taken back
        wait for the end, when `reason` is given."""
        final = self._final(sequence)
        if sequence.checked and reason is None:
            final = final[: sequence.stream.free_text(final).stop]
        content = final if reason is None else sequence.content_tokens(reason == "stop")
        tokens, text, reasoning = sequence.stream.emit(final, reason is not None, content)
        if tokens or text or reasoning:
            number = sequence.number
            yield Committed(request=number, tokens=tokens, text=text, reasoning=reasoning)

    def _finish(self, sequence: Sequence, reason: FinishReason) -> Iterator[Event]:
        """Parse a complete answer and end the request. In the background if the answer is long, or
        may be refused because its grammar is wider than its spec."""
        spec = sequence.request.constraint
        if spec is None or reason == "length":
            yield from self._end(sequence, None, reason)
            return
        answer = sequence.answer_tokens()
        if sequence.checked or len(answer) > _AT_ONCE:
            seconds = self._policy.check_seconds
            sequence.checking = self._compiler.check(spec, answer, seconds)
            return
        try:
            parsed = self._instance(sequence, spec.read(answer, self._vocabulary))
        except InvalidValueError as error:
            raise DlmError(f"the result is refused: {error}") from error
        yield from self._end(sequence, parsed, reason)

    def _judge(self, slot: int, sequence: Sequence, checking: Task) -> Iterator[Event]:
        """End the request after its check, or try again if its answer was refused."""
        sequence.checking = None
        try:
            parsed = self._instance(sequence, checking.result())
        except InvalidValueError as error:
            if not sequence.checked or sequence.refusals >= self._config.refusals:
                raise DlmError(f"the result is refused: {error}") from error
            self._go_back(slot, sequence, sequence.token_to_replace(error))
            return
        yield from self._end(sequence, parsed, "stop")

    def _instance(self, sequence: Sequence, value: Any) -> Any:
        """Return the value of a complete answer in the form that its spec gives to the caller."""
        spec = sequence.request.constraint
        if spec is None:
            return value
        return spec.instance(value, sequence.stream.text(sequence.answer_tokens()))

    def _end(self, sequence: Sequence, parsed: Any, reason: FinishReason) -> Iterator[Event]:
        spec = sequence.request.constraint
        if sequence.squeezed and spec is not None:
            sequence.stream.refused_opening = spec.opening
        yield from self._emit(sequence, reason)
        sequence.ended = True
        result = sequence.result(parsed, reason)
        yield Finished(request=sequence.number, result=result)


def check_canvases(model: Model, config: DecodeConfig) -> None:
    """Raise `DlmError` if canvases of a `Denoiser` cannot be decoded with this `config`."""
    if config.sampler.carries and not isinstance(model, SelfConditioned):
        raise DlmError(
            f"a {type(model).__name__} takes no soft embedding, which the sampler carries"
        )
    mask = config.sampler.mask
    if mask is None and config.pad in config.stops:
        raise DlmError(
            f"pad {config.pad} is a stop token too: on noisy canvases it must be another"
        )
    if mask is not None and not 0 <= mask < model.vocab_size:
        raise DlmError(f"mask must be one of the model's {model.vocab_size} tokens, got {mask}")


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

    def answer_capacity(self, model: Any, positions: int) -> int:
        """Return how many tokens an answer may have if the model has `positions` positions left."""
        ...

    def decoder(self, context: EngineContext) -> Decoder: ...
