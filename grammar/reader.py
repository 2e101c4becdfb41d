"""Reads tokens left to right: first the reasoning of a request that thinks, then its grammar."""

from collections.abc import Sequence
from enum import Enum, auto

import xgrammar as xgr

from dlm.grammar.bits import Bits
from dlm.grammar.compiled import Compiled
from dlm.grammar.place import Place
from dlm.grammar.reasoning import Reasoning


class _Phase(Enum):
    OPENING = auto()  # the answer may begin, or reasoning may
    REASONING = auto()  # any text, until the marker closes it
    ANSWER = auto()  # the grammar's
    ENDED = auto()  # a stop token was read


class Reader:
    """A matcher behind a gate: until reasoning is closed, tokens are not the grammar's business.

    `read` moves forward, `forget` back; everything else only looks.
    """

    def __init__(self, compiled: Compiled, reasoning: Reasoning | None = None):
        """With `reasoning`, there may be some before the answer."""
        vocabulary = compiled.vocabulary
        self._compiled, self._pieces, self._reasoning = compiled, vocabulary.pieces, reasoning
        self._stops = frozenset(vocabulary.stops)
        self._matcher = xgr.GrammarMatcher(
            compiled.grammar, override_stop_tokens=list(vocabulary.stops), max_rollback_tokens=-1
        )
        self._place = compiled.places.start
        self._phase = _Phase.ANSWER if reasoning is None else _Phase.OPENING
        self._marker = 0  # how much of a marker has been read
        self._thought = 0  # tokens of reasoning so far, its markers included
        self._trail: list[tuple[_Phase, Place, int, int]] = []  # before each token read

    @property
    def ended(self) -> bool:
        return self._phase is _Phase.ENDED

    def fill(self, bits: Bits, row: int) -> None:
        """Write the tokens that `read` would take now."""
        reasoning, opening = self._reasoning, self._phase is _Phase.OPENING
        if reasoning is not None and self._phase is _Phase.REASONING:
            bits.rows[row] = reasoning.close.allowed(self._marker)
        elif reasoning is not None and opening and self._marker:
            bits.only(row, reasoning.open.rest(self._marker)[0])
        else:
            self._compiled.fill(self._place, self._matcher, bits, row)
            if reasoning is not None and opening:
                bits.add(row, reasoning.open.rest(0)[0])

    def forced(self) -> str:
        """The text that every sentence goes on with from here."""
        return self._compiled.forced(self._place, self._matcher) if self._answering else ""

    def read(self, token: int) -> bool:
        """Move past `token`; False, and no move, if it is not allowed here."""
        before = (self._phase, self._place, self._marker, self._thought)
        if self._answering or (self._phase is _Phase.OPENING and not self._opens(token)):
            taken = not self._marker and self._answer(token)
        else:
            taken = self._reason(token)
        if taken:
            self._trail.append(before)
        return taken

    def forget(self, count: int) -> None:
        """Undo the last `count` reads."""
        if not count:
            return
        undone = [phase for phase, *_ in self._trail[-count:]]
        after = [*undone[1:], self._phase]
        answers = (_Phase.ANSWER, _Phase.ENDED)
        self._matcher.rollback(
            sum(
                b in answers and (a in answers or a is _Phase.OPENING)
                for a, b in zip(undone, after, strict=True)
            )
        )
        self._phase, self._place, self._marker, self._thought = self._trail[-count]
        del self._trail[-count:]

    def read_all(self, tokens: Sequence[int]) -> int:
        """Read as many of `tokens` as are allowed; says how many that were."""
        for position, token in enumerate(tokens):
            if self.ended or not self.read(token):
                return position
        return len(tokens)

    def closes_within(self, tokens: int) -> bool:
        """What is begun can be completed in so many tokens, and reasoning within its budget."""
        if self.ended:
            return True
        closing = len(self._closing())
        budget = self._reasoning.budget if self._reasoning is not None else None
        if closing and budget is not None and self._thought + closing > budget:
            return False
        return self._compiled.closes_within(self._place, tokens - closing)

    def witness(self) -> list[int] | None:
        """Tokens that complete what is begun, up to a stop token; None: nothing does."""
        rest = self._compiled.witness(self._place)
        return None if rest is None else self._closing() + rest

    @property
    def _answering(self) -> bool:
        return self._phase is _Phase.ANSWER

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
        return self._compiled.places.after(self._place, token, self._pieces[token]) is None

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
            if not self._matcher.accept_token(token):
                return False
            self._phase = _Phase.ENDED
            return True
        place = self._compiled.places.after(self._place, token, self._pieces[token])
        if place is None or not self._matcher.accept_token(token):
            return False
        self._place, self._phase = place, _Phase.ANSWER
        return True
