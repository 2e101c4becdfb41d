"""Decoding left to right: what an engine needs to serve a causal language model.

The weights of a diffusion language model are one too, by their encoder.
"""

from collections.abc import Iterator
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
    """One token after the other. Raises `DlmError` for a temperature that there is not.

    Drafts change nothing about an answer, but for what rounds otherwise in a pass over several
    tokens: a token that was drafted stands where it would have been written.
    """

    shares_passes: ClassVar[bool] = False  # a token more costs a pass next to nothing
    temperature: float = 0.0  # 0: the likeliest token; else tokens are drawn, by the seed
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

    def room(self, model: CausalLM, positions: int) -> int:
        if isinstance(model, DraftingLM) and self.drafts:
            return max(0, positions - model.canvas_length)  # a canvas comes behind the last token
        return positions

    def decoder(self, parts: EngineContext) -> "TokenDecoder":
        more = parts.policy, parts.vocabulary, parts.compiler
        return TokenDecoder(parts.cache, parts.config, *more)

    def passes(self, parts: EngineContext) -> CausalPasses:
        return CausalPasses(parts, self.temperature, Drafts(parts) if self.drafts else None)

    def constrain(
        self,
        sequence: Sequence,
        compiled: Compiled | None,
        reasoning: Reasoning | None,
        parts: EngineContext,
    ) -> None:
        request, drafting = sequence.request, None
        stops, room = {*parts.config.stops, *request.stop_token_ids}, request.max_tokens
        if compiled is None:
            constraint = FreeTokens(stops, room)
            if reasoning is not None and reasoning.budget is not None:
                constraint = BoundedTokens(stops, room, reasoning)
            if self.drafts:
                sequence.constraint = drafting = Free(stops)
        else:
            work = parts.policy.step_work
            constraint = LeftToRight(compiled, room, reasoning, work)
            if self.drafts:
                sequence.constraint = drafting = Frontier(compiled, room, reasoning, work)
        numbers = DrawNumbers(fixed(request.seed), sequence.rng.device)
        sequence.writing = LeftToRightState(
            constraint=constraint, drafting=drafting, numbers=numbers
        )


class TokenDecoder(Decoder):
    """Requests go from token to token."""

    def _start(self, sequence: Sequence) -> None:
        """Its first look is the first pass's."""

    def advance(
        self, slot: int, sequence: Sequence, outcome: StepResult | Exception
    ) -> Iterator[Event]:
        """Commit what was written, and see whether the answer ends."""
        writing = sequence.writing
        if isinstance(outcome, Unfinished):
            writing.work += writing.constraint.work
            self._count_work(writing.work, "a token")
            return
        if isinstance(outcome, Exception):
            raise outcome
        self._note_pass(sequence)
        sequence.write(self._stopped(sequence, outcome.tokens))
        if sequence.cut or sequence.halted or writing.constraint.ended:
            yield from self._finish(sequence, "stop")
        elif len(sequence.tokens) == sequence.request.max_tokens:
            yield from self._finish(sequence, "length")
        else:
            yield from self._tell(sequence)

    def _turn_back(self, slot: int, sequence: Sequence, at: int) -> None:
        sequence.writing.rollback(len(sequence.tokens) - at)
        sequence.writing.numbers.renew(at)
        behind = len(sequence.prompt) + at
        self._cache.rewind(slot, min(self._cache.length(slot), behind))
        sequence.turn_back(at, at)
