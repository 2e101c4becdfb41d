"""A matcher of tokens, left to right, with an optional reasoning prefix.

Both the frontier over canvases and left-to-right decoders use it. A text of tokens taken from
`allowed(budget)` is valid, and ends within the budget.
"""

from collections.abc import Sequence
from enum import Enum, auto
from sys import maxsize

import numpy as np

from dlm.grammar.errors import GrammarError
from dlm.grammar.masks.table import Mask
from dlm.grammar.parse.compiled import Compiled
from dlm.grammar.parse.keys import Keys
from dlm.grammar.parse.remainders import NEVER
from dlm.grammar.parse.states import State
from dlm.grammar.vocabulary.markers import Reasoning

# State before a token: phase, parser state, marker symbols, reasoning tokens, keys, promise.
_Before = tuple["_Phase", State, int, int, Keys | None, list[int] | None]
_ENDLESS = NEVER - 1  # tokens: a budget that refuses no text that the vocabulary spells


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
        self._promised: list[int] | None = None  # a completion that is known to fit, without a stop
        self._trail: list[_Before] = []  # the state before each token

    @property
    def ended(self) -> bool:
        """Whether a stop token was read: the text is complete."""
        return self._phase is _Phase.ENDED

    @property
    def complete(self) -> bool:
        """Whether the text may end here, with a stop."""
        between = self._phase in (_Phase.OPENING, _Phase.ANSWER) and not self._marker
        return between and self._state.cost == 0

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
        if trail:
            phase, thought = _Phase.ANSWER, self._thought
            first, *others = trail
            self._trail.append((phase, first[0], 0, thought, first[1], self._promised))
            self._trail += [(phase, state, 0, thought, before, None) for state, before in others]
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

        Reasoning that has begun must also fit its own limits.
        """
        if self.ended:
            return True
        closing = len(self._closing())
        if closing and self._overthinks(closing, tokens + 1):
            return False
        if self._promised is not None and len(self._promised) <= tokens:
            return True
        return self._compiled.closes_within(self._state, self._keys, tokens - closing)

    def squeezes(self, token: int, tokens: int) -> bool:
        """Whether `token` is allowed, but needs more than the budget of `tokens` tokens after it.

        False if no budget would be enough: the reasoning's own budget refuses the token, or it is a
        dead end. False too if it spells a part of the forced text, which other tokens spell.
        """
        if not self.accept(token):
            return False
        try:
            refused = not self.closes_within(tokens) and self.closes_within(_ENDLESS)
        finally:
            self.rollback(1)
        piece = self._pieces[token]
        return refused and not (piece and self.forced().encode().startswith(piece))

    def shortest_completion(self, tokens: int = maxsize) -> list[int] | None:
        """Return a shortest completion of the text, without a stop; None if there is none.

        It takes at most `tokens` tokens if such a completion is known. Raises `BudgetError` if it
        has over 262,144 bytes.
        """
        left = tokens - len(self._closing())
        return self._after_closing(
            self._compiled.shortest_completion(self._state, self._keys, left)
        )

    def completing(self, tokens: int) -> list[int] | None:
        """Return the first tokens, or all, of a completion of at most `tokens` tokens.

        None if there is none. While its tokens are accepted, its rest is remembered and fits.
        """
        if self._promised is None or len(self._promised) > tokens:
            left = tokens - len(self._closing())
            rest, whole = self._compiled.completing(self._state, self._keys, left)
            found = self._after_closing(rest)
            if not whole:
                return found
            self._promised = found if found is not None and len(found) <= tokens else None
        return self._promised

    def check_budget(self, budget: int, work: int = maxsize) -> None:
        """Raises `BudgetError` or `DeadEndError` if no text fits `budget` tokens, stop included.

        Raises `Unfinished` if `work` units run out.
        """
        with self._compiled.meter.limited(work):
            if not self.closes_within(budget - 1):
                raise self.too_long(budget)

    def too_long(self, budget: int) -> GrammarError:
        """Return the error to raise if no text fits `budget` tokens, the stop included."""
        return self._compiled.too_long(self._state, self._keys, len(self._closing()), budget)

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
        if self._overthinks(more, budget):
            return False
        return self._compiled.closes_within(self._state, self._keys, budget - 1 - more)

    def _overthinks(self, more: int, budget: int) -> bool:
        """Whether `more` tokens of reasoning are over its own budget, or leave too few of `budget`.

        `budget` includes the stop.
        """
        reasoning = self._reasoning
        if reasoning is None:
            return False
        over = reasoning.budget is not None and self._thought + more > reasoning.budget
        return over or budget - more < reasoning.reserve

    def _tight_answer(self, budget: int) -> np.ndarray | None:
        """Return the tokens that fit the budget, before the answer or within it; None: all."""
        left = self._compiled.allowed(
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
        return read is not None and self._compiled.closes_within(*read, tokens)

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


CONTEXT = 20  # last tokens of the text, passed to the tokenizer and to error messages
