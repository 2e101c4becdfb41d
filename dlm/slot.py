"""The engine's state for one admitted request: its canvas, and what it knows of it."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from dlm.grammar import Constraint, Fixed
from dlm.request import Request, Stats
from dlm.stream import Stream


@dataclass(slots=True, kw_only=True)
class Slot:
    """Moved by `Engine.step` alone."""

    number: int  # the engine's, for events about the request
    request: Request
    prompt: list[int]
    stream: Stream
    rng: torch.Generator  # all the randomness of the request
    uncoded: list[int]  # tokens that the cache does not hold yet: the prompt, then each canvas
    tokens: list[int] = field(default_factory=list)  # committed
    stats: Stats = field(default_factory=Stats)
    refused: dict[tuple[int, ...], set[int]] = field(default_factory=dict)  # tokens, by what led up
    refusals: int = 0  # times that a finished answer was refused
    turned: int | None = None  # the token that was replaced the last time

    constraint: Constraint = field(init=False)  # made when the request can run
    canvas: Tensor = field(init=False)  # [L] what the model looks at: accepted tokens and noise
    soft_embedding: Tensor = field(init=False)  # [L, hidden] self-conditioning
    guess: list[int] | None = None  # of the last pass over this canvas
    pinned: list[int] = field(default_factory=list)  # leading tokens of the canvas that are fixed
    banned: dict[int, set[int]] = field(default_factory=dict)  # tokens taken back, by position
    barred: dict[int, set[int]] = field(default_factory=dict)  # those of answers that were refused
    retries: int = 0  # choices taken back on this canvas
    steps: int = 0  # passes over this canvas
    frontier: int = -1  # how far the guess has agreed with the grammar on this canvas
    waited: int = 0  # passes since that moved right

    def begin_canvas(self, noise: Tensor, soft_embedding: Tensor) -> None:
        """A fresh canvas, all that came before it being in the cache."""
        self.canvas, self.soft_embedding = noise, soft_embedding
        self.uncoded, self.guess, self.pinned, self.banned, self.barred = [], None, [], {}, {}
        self.steps, self.frontier, self.waited, self.retries = 0, -1, 0, 0
        self.stats.canvases += 1

    def fixed(self, max_steps: int) -> Fixed:
        """For the next pass; from `max_steps` on, what was taken back is not worth a detour."""
        last = self.steps + 1 >= max_steps
        banned = self.barred if last else self.banned | self.barred
        return Fixed(pinned=self.pinned, banned=banned, last=last)

    def pin(self, tokens: list[int]) -> None:
        """The canvas begins with `tokens`, for good."""
        self.pinned, self.banned, self.waited = tokens, {}, 0
        self.stats.pins += 1

    def take_back(self, position: int, token: int) -> None:
        """`token` at `position` led nowhere: what is in front of it stays, and it comes no more."""
        kept = {at: tokens for at, tokens in self.banned.items() if at < position}
        self.banned = kept | {position: self.banned.get(position, set()) | {token}}
        self.frontier, self.waited = position, 0
        self.retries += 1
        self.stats.rollbacks += 1

    def restore(self) -> None:
        """Nothing that was tried instead got further: back to the model's own choices."""
        self.banned, self.waited = {}, 0

    @property
    def final(self) -> list[int]:
        """All tokens that can no longer change."""
        return self.tokens + self.pinned

    def turn_back(self, at: int, canvas: int) -> None:
        """The answer was refused: its token `at` becomes another. `canvas` is where its canvas
        begins; a fresh one has to begin there."""
        led = tuple(self.tokens[:at])
        self.refused.setdefault(led, set()).add(self.tokens[at])
        self.tokens = self.tokens[:canvas]
        self.pinned, self.barred = list(led[canvas:]), {at - canvas: self.refused[led]}
        self.refusals, self.turned = self.refusals + 1, at
        self.stats.rollbacks += 1
        self.stats.tokens = len(self.tokens)

    def commit(self, tokens: list[int]) -> None:
        """The canvas is done: its tokens are final, and the cache does not hold them yet."""
        self.tokens, self.uncoded, self.pinned = self.tokens + tokens, tokens, []
        self.stats.tokens += len(tokens)
