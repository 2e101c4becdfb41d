"""Completions of what a matcher has begun, in which no key and no distinct item comes twice.

The parser knows the shortest text to the end, and no keys: where the grammar leaves keys free, it
would write `"":0` again and again. Here such keys and items become others (`apart_text.py`).
"""

from collections.abc import Callable

import numpy as np
from jaxtyping import UInt32

from dlm.grammar.errors import BudgetError, DeadEndError
from dlm.grammar.parse.compiled import Compiled
from dlm.grammar.parse.keys import Keys
from dlm.grammar.parse.state import State

_TOLD = 1 << 15  # bytes of a completion that is counted just to say how long it is


def most_tokens(cost: int) -> int:
    """That a text of so many bytes takes: a free key has four or more, and two make it differ."""
    return cost + cost // 2 + 2


class Completions:
    """Of one grammar. Where its keys are not free, they are the grammar's own."""

    def __init__(self, compiled: Compiled):
        self._compiled, self._vocabulary = compiled, compiled.vocabulary

    def closes_within(self, state: State, keys: Keys | None, tokens: int) -> bool:
        """The text can be completed in so many tokens, its stop not counted."""
        compiled = self._compiled
        if keys is None:
            return compiled.closes_within(state, tokens)
        told = compiled.decided_by_bytes(state, tokens, most_tokens(state.cost or 0))
        if told is False or (told and not compiled.runs_out):
            return told
        shortest = self.shortest(state, keys, tokens)
        return shortest is not None and len(shortest) <= tokens

    def allowed(
        self, state: State, keys: Keys | None, budget: int, fits: Callable[[int], bool]
    ) -> UInt32[np.ndarray, " words"] | None:
        """The tokens after which the text can be completed within `budget`, as packed bits.

        The token and the stop count. None: all tokens. Where keys are free, `fits` says of a token
        whether it does.
        """
        known, key = self._compiled.closings, (state, keys, budget)
        if key not in known:
            known[key] = self._closing(state, keys, budget, fits)
        return known[key]

    def _closing(
        self, state: State, keys: Keys | None, budget: int, fits: Callable[[int], bool]
    ) -> UInt32[np.ndarray, " words"] | None:
        if keys is None:
            return self._compiled.closing(state, budget - 2)
        # as `most_tokens` bounds it, where nothing runs out
        sure = -1 if self._compiled.runs_out else 2 * (budget - 4) // 3
        in_key = keys.key is not None or keys.watched
        return self._compiled.closing_apart(state, sure, fits, in_key)

    def shortest(self, state: State, keys: Keys | None, tokens: int) -> list[int] | None:
        """The tokens of a shortest text to the end; None: there is none.

        At most so many `tokens`, if that is known to be possible.
        """
        compiled = self._compiled
        if keys is None:
            return compiled.shortest_completion(state, tokens)
        spelled = compiled.spelled_apart(state, keys)
        if spelled is None or len(spelled) > tokens:
            other = compiled.shortest_completion(state, tokens)
            if other and len(other) <= tokens and self._is_apart(state, keys, other):
                return other
        return spelled

    def completing(
        self, state: State, keys: Keys | None, tokens: int
    ) -> tuple[list[int] | None, bool]:
        """One of at most so many tokens, and whether that is all of it; None: there is none.

        Where its bytes bound its tokens, its beginning is enough to go on with.
        """
        most = state.cost or 0
        told = self._compiled.decided_by_bytes(state, tokens, most_tokens(most) if keys else most)
        if told is False:
            return None, False
        if told is None or (keys and self._compiled.runs_out):
            return self.shortest(state, keys, tokens), True
        if keys is None:
            return self._compiled.begun(state), False
        return self._compiled.begun_apart(state, keys), False

    def too_long(
        self, state: State, keys: Keys | None, first: int, budget: int
    ) -> BudgetError | DeadEndError:
        """What to raise where none fits `budget` tokens, the stop and `first` others among them."""
        least = first + self._compiled.fewest_possible(state) + 1
        if least > budget and (state.cost or 0) > _TOLD:  # too long to be counted for the message
            return BudgetError(
                f"the shortest answer takes at least {least} tokens, more than {budget}", least
            )
        if not self._compiled.counts(state):
            cost = state.cost or 0
            enough = first + (most_tokens(cost) if keys else cost) + 1
            return BudgetError(
                f"the shortest answer takes at least {least} tokens, and surely fits {enough}, "
                f"but it is too long to tell whether it fits {budget}",
                enough,
            )
        shortest = self.shortest(state, keys, budget - 1 - first)
        if shortest is None:
            return DeadEndError(
                "no text that the grammar accepts can be written in this vocabulary"
            )
        needed = first + len(shortest) + 1
        return BudgetError(f"the shortest answer takes {needed} tokens, more than {budget}", needed)

    def _is_apart(self, state: State, keys: Keys, tokens: list[int]) -> bool:
        """Whether `tokens` can follow without a key or an item that is there already."""
        compiled = self._compiled
        for token in tokens:
            after = compiled.apart.after(state, keys, self._vocabulary.pieces[token])
            onward = compiled.after(state, token)
            if onward is None or after is None:
                return False
            state, keys = onward, after
        return True
