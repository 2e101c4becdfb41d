"""A matcher of tokens, left to right, with an optional reasoning prefix.

Both the frontier over canvases and left-to-right decoders use it. A text of tokens taken from
`allowed(budget)` is valid, and ends within the budget.
"""

from collections.abc import Sequence
from sys import maxsize

import numpy as np

from dlm.grammar.errors import GrammarError
from dlm.grammar.masks.table import Mask
from dlm.grammar.parse.closing import ENDLESS
from dlm.grammar.parse.compiled import Compiled
from dlm.grammar.parse.keys import Keys
from dlm.grammar.parse.prefix import Phase, Prefix
from dlm.grammar.parse.states import State
from dlm.grammar.vocabulary.markers import Reasoning

CONTEXT = 20  # last tokens of the text, passed to the tokenizer and to error messages

# The state before a token: prefix, parser state, keys, and a completion that is known to fit.
_Before = tuple[Prefix, State, Keys | None, list[int] | None]


class Matcher:
    """A matcher of one text's tokens. `accept` moves it forward, and `rollback` back.

    No other method changes its state. The grammar does not constrain the reasoning.
    """

    def __init__(self, compiled: Compiled, reasoning: Reasoning | None = None):
        """With `reasoning`, the text may begin with reasoning; None: it begins with the answer."""
        self._compiled, self._steps, self._closing = compiled, compiled.steps, compiled.closing
        self._pieces = compiled.vocabulary.pieces
        self._prefix = Prefix.before(reasoning)
        self._state = compiled.parser.start
        self._keys = compiled.steps.first_keys()
        self._promised: list[int] | None = None  # a completion that is known to fit, without a stop
        self._trail: list[_Before] = []  # the state before each token

    @property
    def ended(self) -> bool:
        """Whether a stop token was read: the text is complete."""
        return self._prefix.phase is Phase.ENDED

    @property
    def complete(self) -> bool:
        """Whether the text may end here, with a stop."""
        return self._prefix.between and bool(self._compiled.stops.after(self._state))

    @property
    def state(self) -> State | None:
        """The parser's state; None before and after the answer."""
        return self._state if self._prefix.phase is Phase.ANSWER else None

    @property
    def position(self) -> int:
        """The number of tokens accepted so far."""
        return len(self._trail)

    def accept(self, token: int) -> bool:
        """Move past `token`. Returns False, and does not move, if it is not allowed here."""
        prefix, promised = self._prefix, self._promised
        before = prefix, self._state, self._keys, promised
        if prefix.phase is Phase.ENDED:
            taken = False
        elif prefix.phase is Phase.ANSWER or (
            prefix.phase is Phase.OPENING and not self._opens(token)
        ):
            taken = not prefix.marker and self._answer(token)
        else:
            after = prefix.after(token)
            taken, self._prefix = after is not None, after or prefix
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
        promised = self._promised
        for state, before in trail:
            self._trail.append((self._prefix, state, before, promised))
            self._promised = promised = None
        self._state, self._keys = end, keys

    def rollback(self, count: int) -> None:
        """Take back the last `count` tokens."""
        if count:
            self._prefix, self._state, self._keys, self._promised = self._trail[-count]
            del self._trail[-count:]

    def mask(self) -> Mask:
        """Return the tokens that `accept` would take: a row of the grammar's table, or ~token."""
        compiled, masks, prefix = self._compiled, self._compiled.masks, self._prefix
        reasoning, marker = prefix.reasoning, prefix.marker
        if reasoning is not None and prefix.phase is Phase.REASONING:
            return masks.kept((reasoning.close, marker), reasoning.close.allowed(marker))
        if reasoning is None or prefix.phase is Phase.ANSWER:
            return compiled.unrepeated(compiled.mask(self._state), self._keys, self._state)
        opens = reasoning.open.rest(marker)[0]
        if marker:
            return ~opens
        return masks.changed(compiled.mask(self._state), more=[opens])

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
        marker = len(self._prefix.closing())
        if marker and self._prefix.exceeds(marker, tokens + 1):
            return False
        if self._promised is not None and len(self._promised) <= tokens:
            return True
        return self._closing.fits(self._state, self._keys, tokens - marker)

    def squeezes(self, token: int, tokens: int) -> bool:
        """Whether `token` is allowed, but needs more than the budget of `tokens` tokens after it.

        False if no budget would be enough: the reasoning's own budget refuses the token, or it is a
        dead end. False too if it spells a part of the forced text, which other tokens spell.
        """
        if not self.accept(token):
            return False
        try:
            refused = not self.closes_within(tokens) and self.closes_within(ENDLESS)
        finally:
            self.rollback(1)
        piece = self._pieces[token]
        return refused and not (piece and self.forced().encode().startswith(piece))

    def shortest_completion(self, tokens: int = maxsize) -> list[int] | None:
        """Return a shortest completion of the text, without a stop; None if there is none.

        It takes at most `tokens` tokens if such a completion is known. Raises `BudgetError` if it
        has over 262,144 bytes.
        """
        marker = self._prefix.closing()
        answer = self._closing.completion(self._state, self._keys, tokens - len(marker))
        return None if answer is None else marker + answer

    def completing(self, tokens: int) -> list[int] | None:
        """Return the first tokens, or all, of a completion of at most `tokens` tokens.

        None if there is none. The completion is remembered, and is known to fit as long as exactly
        its tokens are accepted.
        """
        if self._promised is None or len(self._promised) > tokens:
            marker = self._prefix.closing()
            answer, whole = self._closing.beginning(self._state, self._keys, tokens - len(marker))
            completion = None if answer is None else marker + answer
            if not whole:
                return completion
            fits = completion is not None and len(completion) <= tokens
            self._promised = completion if fits else None
        return self._promised

    def check_budget(self, budget: int, work: int = maxsize) -> None:
        """Raises `BudgetError` or `DeadEndError` if no text fits `budget` tokens, stop included.

        Raises `Unfinished` if `work` units run out.
        """
        with self._compiled.meter.limited(work):
            if not self.closes_within(budget - 1):
                raise self.error(budget)

    def error(self, budget: int) -> GrammarError:
        """Return the error to raise if no text fits `budget` tokens, the stop included."""
        return self._closing.error(self._state, self._keys, len(self._prefix.closing()), budget)

    def _fitting(self, budget: int) -> np.ndarray | None:
        """Return the tokens that fit the budget, as packed bits; None: all of the mask."""
        masks, prefix = self._compiled.masks, self._prefix
        reasoning = prefix.reasoning
        if reasoning is None or prefix.phase is Phase.ANSWER:
            return self._fitting_answer(budget)
        if prefix.marker and prefix.phase is Phase.OPENING:
            return None  # only one token is allowed
        if prefix.phase is Phase.REASONING:  # any token may begin the marker
            continues = self._reasons_within(budget, 1 + reasoning.close.longest)
            return None if continues else masks.words(~reasoning.close.rest(prefix.marker)[0])
        opens, close = reasoning.open.rest(0), reasoning.close.rest(0)
        fitting = self._fitting_answer(budget)
        fitting = masks.words(self._compiled.mask(self._state)) if fitting is None else fitting
        if self._reasons_within(budget, len(opens) + len(close)):
            fitting = fitting | masks.words(~opens[0])
        return fitting

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
        beginning = (self.completing(budget - 1) or [])[:1]
        sure = {*beginning, *compiled.stops.after(self._state)}
        return fitting | compiled.masks.words(compiled.masks.changed(None, more=sure))

    def _opens(self, token: int) -> bool:
        """Whether `token` continues the opening marker, and may not be the answer's first token."""
        if not self._prefix.opens(token):
            return False
        if self._prefix.marker or not self._pieces[token]:
            return True
        return self._steps.after(self._state, token) is None

    def _answer(self, token: int) -> bool:
        """Read a token of the answer, or its stop."""
        if token in self._compiled.stops:
            allowed = token in self._compiled.stops.after(self._state)
            self._prefix = self._prefix.at(Phase.ENDED) if allowed else self._prefix
            return allowed
        read = self._steps.read(self._state, self._keys, token)
        if read is None:
            return False
        self._state, self._keys = read
        self._prefix = self._prefix.at(Phase.ANSWER)
        return True
