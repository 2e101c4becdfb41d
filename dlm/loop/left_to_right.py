"""Decoding left to right: what an engine needs to serve a causal language model.

A diffusion language model is one too: its encoder predicts the next token.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from dlm.config import DecodeConfig
from dlm.errors import DlmError
from dlm.events import Event
from dlm.grammar import (
    BoundedTokens,
    Compiled,
    Free,
    FreeTokens,
    Frontier,
    LeftToRight,
    Reasoning,
    Unfinished,
)
from dlm.logits.sampling import fixed
from dlm.loop.causal import CausalLM, DraftingLM
from dlm.loop.causal_passes import CausalPasses, StepResult
from dlm.loop.decoding import Decoder, EngineContext, Model
from dlm.loop.drafts import Drafts
from dlm.sequence import DrawNumbers, LeftToRightState, Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Autoregressive:
    """Decoding left to right, one token after another. Raises `DlmError` for an invalid
    temperature. Drafts do not change an answer, except that a pass over several tokens may round
    otherwise: a drafted token is kept only where it would have been written."""

    shares_passes: ClassVar[bool] = False  # an additional token costs a pass next to nothing
    temperature: float = 0.0  # 0: the likeliest token; otherwise tokens are drawn by the seed
    drafts: bool = False  # the same weights draft on canvases: fewer passes (arXiv:2211.17192)

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise DlmError(f"temperature is {self.temperature}: it takes 0 or more")

    def check(self, model: Model, config: DecodeConfig) -> None:
        if not isinstance(model, CausalLM):
            raise DlmError(f"a {type(model).__name__} predicts no next token: it has no `predict`")
        if self.drafts:
            if not isinstance(model, DraftingLM):
                raise DlmError(f"a {type(model).__name__} denoises no canvases: it cannot draft")
            config.check_padding()

    def answer_capacity(self, model: CausalLM, positions: int) -> int:
        if isinstance(model, DraftingLM) and self.drafts:
            return max(0, positions - model.canvas_length)  # room for a canvas after the last token
        return positions

    def decoder(self, context: EngineContext) -> "TokenDecoder":
        return TokenDecoder(context, self)


class TokenDecoder(Decoder):
    """Decoder of tokens from left to right."""

    def __init__(self, context: EngineContext, decoding: Autoregressive):
        super().__init__(context)
        self._drafts = Drafts(context) if decoding.drafts else None
        self._passes = CausalPasses(context, decoding.temperature, self._drafts)

    def constrain(
        self, sequence: Sequence, compiled: Compiled | None, reasoning: Reasoning | None
    ) -> None:
        request, drafting = sequence.request, None
        stops, budget = {*self._config.stops, *request.stop_token_ids}, request.max_tokens
        if compiled is None:
            constraint = FreeTokens(stops, budget)
            if reasoning is not None and reasoning.budget is not None:
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

    def step(self, running: Mapping[int, Sequence]) -> Iterator[tuple[int, StepResult | Exception]]:
        yield from self._passes.step(running)
        self.idle = self._passes.idle

    def _start(self, sequence: Sequence) -> None:
        """Do nothing: the constraint is first queried before the first pass."""

    def advance(
        self, slot: int, sequence: Sequence, outcome: StepResult | Exception
    ) -> Iterator[Event]:
        """Commit what was written, and end the request if its answer ends."""
        state = sequence.state
        if isinstance(outcome, Unfinished):
            state.work += state.constraint.work
            self._count_work(state.work, "a token")
            return
        if isinstance(outcome, Exception):
            raise outcome
        self._note_pass(sequence)
        sequence.write(self._stopped(sequence, outcome.tokens))
        if sequence.cut or sequence.halted or state.constraint.ended:
            yield from self._finish(sequence, "stop")
        elif len(sequence.tokens) == sequence.request.max_tokens:
            yield from self._finish(sequence, "length")
        else:
            yield from self._emit(sequence)

    def _go_back(self, slot: int, sequence: Sequence, at: int) -> None:
        sequence.state.rollback(len(sequence.tokens) - at)
        sequence.state.numbers.renew(at)
        kept = len(sequence.prompt) + at
        self._cache.rewind(slot, min(self._cache.length(slot), kept))
        sequence.go_back(at, at)
