"""A matcher of tokens, left to right, with an optional reasoning prefix.

Both the frontier over canvases and left-to-right decoders use it. A text of tokens taken from
`allowed(budget)` is valid, and ends within the budget. `Completions` finds the rest of a text. If
the grammar leaves keys free or has distinct items, it repeats none of them.
"""

from collections.abc import Callable, Sequence
from enum import Enum, auto
from sys import maxsize

import numpy as np
from jaxtyping import UInt32

from dlm.grammar.errors import BudgetError, DeadEndError, GrammarError
from dlm.grammar.masks import Mask
from dlm.grammar.parse.compiled import Compiled
from dlm.grammar.parse.earley import State
from dlm.grammar.parse.keys import Keys
from dlm.grammar.parse.reasoning import Reasoning

_COUNTED_FOR_ERROR = 1 << 15  # bytes: longer completions are not counted for an error message


def most_tokens(cost: int) -> int:
    """Return a bound on the tokens of a text without repetitions, from the shortest text's bytes.

    A free key with its value has four bytes or more, and two more make it new.
    """
    return cost + cost // 2 + 2


class Completions:
    """Completions for one grammar.

    If object keys are constrained, only keys the grammar allows are used, and `keys` is None.
    """

    def __init__(self, compiled: Compiled):
        self._compiled, self._vocabulary = compiled, compiled.vocabulary

    def closes_within(self, state: State, keys: Keys | None, tokens: int) -> bool:
        """Whether the text can be completed in `tokens` tokens, the stop excluded."""
        compiled = self._compiled
        if keys is None:
            return compiled.closes_within(state, tokens)
        decided = compiled.decided_by_bytes(state, tokens, most_tokens(state.cost or 0))
        if decided is False or (decided and not compiled.may_run_out):
            return decided
        shortest = self.shortest(state, keys, tokens)
        return shortest is not None and len(shortest) <= tokens

    def allowed(
        self, state: State, keys: Keys | None, budget: int, fits: Callable[[int], bool]
    ) -> UInt32[np.ndarray, " words"] | None:
        """Return the tokens after which the text can be completed within `budget`.

        `budget` includes the token and the stop. Packed bits; None: all tokens. If keys are free,
        `fits` is whether a token leaves enough of the budget.
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
        # the inverse of `most_tokens`
        sure = -1 if self._compiled.may_run_out else 2 * (budget - 4) // 3
        in_key = keys.key is not None or keys.watched
        return self._compiled.closing_unique(state, sure, fits, in_key)

    def shortest(self, state: State, keys: Keys | None, tokens: int) -> list[int] | None:
        """Return the tokens of a shortest text to the end; None if there is none.

        They are at most `tokens` tokens if such a text is known.
        """
        compiled = self._compiled
        if keys is None:
            return compiled.shortest_completion(state, tokens)
        found = compiled.unique_completion(state, keys)
        if found is None or len(found) > tokens:
            other = compiled.shortest_completion(state, tokens)
            if other and len(other) <= tokens and self._is_unique(state, keys, other):
                return other
        return found

    def completing(
        self, state: State, keys: Keys | None, tokens: int
    ) -> tuple[list[int] | None, bool]:
        """Return a completion of at most `tokens` tokens, or None, and whether it is whole.

        Only its beginning is returned if the bytes bound the tokens.
        """
        compiled = self._compiled
        most = state.cost or 0
        decided = compiled.decided_by_bytes(state, tokens, most_tokens(most) if keys else most)
        if decided is False:
            return None, False
        if decided is None or (keys and compiled.may_run_out):
            return self.shortest(state, keys, tokens), True
        if keys is None:
            return compiled.begun(state), False
        return compiled.begun_unique(state, keys), False

    def too_long(
        self, state: State, keys: Keys | None, first: int, budget: int
    ) -> BudgetError | DeadEndError:
        """Return the error to raise if no completion fits `budget` tokens.

        `budget` includes the stop and the `first` tokens before the completion.
        """
        least = first + self._compiled.fewest_possible(state) + 1
        if least > budget and (state.cost or 0) > _COUNTED_FOR_ERROR:
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

    def _is_unique(self, state: State, keys: Keys, tokens: list[int]) -> bool:
        """Whether `tokens` can follow without a repeated key or item."""
        compiled = self._compiled
        for token in tokens:
            after = compiled.uniqueness.after(state, keys, self._vocabulary.pieces[token])
            onward = compiled.after(state, token)
            if onward is None or after is None:
                return False
            state, keys = onward, after
        return True


# State before a token: phase, parser state, marker symbols, reasoning tokens, keys, promise.
_Before = tuple["_Phase", State, int, int, Keys | None, list[int] | None]


class _Phase(Enum):
    OPENING = auto()  # reasoning or the answer may begin
    REASONING = auto()  # any text, up to the closing marker
    ANSWER = auto()  # text of the grammar
    ENDED = auto()  # a stop token was read


class Matcher:
    """A matcher of one text's tokens. `accept` moves it forward, and `rollback` back.

    No other method changes its state. The grammar does not constrain the reasoning.
    """

    def __init__(self, compiled: Compiled, reasoning: Reasoning | None = None):
        """With `reasoning`, the text may begin with reasoning; None: it begins with the answer."""
        vocabulary = compiled.vocabulary
        self._compiled, self._pieces, self._reasoning = compiled, vocabulary.pieces, reasoning
        self._stops = frozenset(vocabulary.stops)
        self._state = compiled.parser.start
        self._phase = _Phase.ANSWER if reasoning is None else _Phase.OPENING
        self._marker = 0  # symbols of a marker read so far
        self._thought = 0  # tokens of reasoning so far, markers included
        self._keys = Keys() if compiled.free_keys or compiled.uniqueness.distinct else None
        self._completions = Completions(compiled)
        self._promised: list[int] | None = None  # a completion that is known to fit, without a stop
        self._trail: list[_Before] = []  # the state before each token

    @property
    def ended(self) -> bool:
        """Whether a stop token was read: the text is complete."""
        return self._phase is _Phase.ENDED

    @property
    def state(self) -> State | None:
        """The parser's state; None before and after the answer."""
        return self._state if self._phase is _Phase.ANSWER else None

    @property
    def position(self) -> int:
        """The number of tokens accepted so far."""
        return len(self._trail)

    def accept(self, token: int) -> bool:
        """Move past `token`. Returns False, and does not move, if it is not allowed here."""
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
        """Accept `tokens` up to the first that is not allowed. Returns the number accepted."""
        for position, token in enumerate(tokens):
            if not self.accept(token):
                return position
        return len(tokens)

    @property
    def keys(self) -> Keys | None:
        """The keys of the JSON text so far; None if the grammar constrains all keys."""
        return self._keys

    def follow(
        self, trail: Sequence[tuple[State, Keys | None]], end: State, keys: Keys | None
    ) -> None:
        """Move past tokens of the answer, given state and keys before each and after all."""
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
        """Return the tokens that `accept` would take: a row of the grammar's table, or ~token."""
        masks, reasoning, marker = self._compiled.masks, self._reasoning, self._marker
        if reasoning is not None and self._phase is _Phase.REASONING:
            return masks.kept((reasoning.close, marker), reasoning.close.allowed(marker))
        if reasoning is None or self._phase is _Phase.ANSWER:
            return self._without_repetitions(self._compiled.mask(self._state))
        opens = reasoning.open.rest(marker)[0]
        if marker:
            return ~opens
        return masks.changed(self._compiled.mask(self._state), more=[opens])

    def allowed(self, budget: int | None = None) -> np.ndarray:
        """Return a copy of the mask as packed bits: token `v` is bit `v % 32` of word `v // 32`.

        With a `budget`, only tokens after which the text can be completed and stopped within
        `budget` tokens, the token included. Near its end, tokens of longer completions may be
        missing, but never that of the shortest. Raises `BudgetError` if no token is left.
        """
        words = self._compiled.masks.words(self.mask())
        if budget is None or self.ended or (mask := self._tight(budget)) is None:
            return words.copy()
        words = words & mask
        if not words.any():
            raise self.too_long(budget)
        return words

    def forced(self) -> str:
        """Return the text with which every continuation begins."""
        return "" if self.state is None else self._compiled.parser.forced(self.state)

    def closes_within(self, tokens: int) -> bool:
        """Whether the text can be completed in `tokens` tokens, the stop excluded.

        Reasoning that has begun must also fit its own budget.
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
        """Return a shortest completion of the text, without a stop; None if there is none.

        It takes at most `tokens` tokens if such a completion is known.
        """
        left = tokens - len(self._closing())
        return self._after_closing(self._completions.shortest(self._state, self._keys, left))

    def completing(self, tokens: int) -> list[int] | None:
        """Return the first tokens, or all, of a completion of at most `tokens` tokens.

        None if there is none. While its tokens are accepted, its rest is remembered and fits.
        """
        if self._promised is None or len(self._promised) > tokens:
            left = tokens - len(self._closing())
            rest, whole = self._completions.completing(self._state, self._keys, left)
            found = self._after_closing(rest)
            if not whole:
                return found
            self._promised = found if found is not None and len(found) <= tokens else None
        return self._promised

    def check_budget(self, budget: int) -> None:
        """Raises `BudgetError` or `DeadEndError` if no text fits `budget` tokens, stop included.

        Raises `Unfinished` if its work runs out.
        """
        if not self.closes_within(budget - 1):
            raise self.too_long(budget)

    def too_long(self, budget: int) -> GrammarError:
        """Return the error to raise if no text fits `budget` tokens, the stop included."""
        return self._completions.too_long(self._state, self._keys, len(self._closing()), budget)

    def _without_repetitions(self, mask: Mask) -> Mask:
        """Return `mask` without the tokens that would repeat a key or an item."""
        keys, masks, compiled = self._keys, self._compiled.masks, self._compiled
        if keys is None or mask < 0 or not (keys.has_entries or compiled.uniqueness.distinct):
            return mask
        known = masks.known.get((mask, keys))
        if known is None:
            suspects = compiled.suspects(keys, masks.words(mask))
            compiled.meter.spend(1 + len(suspects) // 2)
            refused = [token for token in suspects if self._read(token) is None]
            known = masks.known[mask, keys] = masks.changed(mask, fewer=refused)
        return known

    def _after_closing(self, rest: list[int] | None) -> list[int] | None:
        return None if rest is None else self._closing() + rest

    def _tight(self, budget: int) -> np.ndarray | None:
        """Return the tokens that fit the budget, as packed bits; None: all of the mask."""
        masks, reasoning = self._compiled.masks, self._reasoning
        if reasoning is None or self._phase is _Phase.ANSWER:
            return self._tight_answer(budget)
        if self._marker and self._phase is _Phase.OPENING:
            return None  # only one token is allowed
        if self._phase is _Phase.REASONING:  # any token may begin the marker
            continues = self._reasons_within(budget, 1 + reasoning.close.longest)
            return None if continues else masks.words(~reasoning.close.rest(self._marker)[0])
        opens, close = reasoning.open.rest(0), reasoning.close.rest(0)
        left = self._tight_answer(budget)
        left = masks.words(self._compiled.mask(self._state)) if left is None else left
        if self._reasons_within(budget, len(opens) + len(close)):
            left = left | masks.words(~opens[0])
        return left

    def _reasons_within(self, budget: int, more: int) -> bool:
        """Whether `more` tokens of reasoning, then the answer and its stop, fit the budgets."""
        limit = None if self._reasoning is None else self._reasoning.budget
        if limit is not None and self._thought + more > limit:
            return False
        return self._completions.closes_within(self._state, self._keys, budget - 1 - more)

    def _tight_answer(self, budget: int) -> np.ndarray | None:
        """Return the same as `_tight`, before the answer or within it."""
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
        """Whether the answer can be completed in `tokens` tokens after `token`, without a stop."""
        read = self._read(token)
        return read is not None and self._completions.closes_within(*read, tokens)

    def _read(self, token: int) -> tuple[State, Keys | None] | None:
        """Return state and keys after a token of the answer, no stop; None if it is not allowed."""
        onward, keys = self._compiled.after(self._state, token), self._keys
        if onward is None or keys is None:
            return onward and (onward, None)
        keys = self._compiled.keys_after(self._state, onward, keys, self._pieces[token])
        return None if keys is None else (onward, keys)

    def _closing(self) -> list[int]:
        """Return the tokens that end the reasoning; none if it has not begun, or has ended."""
        reasoning = self._reasoning
        if reasoning is None:
            return []
        if self._phase is _Phase.REASONING:
            return reasoning.close.rest(self._marker)
        if self._phase is _Phase.OPENING and self._marker:
            return reasoning.open.rest(self._marker) + reasoning.close.rest(0)
        return []

    def _opens(self, token: int) -> bool:
        """Whether `token` continues the opening marker, and may not be the answer's first token."""
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
