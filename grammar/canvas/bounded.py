"""Free text whose reasoning has an end: nothing is constrained but where it closes."""

from collections.abc import Collection, Sequence
from dataclasses import replace

import torch

from dlm.grammar.constraint import NOTHING, Fixed, Free, FreeTokens, Guidance, Look, Scores
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
        begin, marker = _closing(self._said, guess[:stop], self._reasoning)
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


class BoundedTokens(FreeTokens):
    """The same for text that is written left to right."""

    def __init__(self, stops: Collection[int], budget: int, reasoning: Reasoning):
        super().__init__(stops, budget)
        self._reasoning, self._said = reasoning, list[int]()

    def look(
        self, draft: Sequence[int] = (), refused: Collection[int] = (), exact: bool = False
    ) -> Look:
        begin, marker = _closing(self._said, list(draft), self._reasoning)
        if not marker or begin > len(draft):
            return super().look(draft)
        if begin == 0:
            return Look(forced=marker[: max(0, self._left - 1)], draft=[], rows=[None])
        free = super().look(draft[:begin])
        rows = free.rows if len(free.draft) < begin else [*free.rows[:-1], ~marker[0]]
        return Look(forced=[], draft=free.draft, rows=rows)

    def commit(self, tokens: Sequence[int]) -> None:
        super().commit(tokens)
        self._said += tokens

    def rollback(self, count: int) -> None:
        super().rollback(count)
        del self._said[len(self._said) - count :]


def _closing(said: list[int], guess: list[int], reasoning: Reasoning) -> tuple[int, list[int]]:
    """Where in `guess`, which comes behind `said`, reasoning must be closed, and what of the marker
    is not said yet; no tokens where it closes by itself, or there is none."""
    text, opens, closes = said + guess, reasoning.open, reasoning.close
    opened = opens.find(text)
    if opened is None or (opens.size and opened[0]) or reasoning.budget is None:
        return 0, []
    end = opened[0] + reasoning.budget
    closed = closes.find(text[opened[1] :])
    if closed is not None and opened[1] + closed[1] <= end:
        return 0, []
    marker = closes.rest(0)
    begin = max(opened[1], end - len(marker)) - len(said)
    if begin < -len(marker):  # it was not closed in time, which a marker of text may not allow
        return 0, []
    return max(0, begin), marker[max(0, -begin) :]
