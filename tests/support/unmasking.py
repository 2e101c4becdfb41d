"""Samplers that unmask the positions of a canvas, as far as a constraint on the host sees them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import torch
from masked import rows_of
from scores import scores_of
from torch import Tensor

from dlm.grammar import Fixed, Frontier, Guidance

Model = Callable[[Sequence[int], dict[int, int]], Tensor]
"""Logits `[L, V]` of a block, from the tokens before it and those that stand in it."""


@dataclass(kw_only=True)
class Unmasking:
    """A sampler: which trusted holes it unmasks, and whether it edits tokens that stand."""

    threshold: float = 0.95  # holes with a surer token are unmasked together
    order: str = "joint"  # or "prefix": nothing right of a hole; "any": holes by chance
    editing: bool = False  # whether sure tokens replace those that stand
    rng: Random = field(default_factory=Random)

    def pick(self, guidance: Guidance, logits: Tensor, holes: list[int]) -> list[int]:
        """Return the positions to unmask, at least one of the trusted `holes`."""
        if self.order == "any":
            return self.rng.sample(holes, self.rng.randint(1, len(holes)))
        sure = {p: self._probability(guidance, logits, p) for p in holes}
        if self.order == "prefix":
            count = next((i for i, p in enumerate(holes) if sure[p] <= self.threshold), len(holes))
            return holes[: max(1, count)]
        above = [p for p in holes if sure[p] > self.threshold]
        return above or [max(holes, key=lambda p: sure[p])]

    @staticmethod
    def _probability(guidance: Guidance, logits: Tensor, position: int) -> float:
        """Return the probability of the guess under the mask of a trusted position."""
        allowed = rows_of(guidance)[position]
        bits = (allowed.view(-1, 1) >> torch.arange(32)) & 1
        masked = logits[position].masked_fill(bits.view(-1)[: logits.shape[1]] == 0, -torch.inf)
        return float(masked.softmax(-1)[guidance.guess[position]])


@dataclass(kw_only=True)
class Unmasked:
    """Answer of a sampler that unmasks."""

    tokens: list[int]  # with the stop
    passes: list[int]  # of each block


def unmask(
    frontier: Frontier, model: Model, sampler: Unmasking, L: int, budget: int, stops: Sequence[int]
) -> Unmasked:
    """Write an answer block by block, and assert what has to hold in each pass."""
    answer = Unmasked(tokens=[], passes=[])
    while not set(stops).intersection(answer.tokens):
        assert len(answer.tokens) < budget
        block, passes = _block(frontier, model, sampler, L, answer.tokens)
        stop = next((i + 1 for i, token in enumerate(block) if token in stops), L)
        frontier.commit(block[:stop])
        answer.tokens += block[:stop]
        answer.passes.append(passes)
    return answer


def _block(
    frontier: Frontier, model: Model, sampler: Unmasking, L: int, before: list[int]
) -> tuple[list[int], int]:
    held: dict[int, int] = {}
    passes = 0
    while len(held) < L:
        logits = model(before, held)
        argmax: Any = logits.argmax(-1).tolist()
        edits = {p for p, token in held.items() if argmax[p] != token} if sampler.editing else set()
        guidance = frontier.guide(scores_of(logits), Fixed(held=held, edits=edits))
        changed = {p for p, token in held.items() if guidance.guess[p] != token}
        assert changed <= edits  # what stands stays
        trusted = [p for p in range(guidance.suspect) if p not in held]
        assert trusted  # each pass can unmask a position
        picked = sampler.pick(guidance, logits, trusted)
        held = held | {p: guidance.guess[p] for p in (*changed, *picked)}
        passes += 1
    return [held[p] for p in range(L)], passes
