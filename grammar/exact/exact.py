"""The exact constraint: the model's distributions, given that the text is one of a small grammar.

Where the frontier follows the model's own text up to where the grammar refuses it, this knows all
texts at once: each position is shown its exact marginal, what is kept on the canvas is drawn
jointly, and the guess is the most likely text. The price is an automaton over tokens, which only
grammars have that are small: choices, patterns, flat schemas.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from sys import maxsize
from typing import Literal

import numpy as np
from jaxtyping import Float64

from dlm.grammar.constraint import NOTHING, ClassScores, Fixed, Guidance, Posterior, ScoresByClass
from dlm.grammar.errors import BudgetError, DeadEndError, GrammarError
from dlm.grammar.exact import inference
from dlm.grammar.exact.automaton import END, NOWHERE, START, TokenAutomaton
from dlm.grammar.vocabulary import Vocabulary

Suspect = Literal["none", "refused", "mass"]
"""From where on a canvas was predicted under a wrong left context, so that the posterior says
nothing about it: nowhere; behind the first of the model's own choices that the grammar refuses; or
behind the first position where less than half of the model's probability is in texts that go on."""

_HALF = np.log(0.5)
_BELOW_ONE = np.nextafter(np.float32(1), np.float32(0))


class Exact:
    """One request's grammar over its canvases. `commit` and `rollback` move its state."""

    def __init__(
        self,
        automaton: TokenAutomaton,
        vocabulary: Vocabulary,
        budget: int,
        suspect: Suspect = "none",
    ):
        """`budget` bounds all tokens, the stop among them. Raises `BudgetError` if it is too small
        for the shortest text."""
        needed = int(automaton.distance[START])
        if needed > budget:
            raise BudgetError(
                f"the shortest answer takes {needed} tokens, more than {budget}", needed
            )
        self._automaton, self._vocabulary, self._budget = automaton, vocabulary, budget
        self._suspect: Suspect = suspect
        self._trail = [START]  # the states in front of each committed token, and behind the last
        self.work = maxsize  # a look takes the same whatever the model says, and is never cut short

    def guide(self, scores: ScoresByClass, fixed: Fixed = NOTHING) -> Guidance:
        """Raises `DeadEndError` where the model gives what is allowed no probability at all."""
        automaton, state = self._automaton, self._trail[-1]
        classes = scores.by_class(automaton.classes, automaton.tail + 1, fixed.banned)
        self._pin(classes, fixed.pinned)
        sums = inference.messages(automaton, classes.mass, self._left)
        log_z = sums.value(state)
        if not log_z > -np.inf:  # NaN neither
            raise DeadEndError("the model gives no text that the grammar allows any probability")
        before = inference.forward(sums, state)
        guess = self._guess(classes)
        refused = self._refused(scores.argmax, sums, fixed)
        L, end = len(guess.tokens), len(guess.tokens) if guess.stop < 0 else guess.stop + 1
        suspect = min(L, self._first_suspect(refused, before))
        drawn, uniform = inference.draw(sums, state, classes.uniform)
        return Guidance(
            guess=guess.tokens,
            bitmask=None,
            rows=[],
            suspect=suspect,
            repaired=refused < L,
            stop=L if guess.stop < 0 else guess.stop,
            scored=end,
            posterior=Posterior(
                classes=automaton.classes,
                factors=inference.log_factors(sums, before, log_z)[:suspect],
                pad=self._vocabulary.pad,
                pinned=fixed.pinned[:suspect],
                without=fixed.banned,
                drawn=drawn[:suspect],
                uniform=np.minimum(uniform[:suspect].astype(np.float32), _BELOW_ONE),
                log_z=log_z,
            ),
        )

    def commit(self, tokens: Sequence[int]) -> None:
        """Raises `GrammarError`, and moves nothing, if the grammar does not take `tokens`."""
        trail = [self._trail[-1]]
        for position, token in enumerate(tokens):
            state = self._automaton.after(trail[-1], token)
            if state == NOWHERE:
                raise GrammarError(f"token {token} at position {position} is not allowed there")
            trail.append(state)
        self._trail += trail[1:]

    def rollback(self, count: int) -> None:
        del self._trail[len(self._trail) - count :]

    @property
    def _left(self) -> int:
        """Tokens of the budget in front of the canvas."""
        return self._budget - (len(self._trail) - 1)

    def _pin(self, classes: ClassScores, pinned: Sequence[int]) -> None:
        """Let each of the leading positions take one token, which is certain."""
        for position, token in enumerate(pinned):
            label = int(self._automaton.classes[token])
            classes.mass[position] = classes.top[position] = -np.inf
            classes.mass[position, label] = classes.top[position, label] = 0
            classes.best[position, label] = token

    def _guess(self, classes: ClassScores) -> "_Guess":
        """The most likely text of the canvas."""
        bests = inference.messages(self._automaton, classes.top, self._left, inference.best)
        labels = inference.most_likely(bests, self._trail[-1])
        text = labels != self._automaton.tail
        tokens = np.where(text, classes.best[np.arange(len(labels)), labels], self._vocabulary.pad)
        end = int(text.sum())
        stopped = end > 0 and int(tokens[end - 1]) in self._vocabulary.stops
        return _Guess(tokens.tolist(), end - 1 if stopped else -1)

    def _refused(self, argmax: Sequence[int], sums: inference.Messages, fixed: Fixed) -> int:
        """The first position whose most likely token does not go on with those in front of it.

        As many as there are positions: none.
        """
        state = self._trail[-1]
        for position, token in enumerate([*fixed.pinned, *argmax[len(fixed.pinned) :]]):
            if state == END:
                break
            state = self._automaton.after(state, token)
            barred = token in fixed.banned.get(position, ())
            if state == NOWHERE or barred or position == sums.length:
                return position
            if np.isneginf(sums.backward[position + 1, state]):  # it takes too many tokens to end
                return position
        return len(argmax)

    def _first_suspect(self, refused: int, before: Float64[np.ndarray, "n1 S"]) -> int:
        if self._suspect == "none":
            return maxsize
        if self._suspect == "refused":
            return refused + 1
        reached = np.logaddexp.reduce(before, axis=1)
        low = np.flatnonzero(np.diff(reached) < _HALF)
        return int(low[0]) + 1 if len(low) else maxsize


@dataclass(frozen=True, slots=True)
class _Guess:
    tokens: list[int]  # of the whole canvas, padding behind the stop
    stop: int  # where the stop token is; -1: the text goes on
