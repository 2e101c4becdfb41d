"""The engine's state for one admitted request: its canvas, and what it believes of it."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from dlm.grammar import Constraint
from dlm.request import Request, Stats


@dataclass(slots=True, kw_only=True)
class Slot:
    """Moved by `Engine.step` alone."""

    number: int  # the engine's, for events about the request
    request: Request
    prompt: list[int]
    constraint: Constraint
    rng: torch.Generator  # all the randomness of the request
    uncoded: list[int]  # tokens that the cache does not hold yet: the prompt, then each canvas
    tokens: list[int] = field(default_factory=list)  # committed
    stats: Stats = field(default_factory=Stats)

    canvas: Tensor = field(init=False)  # [L] what the model looks at: accepted tokens and noise
    belief: Tensor = field(init=False)  # [L, hidden] self-conditioning
    guess: list[int] | None = None  # of the last pass over this canvas
    pinned: list[int] = field(default_factory=list)  # leading tokens of the canvas that are fixed
    steps: int = 0  # passes over this canvas
    frontier: int = -1  # how far the guess has agreed with the grammar on this canvas
    waited: int = 0  # passes since that moved right

    def begin_canvas(self, noise: Tensor, belief: Tensor) -> None:
        """A fresh canvas, all that came before it being in the cache."""
        self.canvas, self.belief = noise, belief
        self.uncoded, self.guess, self.pinned = [], None, []
        self.steps, self.frontier, self.waited = 0, -1, 0
        self.stats.canvases += 1

    def commit(self, tokens: list[int]) -> None:
        """The canvas is done: its tokens are final, and the cache does not hold them yet."""
        self.tokens, self.uncoded = self.tokens + tokens, tokens
        self.stats.tokens += len(tokens)
