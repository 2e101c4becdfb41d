"""Canvas that a model looks at, between two passes.

`Progress` is the part of it without tensors: guess, pins, tokens that stand, bans, and whether it
is settled. Another engine that denoises canvases can use `Progress` alone.
"""

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from dlm.config import DecodeConfig
from dlm.grammar import Fixed, Guidance
from dlm.logits.refused import RefusedRow
from dlm.logprobs import TokenLogprob
from dlm.request import Stats

Bans = dict[int, set[int]]  # tokens, by position


@dataclass(slots=True, kw_only=True, eq=False)
class Progress:
    """Progress of one canvas, from noise to commit."""

    stats: Stats  # the request's
    pinned: list[int] = field(default_factory=list)  # leading tokens that are fixed
    held: dict[int, int] = field(default_factory=dict)  # tokens that stand among masks, by position
    edited: bool = False  # whether the last pass replaced one of these
    complete: bool = False  # whether all tokens up to the stop stand
    rereads: int = 0  # passes over a canvas that was complete
    barred: Bans = field(default_factory=dict)  # tokens of answers that were refused
    banned: Bans = field(default_factory=dict)  # tokens taken back: they led nowhere
    guess: list[int] | None = None  # of the last pass, if the constraint has read all of it
    stable: bool = False  # whether the last pass had the guess of the one before
    steps: int = 0  # passes
    retries: int = 0  # choices taken back
    frontier: int = -1  # the first position that the grammar has not confirmed
    waited: int = 0  # passes since the frontier moved right
    work: int = 0  # units that the grammar has spent on the unfinished pass

    def fixed(self, max_steps: int, edits: Collection[int] = ()) -> Fixed:
        """Return what is fixed for the next pass; bans of tokens taken back are dropped from
        `max_steps` on. The model may replace tokens that stand at `edits`."""
        last = self.steps + 1 >= max_steps
        banned = self.barred if last else self.banned | self.barred
        return Fixed(pinned=self.pinned, banned=banned, last=last, held=self.held, edits=edits)

    def settle(self, guidance: Guidance, entropy: float, config: DecodeConfig) -> bool:
        """Count the pass, fix what is stuck, and return whether the guess is ready to be committed.

        A guess is not ready while a part of it was predicted under a wrong left context. Without a
        constraint nothing is suspect, and a canvas takes at most `max_steps` passes. With one, a
        canvas of L positions takes at most `max_steps + log2(L) + 1`: from the pass `max_steps` on,
        each pins at least what the grammar is sure of, and twice as many positions as the one
        before. If all tokens of a masked canvas stand, suspect ones too, only an edit changes any.
        `entropy` is the mean over the scored positions, in nats.
        """
        guess, suspect, sampler = guidance.guess, guidance.suspect, config.sampler
        self.steps += 1
        self.work = 0
        self.stats.repairs += guidance.repaired
        self.stable = guess == self.guess
        self.guess = guess if guidance.read >= len(guess) else None
        late = self.steps - sampler.max_steps
        if suspect >= guidance.scored or self.complete:  # what stands is valid, suspect or not
            return late >= 0 or sampler.settled(self, guidance, entropy)
        self.waited = 0 if suspect > self.frontier else self.waited + 1
        self.frontier = max(self.frontier, suspect)
        if late >= 0:
            self._pin(guess[: max(suspect, len(self.pinned) + 2**late)])
            return len(self.pinned) >= guidance.scored
        if self.waited >= config.patience and sampler.mask is None:  # else tokens stand anyway
            stuck = guidance.mass < config.lost and guidance.choice >= 0
            if stuck and self.retries < config.retries:
                self._take_back(guidance.choice, guess[guidance.choice])
            elif self.banned:  # no alternative got further
                self.banned, self.waited = {}, 0
            else:
                self._pin(guess[:suspect])
        return False

    def repeats(self, guidance: Guidance, entropy: float, config: DecodeConfig) -> bool:
        """Whether the guess of the last pass, which has not settled, would if it came again."""
        if self.guess is None or guidance.suspect < guidance.scored:
            return False
        return config.sampler.settled(replace(self, stable=True), guidance, entropy)

    @property
    def standing(self) -> list[int]:
        """Positions of a masked canvas whose tokens stand."""
        return sorted({*range(len(self.pinned)), *self.held})

    def masked(self, guidance: Guidance) -> list[int]:
        """Return the positions without a token on a masked canvas that may take those of the
        guess. Padding after a stop is not revealed: the stop could not move any more."""
        trusted = range(len(self.pinned), min(guidance.suspect, guidance.scored))
        return [position for position in trusted if position not in self.held]

    def keep(self, standing: list[bool], guidance: Guidance, edits: bool) -> None:
        """Let tokens of the guess stand on a masked canvas. Unless `edits` may replace them, the
        leading ones are pinned, up to a stop."""
        guess = guidance.guess
        self.edited = any(guess[position] != token for position, token in self.held.items())
        self.held = {
            position: guess[position] for position, stands in enumerate(standing) if stands
        }
        end = min(guidance.scored, guidance.stop + 1)
        count = next((i for i, stands in enumerate(standing) if not stands), len(standing))
        self.rereads += self.complete
        self.complete = count >= end
        if not edits:
            self.pinned = guess[: max(len(self.pinned), min(count, guidance.stop + 1))]

    def _pin(self, tokens: list[int]) -> None:
        """Fix `tokens` at the beginning of the canvas."""
        self.pinned, self.banned, self.waited = tokens, {}, 0
        self.stats.pins += 1

    def _take_back(self, position: int, token: int) -> None:
        """Ban `token` at `position`, since it led nowhere; bans before it stay."""
        kept = {at: tokens for at, tokens in self.banned.items() if at < position}
        self.banned = kept | {position: self.banned.get(position, set()) | {token}}
        self.frontier, self.waited = position, 0
        self.retries += 1
        self.stats.rollbacks += 1


@dataclass(slots=True, kw_only=True, eq=False)
class Canvas(Progress):
    """Canvas of `L` positions. Those of its progress count from the first one that is not
    `prompted`."""

    tokens: Tensor  # [L] what the model looks at: accepted tokens, and noise or masks
    soft_embedding: Tensor | None  # [L, hidden] self-conditioning; None: the sampler carries none
    uniform: Tensor | None = None  # [L] to draw by, of a pass that is to be repeated
    prompted: int = 0  # leading positions of the model's canvas that hold the end of the prompt
    refused: RefusedRow | None = None  # where the last finished pass was refused
    # Of tokens that are fixed, by position, if the request asks for them.
    logprobs: dict[int, TokenLogprob] = field(default_factory=dict)

    def without_logprobs(self, guidance: Guidance, settled: bool) -> list[int]:
        """Return the positions whose tokens are fixed (pinned, standing, or all up to the stop if
        the canvas has `settled`) and have no log-probability yet."""
        end = min(guidance.stop + 1, len(guidance.guess)) if settled else len(self.pinned)
        logprobs = self.logprobs
        return [
            position
            for position in sorted({*range(end), *self.held})
            if position not in logprobs or logprobs[position].token != guidance.guess[position]
        ]

    def show_pinned(self) -> None:
        """Let the next pass see the pinned tokens: on a masked canvas, what is fixed has no
        mask."""
        pinned = torch.tensor(self.pinned, dtype=self.tokens.dtype)
        self.tokens[self.prompted : self.prompted + len(self.pinned)] = pinned


class CanvasQuestion(Protocol):
    """Question that the first pass over a canvas answers, in the place of a text."""

    @property
    def was_read(self) -> bool: ...  # whether a canvas has been read for it

    @property
    def reading_units(self) -> int: ...  # units of work that `read` takes

    @property
    def ready(self) -> bool: ...  # whether it can be answered

    def read(self, scores: Any) -> None:
        """Take what the answer needs from the `CanvasLogits` of a pass."""
        ...

    def sum(self, work: int) -> int:
        """Work on the answer for about `work` units; returns the units that are left."""
        ...

    def answer(self, prompt_tokens: int, stats: Stats) -> Any:
        """Return the event that ends its decision, if this is the last answer, else None. The
        prompt has `prompt_tokens` tokens."""
        ...
