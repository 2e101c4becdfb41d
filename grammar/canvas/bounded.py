"""Free text whose reasoning has an end: nothing is constrained but where it closes."""

from collections.abc import Collection, Sequence
from dataclasses import replace

import torch

from dlm.grammar.constraint import NOTHING, Fixed, Free, Guidance, Scores
from dlm.grammar.parse.reasoning import Reasoning


class Bounded(Free):
    """Once `reasoning.budget` tokens of reasoning are full, its closing marker is all that may
    come. What was predicted behind it was meant to be reasoning, and is suspect."""

    def __init__(self, stops: Collection[int], reasoning: Reasoning, words: int):
        """`words` is the number of 32-bit words that a mask over the vocabulary takes."""
        super().__init__(stops)
        self._reasoning, self._said = reasoning, list[int]()
        self._any = torch.full((1, words), -1, dtype=torch.int32)

    def guide(self, scores: Scores, fixed: Fixed = NOTHING) -> Guidance:
        free = super().guide(scores, fixed)
        L, pinned = len(free.guess), list(fixed.pinned)
        guess = pinned + free.guess[len(pinned) :]
        stop = next((i for i, token in enumerate(guess) if token in self._stops), L)
        begin, marker = self._forced(guess[:stop])
        forced = marker[: L - begin] if begin <= stop else []
        end = max(len(pinned), begin + len(forced) if forced else 0)
        repaired = bool(forced) and guess[begin : begin + len(forced)] != forced
        if forced:
            guess[begin : begin + len(forced)] = forced
        if repaired:
            stop = L
        return replace(
            free,
            guess=guess,
            bitmask=self._any,
            rows=[~t if i < len(pinned) or i >= begin else 0 for i, t in enumerate(guess[:end])],
            suspect=end if repaired else L,
            repaired=repaired,
            stop=stop,
        )

    def commit(self, tokens: Sequence[int]) -> None:
        self._said += tokens

    def rollback(self, count: int) -> None:
        del self._said[len(self._said) - count :]

    def _forced(self, guess: list[int]) -> tuple[int, list[int]]:
        """Where on a canvas that begins with `guess` the marker must come, and what of it is not
        committed yet; no tokens where the reasoning closes by itself, or there is none."""
        text, opens, closes = self._said + guess, self._reasoning.open, self._reasoning.close
        opened = opens.find(text)
        if opened is None or (opens.size and opened[0]) or self._reasoning.budget is None:
            return 0, []
        end = opened[0] + self._reasoning.budget
        closed = closes.find(text[opened[1] :])
        if closed is not None and opened[1] + closed[1] <= end:
            return 0, []
        marker = closes.rest(0)
        begin = max(opened[1], end - len(marker)) - len(self._said)
        if begin < -len(marker):  # it was not closed in time, which a marker of text may not allow
            return 0, []
        return max(0, begin), marker[max(0, -begin) :]
