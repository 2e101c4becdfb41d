"""What becomes of one request between two passes: it is committed, told, checked, ended.

Knows neither who else runs nor how a pass is made, nor what one is: its subclasses do.

How a model writes: in canvases, or left to right. The engine is passed one of them.

What they share is here: what an engine gives them, and what it asks of them.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch

from dlm.config import DecodeConfig
from dlm.errors import DlmError
from dlm.events import Committed, Event, Finished
from dlm.grammar import Compiled, Compiler, InvalidValueError, Reasoning, Task, Vocabulary
from dlm.loop.pass_plan import Cache
from dlm.policy import Policy
from dlm.request import FinishReason
from dlm.sequence import Sequence

_AT_ONCE = 256  # tokens of an answer that a step reads: a few milliseconds of it


class Decoder(ABC):
    """Its methods tell what happened; `Finished` is the last event of a request.

    What they raise ends the request that it is about.
    """

    decides: ClassVar[bool] = False  # questions are answered too, from canvases

    def __init__(
        self,
        cache: Cache,
        config: DecodeConfig,
        policy: Policy,
        vocabulary: Vocabulary,
        compiler: Compiler,
    ):
        self._cache, self._config, self._policy = cache, config, policy
        self._vocabulary, self._compiler = vocabulary, compiler

    def begin(self, slot: int, sequence: Sequence) -> None:
        """Start a request in an empty slot."""
        self._cache.reserve(slot, sequence.most_tokens)
        sequence.begun = perf_counter()
        sequence.stats.queued = sequence.begun - sequence.started
        self._start(sequence)

    @abstractmethod
    def _start(self, sequence: Sequence) -> None:
        """What a request needs for its first pass, but for room in the cache."""

    @abstractmethod
    def advance(self, slot: int, sequence: Sequence, outcome: Any) -> Iterator[Event]:
        """Tell of a pass, whose outcome may be what it raised; see whether the answer ends."""

    @abstractmethod
    def _turn_back(self, slot: int, sequence: Sequence, at: int) -> None:
        """Go back in front of the token `at`, which is to become another."""

    def fits(self, sequence: Sequence) -> bool:
        """Whether the cache can take a request now."""
        return self._cache.fits(sequence.most_tokens)

    def prepare(self, slot: int, sequence: Sequence) -> Iterator[Event]:
        """Before a pass: look for the prompt in the cache, and see to an answer's check."""
        if not sequence.attached:
            found = self._cache.attach(slot, sequence.prompt)
            if found is not None:
                sequence.attached, sequence.stats.cached = True, found
        elif sequence.checking is not None and sequence.checking.done():
            yield from self._judge(slot, sequence, sequence.checking)

    def _final(self, sequence: Sequence) -> list[int]:
        """All tokens that can no longer change."""
        return sequence.tokens

    def _note_pass(self, sequence: Sequence) -> None:
        """The first pass behind a prompt says how long that took to read."""
        if not sequence.stats.prefill:
            sequence.stats.prefill = perf_counter() - sequence.begun

    def _stopped(self, sequence: Sequence, tokens: list[int]) -> list[int]:
        """What is to be committed of `tokens`: all, or up to where a text of `stop` ends free text,
        or one of `stop_token_ids` does that a grammar takes for text."""
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
        """Raises where a grammar has done too much work for one look."""
        limit = self._policy.looks * self._policy.step_work
        if so_far > limit:
            raise DlmError(f"the grammar takes over {limit} units of work to match {what}")

    def _tell(self, sequence: Sequence, reason: FinishReason | None = None) -> Iterator[Event]:
        """What has become final, if anything has. What may yet be taken back waits for the end,
        for which there is a `reason`."""
        final = self._final(sequence)
        if sequence.checked and reason is None:
            final = final[: sequence.stream.free_text(final).stop]
        said = final if reason is None else sequence.said(reason == "stop")
        tokens, text, reasoning = sequence.stream.tell(final, reason is not None, said)
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
            parsed = self._instance(sequence, spec.read(answer, self._vocabulary))
        except InvalidValueError as error:
            raise DlmError(f"the result is refused: {error}") from error
        yield from self._end(sequence, parsed, reason)

    def _judge(self, slot: int, sequence: Sequence, checking: Task) -> Iterator[Event]:
        """An answer has been checked: it ends the request, or is tried again."""
        sequence.checking = None
        try:
            parsed = self._instance(sequence, checking.result())
        except InvalidValueError as error:
            if not sequence.checked or sequence.refusals >= self._config.refusals:
                raise DlmError(f"the result is refused: {error}") from error
            self._turn_back(slot, sequence, sequence.turning_point(error))
            return
        yield from self._end(sequence, parsed, "stop")

    def _instance(self, sequence: Sequence, value: Any) -> Any:
        """The value of a complete answer, as its spec gives it to the caller."""
        spec = sequence.request.constraint
        if spec is None:
            return value
        return spec.instance(value, sequence.stream.text(sequence.answer(stopped=True)[1]))

    def _end(self, sequence: Sequence, parsed: Any, reason: FinishReason) -> Iterator[Event]:
        yield from self._tell(sequence, reason)
        sequence.ended = True
        result = sequence.result(parsed, reason)
        yield Finished(request=sequence.number, result=result)


@runtime_checkable
class Model(Protocol):
    """What every model has, however it is decoded."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def max_positions(self) -> int: ...

    @property
    def device(self) -> torch.device: ...

    @property
    def softcap(self) -> float | None:
        """A logit l counts as softcap * tanh(l / softcap); None: as it is."""
        ...

    def new_cache(self, slots: int) -> Any: ...  # a Cache, of the model's own kind


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineContext:
    """What an engine has, for its decoding to work with."""

    model: Any  # a Model that can do what the decoding asks of it
    cache: Cache
    config: DecodeConfig
    policy: Policy
    vocabulary: Vocabulary
    compiler: Compiler
    by_kernel: bool | None  # whether kernels read logits; None: on GPUs


class Passes(Protocol):
    """The passes of a model over the requests that run."""

    idle: bool  # the last step had nothing to do

    def step(self, running: Mapping[int, Sequence]) -> Iterator[tuple[int, Any]]:
        """One more pass; yields its outcomes, for the decoder, or exceptions, by slot."""
        ...


@runtime_checkable
class Decoding(Protocol):
    """Makes the parts of an engine that depend on how its model writes."""

    shares_passes: ClassVar[bool]
    """Whether a pass takes longer the more requests it is for, so that clients share passes."""

    def check(self, model: Model, config: DecodeConfig) -> None:
        """Raises `DlmError` for a model that cannot write so, or not by this `config`."""
        ...

    def room(self, model: Any, positions: int) -> int:
        """Tokens that an answer may have if the model has so many positions left for it."""
        ...

    def decoder(self, parts: EngineContext) -> Decoder: ...

    def passes(self, parts: EngineContext) -> Passes: ...

    def constrain(
        self,
        sequence: Sequence,
        compiled: Compiled | None,
        reasoning: Reasoning | None,
        parts: EngineContext,
    ) -> None:
        """Give a request that is about to run its constraint. Raises `BudgetError` if no answer
        fits its tokens."""
        ...
