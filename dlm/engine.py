"""The engine: a fixed number of slots, and one step that takes all of them a pass further."""

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import overload

import torch

from dlm.chat import Chat
from dlm.config import DecodeConfig
from dlm.denoise import Denoiser, Outcome, denoise_step
from dlm.errors import DlmError, RequestError
from dlm.events import Committed, Draft, Event, Failed, Finished
from dlm.grammar import (
    Answer,
    Compiled,
    Compiler,
    Constraint,
    Free,
    Frontier,
    GrammarError,
    InvalidValueError,
    Reasoning,
    Spec,
    Vocabulary,
)
from dlm.models import checkpoint
from dlm.policy import Policy
from dlm.queue import Queue
from dlm.request import FinishReason, Request, Result
from dlm.retry import turning_point
from dlm.slot import Slot
from dlm.stream import Stream

BUILT_IN = Path(checkpoint.__file__).parent / "tiny"


class Engine:
    """Serves requests on one model.

    `add` admits a request, `step` runs one denoising pass for all that are running and tells what
    happened; requests join and leave between passes, each at its own pace. A request's output
    depends on the request alone, never on what runs beside it.
    """

    def __init__(
        self,
        model: Denoiser,
        chat: Chat,
        config: DecodeConfig | None = None,
        slots: int = 8,
        policy: Policy | None = None,
        thought: tuple[str, str] | None = None,
    ):
        """`policy` limits what requests may ask for. `thought` are the texts that open and close
        reasoning; by default Gemma 4's, if the tokenizer has them."""
        if slots < 1:
            raise DlmError(f"slots is {slots}: it takes at least 1")
        self.model, self.chat = model, chat
        self.config, self.policy = config or DecodeConfig(), policy or Policy()
        self.vocabulary = Vocabulary.from_tokenizer(
            chat.tokenizer, model.vocab_size, self.config.stops, self.config.pad, thought
        )
        self._reasoning = Reasoning.of(self.vocabulary)
        self._compiler = Compiler(self.vocabulary, rehearsed=True)
        self._cache = model.new_cache(slots)
        self._free = list(range(slots))
        self._running: dict[int, Slot] = {}  # by cache slot
        self._waiting = Queue(self._constraint, self.policy.compile_seconds)
        self._admitted = 0

    @classmethod
    def load(
        cls,
        directory: str | Path | None = None,
        *,
        dtype: torch.dtype | None = None,
        device: str | torch.device | None = None,
        slots: int = 8,
        policy: Policy | None = None,
    ) -> "Engine":
        """The engine for a DiffusionGemma directory in Hugging Face layout; None: the built-in one.

        By default on the GPU in bf16 if there is one, else on the CPU in fp32. Raises
        `CheckpointError` or `DlmError` for a directory that is none.
        """
        directory = BUILT_IN if directory is None else Path(directory)
        if device is None:
            device = "cuda" if torch.cuda.is_available() else "cpu"
        if dtype is None:
            dtype = torch.float32 if torch.device(device).type == "cpu" else torch.bfloat16
        if not directory.is_dir():
            raise DlmError(f"no model directory at {directory}")
        model = checkpoint.load(directory, dtype, device)
        generation = directory / "generation_config.json"
        settings = checkpoint.read_json(generation) if generation.exists() else {}
        return cls(model, Chat.load(directory), DecodeConfig.from_hf(settings), slots, policy)

    @property
    def busy(self) -> bool:
        """Some admitted request has not ended."""
        return bool(self._running or self._waiting)

    def compile(self, spec: Spec) -> "Future[Compiled]":
        """Compile in the background, ahead of the requests that use `spec`.

        Raises `RequestError` for what the policy refuses; the future raises `InvalidGrammarError`
        where the grammar cannot be expressed.
        """
        self.policy.check(spec)
        return self._compiler.submit(spec)

    def add(self, request: Request) -> int:
        """Admit a request; its number is in every event about it.

        Raises `RequestError` for one that cannot be served, before any work is done for it. What
        only compiling its grammar shows ends it later, as `Failed` with a `RequestError`: the
        request waits for its compiler, the engine does not. `generate` waits, and raises.
        """
        prompt = self.chat.prompt(request)
        V = self.model.vocab_size
        for token in prompt:
            if not isinstance(token, int) or not 0 <= token < V:
                raise RequestError(f"token {token!r} is outside of {V} tokens")
        L = self.model.canvas_length
        room, canvases = self.model.max_positions - len(prompt), -(-request.max_tokens // L)
        if canvases * L > room:
            raise RequestError(
                f"{len(prompt)} prompt tokens leave {max(0, room // L * L)} for the answer, "
                f"fewer than max_tokens {request.max_tokens}"
            )
        spec = request.constraint
        slot = Slot(
            number=self._admitted,
            request=request,
            prompt=prompt,
            stream=Stream(
                vocabulary=self.vocabulary,
                reasoning=self._reasoning if spec is None or request.thinking else None,
                calls=spec is not None and spec.calls,
            ),
            rng=torch.Generator(self.model.device).manual_seed(request.seed),
            uncoded=prompt,
        )
        self._waiting.add(slot, None if spec is None else self.compile(spec))
        self._admitted += 1
        return slot.number

    def cancel(self, number: int) -> None:
        """Drop a request, waiting or running; one that has ended is left as it is."""
        self._waiting.cancel(number)
        for slot in [s for s, running in self._running.items() if running.number == number]:
            self._leave(slot)

    def step(self) -> list[Event]:
        """One denoising pass for every running request."""
        events = self._join()
        self._encode()
        if not self._running:
            return events
        outcomes = denoise_step(self.model, self._cache, self._running, self.config)
        for slot, outcome in outcomes.items():
            if isinstance(outcome, GrammarError):
                number = self._leave(slot).number
                events.append(Failed(request=number, error=DlmError(str(outcome))))
            else:
                events += self._advance(slot, outcome)
        return events

    @overload
    def generate(self, requests: Request) -> Result: ...
    @overload
    def generate(self, requests: Sequence[Request]) -> list[Result]: ...
    def generate(self, requests: Request | Sequence[Request]) -> Result | list[Result]:
        """Run requests to their ends, together. One that cannot be served is refused with
        `RequestError` before any of them starts; one that fails raises after all have ended."""
        if isinstance(requests, Request):
            return self.generate([requests])[0]
        if self.busy:
            raise DlmError("generate would swallow the events of requests that were added before")
        numbers = self._add_all(requests)
        ends: dict[int, Result | DlmError] = {}
        while self.busy:
            for event in self.step():
                if isinstance(event, Finished):
                    ends[event.request] = event.result
                elif isinstance(event, Failed):
                    ends[event.request] = event.error
        results = []
        for number in numbers:
            end = ends[number]
            if isinstance(end, DlmError):
                raise end
            results.append(end)
        return results

    def _add_all(self, requests: Sequence[Request]) -> list[int]:
        """Admit all of them, with their grammars compiled, or none."""
        numbers: list[int] = []
        at = 0
        try:
            for at, request in enumerate(requests):  # noqa: B007
                numbers.append(self.add(request))
            for at, number in enumerate(numbers):  # noqa: B007
                self._waiting.prepare(number)
        except RequestError as error:
            for number in numbers:
                self.cancel(number)
            if len(requests) == 1:
                raise
            raise RequestError(f"request {at}: {error}") from error
        return numbers

    def _constraint(self, request: Request, compiled: Compiled | None) -> Constraint:
        if compiled is None:
            return Free(self.config.stops)
        reasoning = self._reasoning if request.thinking else None
        if reasoning is not None:
            reasoning = replace(reasoning, budget=request.thinking_budget)
        return Frontier(compiled, request.max_tokens, reasoning, self.policy.guide_seconds)

    def _join(self) -> list[Event]:
        """Waiting requests take the free slots; those that cannot be served are told of."""
        ready, failed = self._waiting.take(len(self._free))
        for slot in ready:
            self._running[self._free.pop()] = slot
        if not self._running and not failed:
            self._waiting.nap()
        return [*failed]

    def _encode(self) -> None:
        """Bring the cache up to each slot's tokens, and begin its next canvas.

        One slot at a time: a product of few rows may round otherwise than one of many, and what
        runs beside a request must not show in its output.
        """
        for slot, running in self._running.items():
            if not running.uncoded:
                continue
            start = perf_counter()
            self.model.encode([running.uncoded], self._cache, [slot])
            self._begin_canvas(running)
            running.stats.seconds["encode"] += perf_counter() - start

    def _begin_canvas(self, running: Slot) -> None:
        L, device = self.model.canvas_length, self.model.device
        noise = torch.randint(self.model.vocab_size, (L,), generator=running.rng, device=device)
        running.begin_canvas(noise, self.model.no_soft_embedding())

    def _advance(self, slot: int, outcome: Outcome) -> list[Event]:
        """Tell of the pass; commit the canvas if it settled, and see whether the answer ends."""
        running, guidance = self._running[slot], outcome.guidance
        draft = Draft(
            request=running.number,
            step=running.steps,
            entropy=outcome.entropy,
            tokens=guidance.guess,
            accepted=outcome.accepted,
            pinned=len(running.pinned),
        )
        if not outcome.settled:
            return [draft, *self._tell(running)]
        room = running.request.max_tokens - len(running.tokens)
        tokens = guidance.guess[: guidance.stop + 1][:room]
        running.constraint.commit(tokens)
        running.commit(tokens)
        if guidance.stop < len(tokens):
            return [draft, *self._finish(slot, "stop")]
        if len(tokens) == room:
            return [draft, *self._finish(slot, "length")]
        return [draft, *self._tell(running)]

    def _tell(self, running: Slot, ended: bool = False) -> list[Event]:
        """What has become final, if anything has. What may yet be taken back waits for the end."""
        spec = running.request.constraint
        if spec is not None and spec.checked and not ended:
            return []
        tokens, text, reasoning = running.stream.tell(running.final, ended)
        if not tokens:
            return []
        number = running.number
        return [Committed(request=number, tokens=tokens, text=text, reasoning=reasoning)]

    def _finish(self, slot: int, reason: FinishReason) -> list[Event]:
        """A grammar can be wider than its schema, so a complete answer is checked once more."""
        running = self._running[slot]
        spec = running.request.constraint
        tokens = running.tokens[:-1] if reason == "stop" else running.tokens
        reasoning, answer = running.stream.split(tokens)
        try:
            parsed = spec.read(answer, self.vocabulary) if spec and reason == "stop" else None
        except InvalidValueError as error:
            if self._turn_back(slot, answer, error):
                return []
            self._leave(slot)
            return [
                Failed(request=running.number, error=DlmError(f"the result is refused: {error}"))
            ]
        told = self._tell(running, ended=True)
        self._leave(slot)
        result = Result(
            text=running.stream.text(answer),
            reasoning=reasoning or None,
            parsed=parsed,
            tool_calls=parsed.tool_calls if isinstance(parsed, Answer) else (),
            finish_reason=reason,
            token_ids=tokens,
            prompt_tokens=len(running.prompt),
            stats=running.stats,
        )
        return [*told, Finished(request=running.number, result=result)]

    def _turn_back(self, slot: int, answer: list[int], error: InvalidValueError) -> bool:
        """Go back in front of what a finished answer has wrong; False if that was tried enough."""
        running, L = self._running[slot], self.model.canvas_length
        spec = running.request.constraint
        if spec is None or not spec.checked or running.refusals >= self.config.refusals:
            return False
        pieces = [self.vocabulary.pieces[token] for token in answer]
        begin = len(running.tokens) - 1 - len(answer)  # behind the reasoning
        turned = None if running.turned is None else running.turned - begin
        at = begin + turning_point(pieces, error.path, turned)
        canvas = at // L * L
        running.constraint.rollback(len(running.tokens) - canvas)
        self._cache.rewind(slot, len(running.prompt) + canvas)
        self._begin_canvas(running)
        running.turn_back(at, canvas)
        return True

    def _leave(self, slot: int) -> Slot:
        self._cache.rewind(slot, 0)
        self._free.append(slot)
        return self._running.pop(slot)
