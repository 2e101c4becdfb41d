"""Completions of what a matcher has begun, in which no key and no distinct item comes twice.

The parser knows the shortest text to the end, and no keys: where the grammar leaves keys free, it
would write `"":0` again and again. Here such keys and items become others (`apart.py`).
"""

from collections.abc import Callable, Iterator
from sys import maxsize

import numpy as np
from jaxtyping import UInt32

from dlm.grammar.errors import BudgetError, DeadEndError
from dlm.grammar.parse.compiled import BEGUN, Compiled
from dlm.grammar.parse.keys import Keys
from dlm.grammar.parse.state import State

_MOST_REPEATED = 512  # keys and items of one text that have to become others
_AT_ONCE = 256  # bytes that are read before the shortest text from there is asked for again
_TOLD = 1 << 15  # bytes of a completion that is counted just to say how long it is

Text = list[bytes | int]  # bytes, and control tokens by their ids


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
        spelled = compiled.remembered(
            (state, keys), lambda: self._spelled(self._apart(state, keys, maxsize))
        )
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
        return self._spelled(self._apart(state, keys, BEGUN)), False

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

    def _spelled(self, text: Text | None) -> list[int] | None:
        return None if text is None else self._vocabulary.fewest(text)

    def _apart(self, state: State, keys: Keys, most: int) -> Text | None:
        """A short text to the end, or its first `most` bytes at least; None: none is found.

        It is the grammar's shortest. Where that repeats a key or an item, it goes back to where
        this was begun, and takes a way to another one.
        """
        compiled, parser = self._compiled, self._compiled.parser
        said, text, repeated = Text(), bytearray(), 0
        begun = 0, state, keys  # where a key or an item was begun that may be there already
        while state.cost and len(text) < most:
            compiled.meter.spend(1 + min(most, state.cost, _AT_ONCE) // 4)
            for symbol in _symbols(parser.completion(state, _AT_ONCE)):
                if isinstance(symbol, int):
                    said += [bytes(text), symbol]
                    text.clear()
                    onward, after = parser.after(state, symbol, b""), keys
                else:
                    onward = parser.behind(state, symbol[0])
                    after = compiled.apart.after(state, keys, symbol)
                if onward is None or onward.cost is None:
                    return None
                if after is None:
                    break
                text += symbol if isinstance(symbol, bytes) else b""
                if not keys.at_risk or not text:
                    begun = len(text), onward, after
                state, keys = onward, after
            else:
                continue
            place, before, held = begun
            way = compiled.way(before, held)
            repeated += 1
            if way is None or repeated > _MOST_REPEATED:
                return None
            text[place:] = way.text
            state, keys = way.state, way.keys
            begun = len(text), state, keys
        return [*said, bytes(text)]


def _symbols(parts: Text) -> Iterator[bytes | int]:
    """The bytes of a text, one by one, and its control tokens."""
    for part in parts:
        yield from (part,) if isinstance(part, int) else (bytes([byte]) for byte in part)
