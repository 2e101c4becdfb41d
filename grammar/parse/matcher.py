"""Reads tokens left to right: first the reasoning of a request that thinks, then its grammar."""

from collections.abc import Sequence
from enum import Enum, auto
from math import inf
from sys import maxsize
from time import perf_counter

import xgrammar as xgr

from dlm.grammar.canvas.compiled import Compiled
from dlm.grammar.errors import GrammarError
from dlm.grammar.masks.table import Mask
from dlm.grammar.parse.reasoning import Reasoning
from dlm.grammar.parse.state import Place


class _Phase(Enum):
    OPENING = auto()  # the answer may begin, or reasoning may
    REASONING = auto()  # any text, until the marker closes it
    ANSWER = auto()  # the grammar's
    ENDED = auto()  # a stop token was read


class Reader:
    """Places behind a gate: until reasoning is closed, tokens are not the grammar's business.

    `read` moves forward, `forget` back; everything else only looks. Places know the way, and the
    matcher stays behind them until a mask is asked of it or `catch_up` is called.
    """

    def __init__(
        self, compiled: Compiled, reasoning: Reasoning | None = None, seconds: float = inf
    ):
        """With `reasoning`, there may be some before the answer. `seconds`: see `start_clock`."""
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
        self._due: list[int] = []  # tokens of the answer that the matcher has not seen yet
        self._seconds, self._deadline = seconds, inf

    @property
    def ended(self) -> bool:
        return self._phase is _Phase.ENDED

    @property
    def place(self) -> Place | None:
        """Where it is in the grammar; None in front of the answer, and behind it."""
        return self._place if self._phase is _Phase.ANSWER else None

    def start_clock(self) -> None:
        """What is read takes so many seconds from now on, or `GrammarError` is raised."""
        self._deadline = perf_counter() + self._seconds

    def mask(self) -> Mask:
        """The tokens that `read` would take now, in the masks of the grammar."""
        masks, reasoning, marker = self._compiled.masks, self._reasoning, self._marker
        if reasoning is not None and self._phase is _Phase.REASONING:
            return masks.kept((reasoning.close, marker), reasoning.close.allowed(marker))
        if reasoning is None or self._phase is _Phase.ANSWER:
            return self._compiled.mask(self._place, self.catch_up)
        opens = reasoning.open.rest(marker)[0]
        if marker:
            return ~opens
        answer = self._compiled.mask(self._place, self.catch_up)
        return masks.changed(answer, add=[opens])

    def forced(self) -> str:
        """The text that every sentence goes on with from here."""
        place = self.place
        return "" if place is None else self._compiled.places.forced(place)

    def read(self, token: int) -> bool:
        """Move past `token`; False, and no move, if it is not allowed here."""
        self._in_time()
        before = (self._phase, self._place, self._marker, self._thought)
        if self._phase is _Phase.ANSWER or (
            self._phase is _Phase.OPENING and not self._opens(token)
        ):
            taken = not self._marker and self._answer(token)
        else:
            taken = self._reason(token)
        if taken:
            self._trail.append(before)
        return taken

    def follow(self, tokens: Sequence[int], places: Sequence[Place], end: Place) -> None:
        """Move past `tokens` of the answer, which lead from place to place and to `end`."""
        self._trail += [(_Phase.ANSWER, place, 0, self._thought) for place in places]
        self._due += tokens
        self._place = end

    def catch_up(self) -> xgr.GrammarMatcher:
        """The matcher, where the reader is. `GrammarError` if it does not take what was read."""
        for at, token in enumerate(self._due):
            try:
                self._in_time()
                if not self._matcher.accept_token(token):
                    raise GrammarError(f"xgrammar refuses token {token}, against its own rules")
            except GrammarError:
                self._matcher.rollback(at)
                raise
        self._due.clear()
        return self._matcher

    def forget(self, count: int) -> None:
        """Undo the last `count` reads."""
        if not count:
            return
        undone = [phase for phase, *_ in self._trail[-count:]]
        after = [*undone[1:], self._phase]
        answers = (_Phase.ANSWER, _Phase.ENDED)
        answered = sum(
            b in answers and (a in answers or a is _Phase.OPENING)
            for a, b in zip(undone, after, strict=True)
        )
        unseen = min(answered, len(self._due))
        del self._due[len(self._due) - unseen :]
        self._matcher.rollback(answered - unseen)
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

    def witness(self, tokens: int = maxsize) -> list[int] | None:
        """What completes what is begun, up to a stop token; None: nothing does.

        At most so many `tokens`, if that is known to be possible.
        """
        closing = self._closing()
        rest = self._compiled.witness(self._place, tokens - len(closing))
        return None if rest is None else closing + rest

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
        return self._compiled.after(self._place, token) is None

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
        stops = token in self._stops
        onward = self._compiled.after(self._place, token)
        if stops:
            onward = self._place if self._place.cost == 0 else None
        if onward is None:
            return False
        self._due.append(token)
        self._place = onward
        self._phase = _Phase.ENDED if stops else _Phase.ANSWER
        return True

    def _in_time(self) -> None:
        if perf_counter() > self._deadline:
            raise GrammarError(f"the grammar takes over {self._seconds} s to match a canvas")
