"""A matcher of tokens, left to right, with an optional reasoning prefix.

Both the frontier over canvases and left-to-right decoders use it. A text of tokens taken from
`allowed(budget)` is valid, and ends within the budget.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace
from operator import attrgetter
from sys import maxsize

import numpy as np

from dlm.grammar.errors import BudgetError, DeadEndError, GrammarError
from dlm.grammar.masks.bits import token_words
from dlm.grammar.masks.table import Mask
from dlm.grammar.parse.closing import ENDLESS
from dlm.grammar.parse.compiled import Compiled
from dlm.grammar.parse.keys import Keys
from dlm.grammar.parse.known_completion import KnownCompletion
from dlm.grammar.parse.places import Place, TextPlaces
from dlm.grammar.parse.prefix import Phase, Prefix
from dlm.grammar.parse.states import State
from dlm.grammar.vocabulary.markers import Reasoning

_ANSWER = Phase.ANSWER  # quicker than the attribute of the class
_POSITION = attrgetter("position")
CONTEXT = 20  # last tokens of the text, passed to the tokenizer and to error messages


class Matcher:
    """A matcher of one text's tokens. `accept` moves it forward, and `rollback` back.

    No other method moves it. The grammar does not constrain the reasoning. Tokens that were taken
    back are kept until another one is accepted there, with the completions known after them: a text
    that could be completed within the budget still can when its tokens are accepted again.
    """

    def __init__(self, compiled: Compiled, reasoning: Reasoning | None = None):
        """With `reasoning`, the text may begin with reasoning; None: it begins with the answer."""
        self._compiled, self._steps, self._closing = compiled, compiled.steps, compiled.closing
        self._pieces = compiled.vocabulary.pieces
        self._prefix = Prefix.before(reasoning)
        self._state = compiled.parser.start
        self._keys = compiled.steps.first_keys()
        self._position = 0  # of the last token's place
        # Along the text, then along the tokens taken back.
        self._places = TextPlaces(self._prefix, self._state, self._keys)
        self._completions: list[KnownCompletion] = []  # from the left to the right

    @property
    def ended(self) -> bool:
        """Whether a stop token was read: the text is complete."""
        return self._prefix.phase is Phase.ENDED

    @property
    def complete(self) -> bool:
        """Whether the text may end here, with a stop."""
        return self._prefix.may_answer and bool(self._compiled.stops.after(self._state))

    @property
    def state(self) -> State | None:
        """The parser's state; None before and after the answer."""
        return self._state if self._prefix.phase is Phase.ANSWER else None

    @property
    def position(self) -> int:
        """The number of tokens accepted so far."""
        return self._position

    @property
    def keys(self) -> Keys | None:
        """The keys of the JSON text so far; None if the grammar constrains all keys."""
        return self._keys

    def accept(self, token: int) -> bool:
        """Move past `token`. Returns False, and does not move, if it is not allowed here."""
        position, tokens = self._position + 1, self._places.tokens
        if position < len(tokens) and tokens[position] == token:
            self._move(position)
            return True
        place = self._after(token)
        if place is None:
            return False
        if position < len(tokens):
            self._forget(position)
        self._places.add(token, place)
        self._position = position
        self._prefix, self._state, self._keys = place
        return True

    def accept_all(self, tokens: Sequence[int]) -> int:
        """Accept `tokens` up to the first that is not allowed. Returns the number accepted."""
        for position, token in enumerate(tokens):
            if not self.accept(token):
                return position
        return len(tokens)

    def follow(
        self, tokens: Sequence[int], states: Sequence[State], keys: Sequence[Keys | None]
    ) -> None:
        """Move past `tokens` of the answer, given the parser's state and the keys after each."""
        begin, places = self._position + 1, self._places
        taken_back = places.common(begin, tokens)
        if taken_back < len(tokens):
            if begin + taken_back < len(places.tokens):
                self._forget(begin + taken_back)
            tokens_left = tokens[taken_back:]
            prefixes = [self._prefix] * len(tokens_left)
            places.extend(tokens_left, prefixes, states[taken_back:], keys[taken_back:])
        self._move(self._position + len(tokens))

    def rollback(self, count: int) -> None:
        """Take back the last `count` tokens. Raises `ValueError` if the text has fewer."""
        if count > self._position:
            raise ValueError(f"count must be at most {self._position}, got {count}")
        self._move(self._position - count)

    def _move(self, position: int) -> None:
        self._position = position
        self._prefix, self._state, self._keys = self._places[position]

    def _forget(self, position: int) -> None:
        """Forget the tokens taken back from `position` on."""
        self._places.drop(position)
        del self._completions[bisect_left(self._completions, position, key=_POSITION) :]

    def _completion(self, tokens: int) -> KnownCompletion | None:
        """Return the known completion of the text so far; None if it may exceed `tokens` tokens."""
        if not self._completions:
            return None
        number = bisect_right(self._completions, self._position, key=_POSITION)
        completion = self._completions[number - 1] if number else None
        while completion is not None and completion.position < self._position:
            completion = completion.after(self._places.tokens[completion.position + 1])
            if completion is not None:
                self._completions.insert(number, completion)
                number += 1
        return completion if completion is not None and completion.within <= tokens else None

    def _after(self, token: int) -> Place | None:
        """Return the place after `token`; None if it is not allowed here."""
        prefix = self._prefix
        if prefix.phase is _ANSWER:
            return self._after_answer(token)
        if prefix.phase is Phase.ENDED:
            return None
        if prefix.phase is Phase.REASONING:
            onward = prefix.reasoned(token)
            return None if onward is None else (onward, self._state, self._keys)
        return self._after_opening(token)

    def _after_opening(self, token: int) -> Place | None:
        """Return the place after a token where reasoning or the answer may begin.

        A token that continues the marker leaves open which of them begins, if it continues an
        answer too. If not, the marker is spelled as `Marker.rest` spells it. A token that completes
        the marker begins the reasoning, and one that has the marker's end and more text is not
        allowed. Any other token is one of the answer.
        """
        prefix, answer = self._prefix, None
        onward = prefix.opening(token)
        if prefix.phase is Phase.UNDECIDED:
            if onward is None:
                return None if prefix.exceeds_marker(token) else self._after_answer(token)
            answer = self._steps.read(self._state, self._keys, token)
        if onward is None or (answer is None and not prefix.opens(token)):
            return None
        if onward.phase is Phase.REASONING:
            return onward, *self._start
        if answer is None:
            return replace(onward, phase=Phase.OPENING), *self._start
        return onward, *answer

    def _after_answer(self, token: int) -> Place | None:
        """Return the place after a token of the answer, or its stop."""
        prefix, stops = self._prefix, self._compiled.stops
        if token in stops.all:
            allowed = token in stops.after(self._state)
            return (prefix.at(Phase.ENDED), self._state, self._keys) if allowed else None
        read = self._steps.read(self._state, self._keys, token)
        if read is None:
            return None
        state, keys = read
        return prefix if prefix.phase is _ANSWER else prefix.at(_ANSWER), state, keys

    @property
    def _start(self) -> tuple[State, Keys | None]:
        """The parser's state and the keys where the answer begins."""
        return self._places[0][1:]

    def mask(self) -> Mask:
        """Return the tokens that `accept` would take: a row of the grammar's table, or ~token."""
        compiled, prefix = self._compiled, self._prefix
        reasoning = prefix.reasoning
        if reasoning is None or prefix.phase is _ANSWER:
            return compiled.mask(self._state, self._keys)
        masks, marker = compiled.masks, prefix.marker
        if prefix.phase is Phase.REASONING:
            return masks.kept((reasoning.close, marker), reasoning.close.allowed(marker))
        if prefix.phase is Phase.OPENING:
            return ~reasoning.open.rest(marker)[0]
        mask = compiled.mask(self._state, self._keys)
        if prefix.phase is not Phase.UNDECIDED:
            return mask
        opening = reasoning.open.rest(marker)[:1]
        return masks.changed(mask, more=opening, fewer=reasoning.open.longer(marker))

    def allowed(self, budget: int | None = None) -> np.ndarray:
        """Return a copy of the mask as packed bits: token `v` is bit `v % 32` of word `v // 32`.

        With a `budget`, only tokens after which the text can be completed and stopped within
        `budget` tokens, the token included. Near its end, tokens of longer completions may be
        missing, but never that of the shortest. Raises `BudgetError` if no token is left.
        """
        words = self._compiled.masks.words(self.mask())
        if budget is None or self.ended or (fitting := self._fitting(budget)) is None:
            return words.copy()
        words = words & fitting
        if not words.any():
            raise self.error(budget)
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
        if self._prefix.overspends(tokens + 1):
            return False
        if self._completion(tokens) is not None:
            return True
        return self._fits(self._prefix, self._state, self._keys, tokens)

    def _fits(self, prefix: Prefix, state: State, keys: Keys | None, tokens: int) -> bool:
        """Whether a text can be completed in `tokens` tokens, given what holds after it."""
        if prefix.phase is Phase.ANSWER:  # there is one way
            return self._closing.fits(state, keys, tokens)
        return any(
            self._closing.fits(onward, after, tokens - len(before))
            for before, onward, after in self._ways(prefix, state, keys, tokens)
        )

    def _ways(
        self, prefix: Prefix, state: State, keys: Keys | None, tokens: int
    ) -> Iterator[tuple[list[int], State, Keys | None]]:
        """Yield the ways to complete a text, given what holds after it: tokens, and the state and
        keys of the answer after them.

        The ways of an undecided text depend on `tokens` only through the answer's reserve, which
        reasoning may not use.
        """
        if prefix.phase is not Phase.UNDECIDED or prefix.reasoning is None:
            yield prefix.closing(), state, keys
            return
        marker = prefix.reasoning.open
        yield from self._compiled.unmarked.beginnings(marker, prefix.marker, state, keys)
        reasoning = prefix.closing()
        if reasoning and not prefix.exceeds(len(reasoning), tokens + 1):
            yield reasoning, *self._start

    def squeezes(self, token: int, tokens: int) -> bool:
        """Whether `token` is allowed, but needs more than the budget of `tokens` tokens after it.

        False if no budget would be enough: the reasoning's own budget refuses the token, or it is a
        dead end. False too if it spells a part of the forced text, which other tokens spell.
        """
        position, taken_back = self._position, self._places.columns(self._position + 1)
        later = self._completions[bisect_right(self._completions, position, key=_POSITION) :]
        try:
            refused = (
                self.accept(token)
                and not self.closes_within(tokens)
                and self.closes_within(ENDLESS)
            )
        finally:
            self._move(position)
            self._forget(position + 1)
            self._places.extend(*taken_back)
            self._completions += later
        piece = self._pieces[token]
        return refused and not (piece and self.forced().encode().startswith(piece))

    def shortest_completion(self, tokens: int = maxsize) -> list[int] | None:
        """Return a shortest completion of the text, without a stop; None if there is none.

        It takes at most `tokens` tokens if such a completion is known. Raises `BudgetError` if it
        has over 262,144 bytes.
        """
        ways = self._ways(self._prefix, self._state, self._keys, tokens)
        texts = (
            (before, self._closing.completion(state, keys, tokens - len(before)))
            for before, state, keys in ways
        )
        whole = (before + answer for before, answer in texts if answer is not None)
        return min(whole, key=len, default=None)

    def completing(self, tokens: int) -> KnownCompletion | None:
        """Return a completion of at most `tokens` tokens, or its beginning; None if there is none.

        It is known from now on.
        """
        completion = self._completion(tokens)
        if completion is not None:
            return completion
        for before, state, keys in self._ways(self._prefix, self._state, self._keys, tokens):
            answer, whole = self._closing.beginning(state, keys, tokens - len(before))
            if answer is None or (whole and len(before) + len(answer) > tokens):
                continue
            text = before + answer
            completion = KnownCompletion(self._position, text, 0, len(text) if whole else tokens)
            begin, end = (
                find(self._completions, self._position, key=_POSITION)
                for find in (bisect_left, bisect_right)
            )
            self._completions[begin:end] = [completion]  # those after tokens taken back stay
            return completion
        return None

    def check_budget(self, budget: int, work: int = maxsize) -> None:
        """Raises `BudgetError` or `DeadEndError` if no text fits `budget` tokens, stop included.

        Raises `Unfinished` if `work` units run out.
        """
        with self._compiled.meter.limited(work):
            if not self.closes_within(budget - 1):
                raise self.error(budget)

    def error(self, budget: int) -> GrammarError:
        """Return the error to raise if no text fits `budget` tokens, the stop included."""
        errors = [
            self._closing.error(state, keys, len(before), budget)
            for before, state, keys in self._ways(self._prefix, self._state, self._keys, ENDLESS)
        ]
        without = DeadEndError(
            "every answer begins with the marker that opens reasoning, and the reasoning's budget "
            "has no room for both of its markers"
        )
        over = [error for error in errors if isinstance(error, BudgetError)]
        return min(over, key=attrgetter("needed"), default=[*errors, without][0])

    def _fitting(self, budget: int) -> np.ndarray | None:
        """Return the tokens that fit the budget, as packed bits; None: all of the mask."""
        masks, prefix = self._compiled.masks, self._prefix
        reasoning = prefix.reasoning
        if reasoning is None or prefix.phase is Phase.ANSWER:
            return self._fitting_answer(budget)
        if prefix.phase is Phase.OPENING:
            return None  # only one token is allowed
        if prefix.phase is Phase.REASONING:  # any token may begin the marker
            continues = self._reasons_within(budget, 1 + reasoning.close.longest)
            return None if continues else masks.words(~reasoning.close.rest(prefix.marker)[0])
        fitting, completion = self._fitting_answer(budget), self.completing(budget - 1)
        opening = reasoning.open.beginnings(prefix.marker)
        sure = None if completion is None else completion.next
        fits = [t for t in opening if t == sure or self._closes_after(t, budget - 2)]
        if fitting is None:
            fitting = masks.words(self._compiled.state_masks.mask(self._state))
        size = len(self._pieces)
        return (fitting & ~token_words(opening, size)) | token_words(fits, size)

    def _closes_after(self, token: int, tokens: int) -> bool:
        """Whether the text can be completed in `tokens` tokens after `token`."""
        place = self._after(token)
        if place is None or place[0].overspends(tokens + 1):
            return False
        return self._fits(*place, tokens)

    def _reasons_within(self, budget: int, tokens: int) -> bool:
        """Whether `tokens` more of reasoning, then the answer and its stop, fit the budgets."""
        if self._prefix.exceeds(tokens, budget):
            return False
        return self._closing.fits(self._state, self._keys, budget - 1 - tokens)

    def _fitting_answer(self, budget: int) -> np.ndarray | None:
        """Return the tokens that fit the budget, before the answer or within it; None: all."""
        compiled = self._compiled
        fitting = self._closing.tokens(self._state, self._keys, budget)
        if fitting is None:
            return None
        completion, sure = self.completing(budget - 1), compiled.stops.after(self._state)
        if completion is not None and completion.next is not None:
            sure = sure | {completion.next}
        return fitting | compiled.masks.words(compiled.masks.changed(None, more=sure))
