"""Free text after reasoning whose length is limited.

`Bounded`, over canvases, and `BoundedTokens`, left to right, constrain nothing else: at the end of
a limit of the reasoning, its closing marker is forced.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import torch

from dlm.grammar.canvas.squeezes import Squeezes
from dlm.grammar.constraint import (
    NOTHING,
    Fixed,
    Free,
    FreeTokens,
    Guidance,
    NextTokens,
    Scores,
)
from dlm.grammar.vocabulary.markers import Reasoning
from dlm.grammar.vocabulary.spelling import common_prefix


class Bounded(Free):
    """Free text whose reasoning closes within its own budget, and leaves its reserve of `budget`.

    Where the reasoning has to end, the closing marker is forced. Positions after it are suspect,
    since they were predicted as reasoning. If other tokens stand there already, the guess of the
    step before is kept: all that stands was in it, and its reasoning closes in time.
    """

    def __init__(self, stops: Collection[int], budget: int, reasoning: Reasoning, words: int):
        """`budget` bounds all tokens, the stop included. `words` is the number of 32-bit words that
        a mask over the vocabulary takes."""
        super().__init__(stops)
        self._budget, self._reasoning, self._committed = budget, reasoning, list[int]()
        self._squeezes = Squeezes()
        self._any = torch.full((1, words), -1, dtype=torch.int32)
        self._guess: list[int] = []  # of the canvas in the step before

    @property
    def squeezed(self) -> bool:
        return bool(self._squeezes)

    def guide(self, scores: Scores, fixed: Fixed = NOTHING) -> Guidance:
        free = super().guide(scores, fixed)
        guess, stop, L, pinned = free.guess, free.stop, len(free.guess), fixed.pinned
        closing = _closing(self._committed, guess[:stop], self._reasoning, self._budget)
        begin, forced = closing.begin, closing.marker[: L - closing.begin]
        forced = forced if begin <= stop else []
        standing = fixed.held
        if any(standing.get(begin + i, token) != token for i, token in enumerate(forced)):
            return self._as_before(free, {*range(len(pinned)), *standing})
        end = max(len(pinned), begin + len(forced) if forced else 0)
        agreed = common_prefix(guess[begin : begin + len(forced)], forced)
        repaired = agreed < len(forced)
        if repaired and closing.by_budget:
            at = begin + agreed
            self._squeezes.note(guess[:at], guess[at])
            self._squeezes.note_replacement(at, guess[at], forced[agreed])
        if forced:
            guess[begin : begin + len(forced)] = forced
        if repaired:
            stop = L
        self._guess = guess
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
        # The budget ends the reasoning at one position, whatever its tokens are.
        self._squeezes.commit(len(self._committed), tokens, lambda at, token: True)
        self._committed += tokens
        self._guess = []

    def rollback(self, count: int) -> None:
        del self._committed[len(self._committed) - count :]
        self._squeezes.rollback(len(self._committed))
        self._guess = []

    def _as_before(self, free: Guidance, standing: Collection[int]) -> Guidance:
        """Return the guess of the step before. Its token is the only one at the first position
        without one, and what comes after that is suspect."""
        guess = self._guess
        at = next(i for i in range(len(guess) + 1) if i not in standing)
        stop = min((guess.index(t) for t in self._stops.intersection(guess)), default=len(guess))
        return replace(
            free,
            guess=guess,
            rows=[~token for token in guess[: at + 1]],
            suspect=min(at + 1, len(guess)),
            repaired=True,
            stop=stop,
        )


class BoundedTokens(FreeTokens):
    """Free text, left to right, whose reasoning closes as that of `Bounded` does.

    Where `budget` ends the reasoning, the model chooses first, so that `fits` learns whether it
    would have ended there anyway.
    """

    def __init__(self, stops: Collection[int], budget: int, reasoning: Reasoning):
        super().__init__(stops, budget)
        self._budget, self._reasoning, self._committed = budget, reasoning, list[int]()
        self._squeezes: set[int] = set()  # positions at which the budget refused a token

    @property
    def squeezed(self) -> bool:
        """Whether the budget refused a token that another one has replaced."""
        return any(position < len(self._committed) for position in self._squeezes)

    def look(
        self, draft: Sequence[int] = (), refused: Collection[int] = (), exact: bool = False
    ) -> NextTokens:
        closing = _closing(self._committed, list(draft), self._reasoning, self._budget)
        begin, marker = closing.begin, closing.marker
        if not marker or begin > len(draft):
            return super().look(draft)
        consults = closing.by_budget and not self._squeezes
        if begin == 0 and not (consults and not exact):
            return NextTokens(forced=marker[: max(0, self._left - 1)], draft=[], rows=[None])
        free = super().look(draft[:begin])
        forced = len(free.draft) == begin and not consults
        rows = [*free.rows[:-1], ~marker[0]] if forced else free.rows
        return NextTokens(forced=[], draft=free.draft, rows=rows)

    def fits(self, tokens: Sequence[int]) -> int:
        closing = _closing(self._committed, list(tokens), self._reasoning, self._budget)
        begin, marker = closing.begin, closing.marker
        if not closing.by_budget or not marker or begin >= len(tokens):
            return len(tokens)
        chosen = tokens[begin : begin + len(marker)]
        agreed = common_prefix(chosen, marker)
        if agreed == len(chosen):
            return len(tokens)
        self._squeezes.add(len(self._committed) + begin + agreed)
        return begin + agreed

    def commit(self, tokens: Sequence[int]) -> None:
        super().commit(tokens)
        self._committed += tokens

    def rollback(self, count: int) -> None:
        super().rollback(count)
        del self._committed[len(self._committed) - count :]
        self._squeezes = {at for at in self._squeezes if at < len(self._committed)}


@dataclass(frozen=True, slots=True)
class _Closing:
    """The forced end of reasoning."""

    begin: int  # the position in the guess at which the closing marker is forced
    marker: list[int]  # its tokens there; none if the reasoning closes by itself, or there is none
    by_budget: bool  # whether the whole budget forces it, not the reasoning's own


_OPEN = _Closing(0, [], False)


def _closing(committed: list[int], guess: list[int], reasoning: Reasoning, budget: int) -> _Closing:
    """Return where the reasoning in `guess`, which comes after `committed`, is forced to end."""
    tokens, closes = committed + guess, reasoning.close
    opened = reasoning.opening(tokens)
    if opened is None:
        return _OPEN
    end, by_budget = budget - reasoning.reserve, True
    if reasoning.budget is not None and opened[0] + reasoning.budget <= end:
        end, by_budget = opened[0] + reasoning.budget, False
    closed = closes.find(tokens[opened[1] :])
    if closed is not None and opened[1] + closed[1] <= end:
        return _OPEN
    marker = closes.rest(0)
    begin = max(opened[1], end - len(marker)) - len(committed)
    if begin < -len(marker):  # it was not closed in time: a marker of text may not allow that
        return _OPEN
    return _Closing(max(0, begin), marker[max(0, -begin) :], by_budget)
