"""A matcher of tokens, left to right, with an optional reasoning prefix.

What the frontier does over canvases rests on it, and so can any decoder that writes from left to
right: take only tokens out of `allowed(budget)`, and the text is valid and ends in time.

Completions of what a matcher has begun, in which no key and no distinct item comes twice.

The parser knows the shortest text to the end, and no keys: where the grammar leaves keys free, it
would write `"":0` again and again. Here such keys and items become others (`apart_text.py`).
"""

from collections.abc import Callable, Sequence
from enum import Enum, auto
from sys import maxsize

import numpy as np
from jaxtyping import UInt32

from dlm.grammar.errors import BudgetError, DeadEndError, GrammarError
from dlm.grammar.masks.bits import Mask
from dlm.grammar.parse.compiled import Compiled
from dlm.grammar.parse.earley import State
from dlm.grammar.parse.keys import Keys
from dlm.grammar.parse.reasoning import Reasoning

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


# Where a token was read: state, bytes of a marker, tokens of reasoning, keys, what was promised.
_Before = tuple["_Phase", State, int, int, Keys | None, list[int] | None]


class _Phase(Enum):
    OPENING = auto()  # the answer may begin, or reasoning may
    REASONING = auto()  # any text, until the marker closes it
    ANSWER = auto()  # the grammar's
    ENDED = auto()  # a stop token was read


class Matcher:
    """`accept` moves forward, `rollback` back; everything else only looks.

    Until reasoning is closed, tokens are not the grammar's business.
    """

    def __init__(self, compiled: Compiled, reasoning: Reasoning | None = None):
        """With `reasoning`, there may be some before the answer."""
        vocabulary = compiled.vocabulary
        self._compiled, self._pieces, self._reasoning = compiled, vocabulary.pieces, reasoning
        self._stops = frozenset(vocabulary.stops)
        self._state = compiled.parser.start
        self._phase = _Phase.ANSWER if reasoning is None else _Phase.OPENING
        self._marker = 0  # how much of a marker has been read
        self._thought = 0  # tokens of reasoning so far, its markers included
        self._keys = Keys() if compiled.free_keys or compiled.apart.distinct else None
        self._completions = Completions(compiled)
        self._promised: list[int] | None = None  # a completion that is known to fit, its stop apart
        self._trail: list[_Before] = []  # where each token was read

    @property
    def ended(self) -> bool:
        """A stop token was read: the text is complete."""
        return self._phase is _Phase.ENDED

    @property
    def state(self) -> State | None:
        """Where it is in the grammar; None in front of the answer, and behind it."""
        return self._state if self._phase is _Phase.ANSWER else None

    @property
    def position(self) -> int:
        """Tokens accepted so far."""
        return len(self._trail)

    def accept(self, token: int) -> bool:
        """Move past `token`; False, and no move, if it is not allowed here."""
        promised = self._promised
        before = (self._phase, self._state, self._marker, self._thought, self._keys, promised)
        if self._phase is _Phase.ENDED:
            taken = False
        elif self._phase is _Phase.ANSWER or (
            self._phase is _Phase.OPENING and not self._opens(token)
        ):
            taken = not self._marker and self._answer(token)
        else:
            taken = self._reason(token)
        if taken:
            self._promised = promised[1:] if promised and promised[0] == token else None
            self._trail.append(before)
        return taken

    def accept_all(self, tokens: Sequence[int]) -> int:
        """Accept as many of `tokens` as are allowed; says how many that were."""
        for position, token in enumerate(tokens):
            if not self.accept(token):
                return position
        return len(tokens)

    @property
    def keys(self) -> Keys | None:
        """Of the JSON so far, if the grammar leaves them free."""
        return self._keys

    def follow(
        self, trail: Sequence[tuple[State, Keys | None]], end: State, keys: Keys | None
    ) -> None:
        """Move past tokens of the answer: where each of them was read, and where they lead."""
        for state, before in trail:
            self._trail.append((_Phase.ANSWER, state, 0, self._thought, before, self._promised))
            self._promised = None
        self._state, self._keys = end, keys

    def rollback(self, count: int) -> None:
        """Take back the last `count` tokens."""
        if count:
            (self._phase, self._state, self._marker, self._thought, self._keys, self._promised) = (
                self._trail[-count]
            )
            del self._trail[-count:]

    def mask(self) -> Mask:
        """The tokens that `accept` would take now: a row of the grammar's table, or ~token."""
        masks, reasoning, marker = self._compiled.masks, self._reasoning, self._marker
        if reasoning is not None and self._phase is _Phase.REASONING:
            return masks.kept((reasoning.close, marker), reasoning.close.allowed(marker))
        if reasoning is None or self._phase is _Phase.ANSWER:
            return self._without_doubles(self._compiled.mask(self._state))
        opens = reasoning.open.rest(marker)[0]
        if marker:
            return ~opens
        return masks.changed(self._compiled.mask(self._state), more=[opens])

    def allowed(self, budget: int | None = None) -> np.ndarray:
        """The same as packed bits `[words]`, a copy: token `v` is bit `v % 32` of word `v // 32`.

        With a `budget`, only tokens behind which the text can still be completed, and stopped, in
        so many tokens, the token itself counted. Next to the budget's end, some longer ways may be
        left out; the shortest one never is. Raises `BudgetError` where none is left.
        """
        words = self._compiled.masks.words(self.mask())
        if budget is None or self.ended or (mask := self._tight(budget)) is None:
            return words.copy()
        words = words & mask
        if not words.any():
            raise self.too_long(budget)
        return words

    def forced(self) -> str:
        """The text that every sentence goes on with from here."""
        return "" if self.state is None else self._compiled.parser.forced(self.state)

    def closes_within(self, tokens: int) -> bool:
        """What is begun can be completed in so many tokens, and reasoning within its budget.

        The stop token is not counted.
        """
        if self.ended:
            return True
        closing = len(self._closing())
        budget = self._reasoning.budget if self._reasoning is not None else None
        if closing and budget is not None and self._thought + closing > budget:
            return False
        if self._promised is not None and len(self._promised) <= tokens:
            return True
        return self._completions.closes_within(self._state, self._keys, tokens - closing)

    def shortest_completion(self, tokens: int = maxsize) -> list[int] | None:
        """What completes what is begun, up to a stop token; None: nothing does.

        At most so many `tokens`, if that is known to be possible.
        """
        left = tokens - len(self._closing())
        return self._behind_closing(self._completions.shortest(self._state, self._keys, left))

    def completing(self, tokens: int) -> list[int] | None:
        """The first tokens, or all, of a completion that takes at most so many; None: none does.

        Whoever follows it can be sure of it, whatever is shortest from where it leads.
        """
        if self._promised is None or len(self._promised) > tokens:
            left = tokens - len(self._closing())
            rest, whole = self._completions.completing(self._state, self._keys, left)
            found = self._behind_closing(rest)
            if not whole:
                return found
            self._promised = found if found is not None and len(found) <= tokens else None
        return self._promised

    def check_budget(self, budget: int) -> None:
        """Raises `BudgetError` or `DeadEndError` where no text fits `budget` tokens, the stop
        among them, and `Unfinished` as any look does."""
        if not self.closes_within(budget - 1):
            raise self.too_long(budget)

    def too_long(self, budget: int) -> GrammarError:
        """What to raise where no text fits `budget` tokens, the stop among them."""
        return self._completions.too_long(self._state, self._keys, len(self._closing()), budget)

    def _without_doubles(self, mask: Mask) -> Mask:
        """Without the tokens that end a key which the object has already."""
        keys, masks, compiled = self._keys, self._compiled.masks, self._compiled
        if keys is None or mask < 0 or not (keys.doubtful or compiled.apart.distinct):
            return mask
        known = masks.known.get((mask, keys))
        if known is None:
            suspects = compiled.suspects(keys, masks.words(mask))
            compiled.meter.spend(1 + len(suspects) // 2)
            doubles = [token for token in suspects if self._read(token) is None]
            known = masks.known[mask, keys] = masks.changed(mask, fewer=doubles)
        return known

    def _behind_closing(self, rest: list[int] | None) -> list[int] | None:
        return None if rest is None else self._closing() + rest

    def _tight(self, budget: int) -> np.ndarray | None:
        """What the budget leaves of the mask; None: all of it."""
        masks, reasoning = self._compiled.masks, self._reasoning
        if reasoning is None or self._phase is _Phase.ANSWER:
            return self._tight_answer(budget)
        if self._marker and self._phase is _Phase.OPENING:
            return None  # there is no other way
        if self._phase is _Phase.REASONING:  # any token may begin the marker
            goes_on = self._reasons_within(budget, 1 + reasoning.close.longest)
            return None if goes_on else masks.words(~reasoning.close.rest(self._marker)[0])
        opens, close = reasoning.open.rest(0), reasoning.close.rest(0)
        left = self._tight_answer(budget)
        left = masks.words(self._compiled.mask(self._state)) if left is None else left
        if self._reasons_within(budget, len(opens) + len(close)):
            left = left | masks.words(~opens[0])
        return left

    def _reasons_within(self, budget: int, more: int) -> bool:
        """So many more tokens of reasoning, then the answer and its stop, fit the budgets."""
        limit = None if self._reasoning is None else self._reasoning.budget
        if limit is not None and self._thought + more > limit:
            return False
        return self._completions.closes_within(self._state, self._keys, budget - 1 - more)

    def _tight_answer(self, budget: int) -> np.ndarray | None:
        """The same in front of the answer, or within it."""
        left = self._completions.allowed(
            self._state, self._keys, budget, lambda token: self._fits(token, budget - 2)
        )
        if left is not None:
            first = (self.completing(budget - 1) or [])[:1]
            left = left | self._compiled.masks.words(self._compiled.masks.changed(None, more=first))
        if left is not None and self._state.cost == 0:
            left = left | self._compiled.masks.words(
                self._compiled.masks.changed(None, more=self._compiled.vocabulary.stops)
            )
        return left

    def _fits(self, token: int, tokens: int) -> bool:
        """Behind `token` the answer can be completed in so many tokens, its stop not counted."""
        read = self._read(token)
        return read is not None and self._completions.closes_within(*read, tokens)

    def _read(self, token: int) -> tuple[State, Keys | None] | None:
        """Where a token of the answer, no stop, leads to; None where it may not come."""
        onward, keys = self._compiled.after(self._state, token), self._keys
        if onward is None or keys is None:
            return onward and (onward, None)
        keys = self._compiled.keys_after(self._state, onward, keys, self._pieces[token])
        return None if keys is None else (onward, keys)

    def _closing(self) -> list[int]:
        """Tokens that end the reasoning, if it has begun."""
        reasoning = self._reasoning
        if reasoning is None:
            return []
        if self._phase is _Phase.REASONING:
            return reasoning.close.rest(self._marker)
        if self._phase is _Phase.OPENING and self._marker:
            return reasoning.open.rest(self._marker) + reasoning.close.rest(0)
        return []

    def _opens(self, token: int) -> bool:
        """`token` goes on with the opening marker. What may be the answer is the answer."""
        reasoning = self._reasoning
        if reasoning is None or reasoning.open.rest(self._marker)[0] != token:
            return False
        if self._marker or not self._pieces[token]:
            return True
        return self._compiled.after(self._state, token) is None

    def _reason(self, token: int) -> bool:
        reasoning = self._reasoning
        if reasoning is None:
            return False
        opening = self._phase is _Phase.OPENING
        marker = reasoning.open if opening else reasoning.close
        done = marker.after(self._marker, token)
        if done is None:
            return False
        self._thought += 1
        self._marker = done
        if marker.complete(done):
            self._phase = _Phase.REASONING if opening else _Phase.ANSWER
            self._marker = 0
        return True

    def _answer(self, token: int) -> bool:
        if token in self._stops:
            self._phase = _Phase.ENDED if self._state.cost == 0 else self._phase
            return self.ended
        read = self._read(token)
        if read is None:
            return False
        self._state, self._keys = read
        self._phase = _Phase.ANSWER
        return True
