"""The engine: a fixed number of slots, and one step that takes all of them a pass further."""

from collections import deque
from collections.abc import Sequence
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
    Compiler,
    Constraint,
    Free,
    Frontier,
    GrammarError,
    InvalidValueError,
    Vocabulary,
)
from dlm.models import checkpoint
from dlm.request import FinishReason, Request, Result
from dlm.slot import Slot

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
    ):
        if slots < 1:
            raise DlmError(f"slots is {slots}: it takes at least 1")
        self.model, self.chat = model, chat
        self.config = config or DecodeConfig()
        self.vocabulary = Vocabulary.from_tokenizer(
            chat.tokenizer, model.vocab_size, self.config.stops, self.config.pad
        )
        self._compiler = Compiler(self.vocabulary)
        self._cache = model.new_cache(slots)
        self._free = list(range(slots))
        self._running: dict[int, Slot] = {}  # by cache slot
        self._waiting: deque[Slot] = deque()
        self._admitted = 0

    @classmethod
    def load(
        cls,
        directory: str | Path | None = None,
        *,
        dtype: torch.dtype | None = None,
        device: str | torch.device | None = None,
        slots: int = 8,
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
        return cls(model, Chat.load(directory), DecodeConfig.from_hf(settings), slots)

    @property
    def busy(self) -> bool:
        """Some admitted request has not ended."""
        return bool(self._running or self._waiting)

    def add(self, request: Request) -> int:
        """Admit a request; its number is in every event about it.

        Raises `RequestError` for one that cannot be served, before any work is done for it.
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
        try:
            constraint = self._constraint(request)
        except GrammarError as error:
            raise RequestError(str(error)) from error
        slot = Slot(
            number=self._admitted,
            request=request,
            prompt=prompt,
            constraint=constraint,
            rng=torch.Generator(self.model.device).manual_seed(request.seed),
            uncoded=prompt,
        )
        self._admitted += 1
        self._waiting.append(slot)
        return slot.number

    def cancel(self, number: int) -> None:
        """Drop a request, waiting or running; one that has ended is left as it is."""
        self._waiting = deque(w for w in self._waiting if w.number != number)
        for slot in [s for s, running in self._running.items() if running.number == number]:
            self._leave(slot)

    def step(self) -> list[Event]:
        """One denoising pass for every running request."""
        self._join()
        self._encode()
        if not self._running:
            return []
        events: list[Event] = []
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
        numbers = []
        try:
            for request in requests:
                numbers.append(self.add(request))
        except RequestError as error:
            for number in numbers:
                self.cancel(number)
            if len(requests) == 1:
                raise
            raise RequestError(f"request {len(numbers)}: {error}") from error
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

    def _constraint(self, request: Request) -> Constraint:
        if request.constraint is None:
            return Free(self.config.stops)
        compiled = self._compiler.compile(request.constraint)
        return Frontier(compiled, self.vocabulary, self.model.canvas_length, request.thinking)

    def _join(self) -> None:
        """Waiting requests take the free slots."""
        while self._waiting and self._free:
            self._running[self._free.pop()] = self._waiting.popleft()

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
            L, device = self.model.canvas_length, self.model.device
            noise = torch.randint(self.model.vocab_size, (L,), generator=running.rng, device=device)
            running.begin_canvas(noise, self.model.no_belief())
            running.stats.seconds["encode"] += perf_counter() - start

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
            return [draft]
        room = running.request.max_tokens - len(running.tokens)
        tokens = guidance.guess[: guidance.stop + 1][:room]
        running.constraint.commit(tokens)
        running.commit(tokens)
        events: list[Event] = [draft, Committed(request=running.number, tokens=tokens)]
        if guidance.stop < len(tokens):
            events.append(self._finish(slot, "stop"))
        elif len(tokens) == room:
            events.append(self._finish(slot, "length"))
        return events

    def _finish(self, slot: int, reason: FinishReason) -> Finished | Failed:
        """A grammar can be wider than its schema, so a complete answer is checked once more."""
        running = self._leave(slot)
        spec = running.request.constraint
        tokens = running.tokens[:-1] if reason == "stop" else running.tokens
        reasoning, answer = self.split(tokens)
        try:
            parsed = spec.read(answer, self.vocabulary) if spec and reason == "stop" else None
        except InvalidValueError as error:
            return Failed(request=running.number, error=DlmError(f"the result is refused: {error}"))
        result = Result(
            text=self.vocabulary.text(answer),
            reasoning=reasoning,
            parsed=parsed,
            finish_reason=reason,
            token_ids=tokens,
            prompt_tokens=len(running.prompt),
            stats=running.stats,
        )
        return Finished(request=running.number, result=result)

    def _leave(self, slot: int) -> Slot:
        self._cache.rewind(slot, 0)
        self._free.append(slot)
        return self._running.pop(slot)

    def split(self, tokens: list[int]) -> tuple[str | None, list[int]]:
        """The text of the reasoning, if there is any, and the tokens of the answer."""
        thought = self.vocabulary.thought
        if thought is None or thought.open not in tokens:
            return None, tokens
        opened = tokens.index(thought.open)
        closed = tokens.index(thought.close) if thought.close in tokens else len(tokens)
        reasoning = self.vocabulary.text(tokens[opened:closed]).removeprefix("thought").strip()
        return reasoning or None, tokens[:opened] + tokens[closed:]
