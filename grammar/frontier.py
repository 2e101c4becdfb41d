"""The frontier engine: any grammar that xgrammar compiles, along the model's own text.

A grammar is a statement about the whole string, and a denoising step predicts its positions
independently. From the left, the model's own choices are followed as long as the grammar takes
them; each of these positions is masked by the state that it is reached in. At the first refusal
the best allowed token is taken. Everything right of that was predicted under a wrong left context:
it is suspect, stays unmasked, and the loop noises it again. The guess goes on through it all the
same, so that one valid whole is there at every step.

No token is taken that leaves too few of the budget to complete the text: then the shortest
completion is followed instead.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from math import exp, inf
from time import perf_counter

from dlm.grammar.bits import Bits
from dlm.grammar.compiled import Compiled
from dlm.grammar.constraint import NOTHING, Fixed, Guidance, Scores
from dlm.grammar.errors import BudgetError, DeadEndError, GrammarError
from dlm.grammar.reader import Reader
from dlm.grammar.reasoning import Reasoning
from dlm.grammar.repair import SURE, best_repair

_CONTEXT = 20  # tokens that are remembered of the text so far, to spell what follows and for errors
_TRIED = 3  # candidates for a repair


@dataclass(slots=True)
class _Pass:
    """One reading of a canvas, as far as it got."""

    fixed: Fixed
    guess: list[int] = field(default_factory=list)
    dictated: list[list[int]] = field(default_factory=list)  # what was still due at each position
    plans: list[list[int]] = field(default_factory=list)  # the completion begun before each, if any
    plan: list[int] = field(default_factory=list)  # what is left of it
    repair: int | None = None  # the first position where the model's choice was refused
    suspect: int | None = None  # the first position behind the repair and what that dictates
    choice: int = -1  # the last position in front of the repair that was the model's to choose
    mass: float = 1.0

    @property
    def read_masks(self) -> bool:
        """Behind the suspect position any way to the end will do, except in the last passes."""
        return self.suspect is None or self.fixed.last

    @property
    def agreed(self) -> int:
        """Leading positions that hold the model's own choice."""
        return len(self.guess) if self.repair is None else self.repair


class Frontier:
    """One request's grammar over canvases of `L` positions. `commit` and `rollback` move its state.

    A mask costs far more than to accept a token, and from step to step the guess repeats most of
    itself: rows of the bitmask are filled again only from where it departs from the last one.
    """

    def __init__(
        self,
        compiled: Compiled,
        canvas_length: int,
        budget: int,
        reasoning: Reasoning | None = None,
        seconds: float = 10.0,
    ):
        """`budget` bounds all tokens, the stop among them. With `reasoning`, that may come first.
        A look that takes over `seconds` is given up: some grammars are slow to match.

        Raises `BudgetError` if not even the shortest text fits, `DeadEndError` if there is none.
        """
        self._vocabulary = compiled.vocabulary
        self._reader = Reader(compiled, reasoning)
        self._budget, self._seconds, self._deadline = budget, seconds, inf
        self._scratch = canvas_length  # the row behind the canvas's own
        self._bits = Bits(canvas_length + 1, len(self._vocabulary))
        self._said: list[int] = []  # all tokens committed
        self._begin_canvas()
        if not self._reader.closes_within(budget - 1):
            raise self._too_long(budget)

    def guide(self, scores: Scores, fixed: Fixed = NOTHING) -> Guidance:
        L = len(scores.argmax)
        here = self._resume(scores.argmax, fixed)
        if self._guidance is not None and len(here.guess) == self._guidance.scored:
            return self._guidance  # nothing new was said
        self._last, self._guidance = _Pass(NOTHING), None
        self._deadline = perf_counter() + self._seconds
        self._seek(here.guess)
        self._follow(scores, here)
        end = len(here.guess)
        suspect = L if here.suspect is None else here.suspect
        for position in range(end, suspect):
            self._bits.only(position, self._vocabulary.pad)
        self._last = here
        self._guidance = Guidance(
            guess=here.guess + [self._vocabulary.pad] * (L - end),
            bitmask=self._bits.tensor[:suspect],
            suspect=suspect,
            repaired=here.repair is not None,
            stop=end - 1 if self._reader.ended else L,
            scored=end,
            mass=here.mass,
            choice=here.choice if here.repair is not None else -1,
        )
        return self._guidance

    def commit(self, tokens: Sequence[int]) -> None:
        """Raises `GrammarError`, and moves nothing, if the grammar does not take `tokens`."""
        taken = self._seek(tokens)
        if taken < len(tokens):
            raise GrammarError(f"token {tokens[taken]} at position {taken} is not allowed there")
        self._said += tokens
        self._begin_canvas()

    def rollback(self, count: int) -> None:
        self._seek([])
        self._reader.forget(count)
        del self._said[len(self._said) - count :]
        self._begin_canvas()

    def _begin_canvas(self) -> None:
        self._ahead: list[int] = []  # tokens of the canvas that the reader has read
        self._last = _Pass(NOTHING)
        self._guidance: Guidance | None = None  # of the last pass

    def _seek(self, tokens: Sequence[int]) -> int:
        """Take the reader from where it is behind `tokens`; says how many of them it takes."""
        same = takewhile(lambda pair: pair[0] == pair[1], zip(self._ahead, tokens, strict=False))
        kept = sum(1 for _ in same)
        self._reader.forget(len(self._ahead) - kept)
        kept += self._reader.read_all(tokens[kept:])
        self._ahead = list(tokens[:kept])
        return kept

    def _too_long(self, budget: int) -> GrammarError:
        shortest = self._reader.witness()
        if shortest is None:
            return DeadEndError(
                "no text that the grammar accepts can be written in this vocabulary"
            )
        needed = len(shortest) + 1
        return BudgetError(f"the shortest answer takes {needed} tokens, more than {budget}", needed)

    def _resume(self, argmax: Sequence[int], fixed: Fixed) -> _Pass:
        """The last pass, up to where the model's choice departs from it."""
        last, pinned = self._last, fixed.pinned
        if fixed != last.fixed:
            return _Pass(fixed)
        wanted = [*pinned, *argmax[len(pinned) :]]
        same = takewhile(lambda pair: pair[0] == pair[1], zip(wanted, last.guess, strict=False))
        keep = min(last.agreed, sum(1 for _ in same))
        free = (p for p in range(keep - 1, len(pinned) - 1, -1) if not last.dictated[p])
        return _Pass(
            fixed,
            last.guess[:keep],
            last.dictated[:keep],
            last.plans[:keep],
            plan=[*last.plans, last.plan][keep],
            choice=next(free, -1),
        )

    def _follow(self, scores: Scores, here: _Pass) -> None:
        """Extend the guess to the stop or the canvas's end.

        What the grammar dictates right behind a repair is certain all the same.
        """
        bits, guess = self._bits, here.guess
        forced = here.dictated[-1][1:] if here.dictated else []
        while len(guess) < len(scores.argmax) and not self._reader.ended:
            position = len(guess)
            forced = forced or self._dictated(guess)
            if here.repair is not None and here.suspect is None and not forced:
                here.suspect = position
            row = position if here.suspect is None else self._scratch
            token = self._read_next(scores, here, row, forced)
            if forced and token == forced[0]:
                bits.only(row, token)
            else:
                forced = []
            if here.repair is None and not forced and position >= len(here.fixed.pinned):
                here.choice = position
            here.plans.append(here.plan)
            here.plan = here.plan[1:] if here.plan[:1] == [token] else []
            here.dictated.append(forced)
            guess.append(token)
            forced = forced[1:]

    def _read_next(self, scores: Scores, here: _Pass, row: int, forced: list[int]) -> int:
        """Read the first token that the grammar takes and the budget can complete."""
        reader, left = self._reader, self._budget - len(self._said) - len(here.guess)
        if perf_counter() > self._deadline:
            raise GrammarError(f"the grammar takes over {self._seconds} s to match a canvas")
        if here.read_masks:
            reader.fill(self._bits, row)
            for token in here.fixed.banned.get(len(here.guess), ()):
                self._bits.remove(row, token)
        for token in self._proposals(scores, here, row, forced):
            if reader.read(token):
                planned = here.plan[:1] == [token]
                if planned or reader.closes_within(left - 2):  # this token, and a stop
                    self._ahead.append(token)
                    return token
                reader.forget(1)
            self._bits.remove(row, token)
        said = self._vocabulary.text(self._recent(here.guess))
        raise DeadEndError(f"no token is allowed after {said!r}")

    def _proposals(self, scores: Scores, here: _Pass, row: int, forced: list[int]) -> Iterator[int]:
        """What the next token may be: the model's own choice, else what stands in for it."""
        bits, position, pinned = self._bits, len(here.guess), here.fixed.pinned
        if position < len(pinned):
            bits.only(row, pinned[position])
            yield pinned[position]
            return
        wanted, first = scores.argmax[position], here.repair is None
        allowed = not here.read_masks or bits.allows(row, wanted)
        if allowed:
            yield wanted
        if first:
            here.repair = position
        if not allowed and forced:
            bits.only(row, forced[0])
            if first:
                here.mass = scores.candidates(position, bits.rows[row], 1).mass
            yield forced[0]
        elif not allowed and first:
            yield from self._repairs(scores, here, row)
        elif not allowed and here.fixed.last:
            yield scores.best(position, bits.rows[row])
        yield self._planned(scores, here, row)

    def _repairs(self, scores: Scores, here: _Pass, row: int) -> Iterator[int]:
        """Candidates for the first refused position, the best first."""
        position = len(here.guess)
        found = scores.candidates(position, self._bits.rows[row], _TRIED)
        here.mass = found.mass
        if not found.ranked:
            return
        token, logp = found.ranked[0]
        if exp(logp) < SURE * found.mass:
            token = best_repair(self._reader, scores, position, found, self._bits, self._scratch)
        yield token
        yield from (other for other, _ in found.ranked if other != token)

    def _planned(self, scores: Scores, here: _Pass, row: int) -> int:
        """The next token of a shortest completion, or the stop behind it."""
        plan = here.plan or self._reader.witness()
        if plan is None:
            raise DeadEndError("the grammar goes on, but no token of the vocabulary does")
        here.plan = plan
        if plan:
            self._bits.only(row, plan[0])
            return plan[0]
        self._bits.only(row, *self._vocabulary.stops)
        return scores.best(len(here.guess), self._bits.rows[row])

    def _dictated(self, guess: list[int]) -> list[int]:
        """Tokens that the grammar leaves no choice about, as the tokenizer writes them."""
        text = self._reader.forced()
        return self._vocabulary.canonical(self._recent(guess), text) if text else []

    def _recent(self, tokens: Sequence[int]) -> list[int]:
        """The last of what was committed and of `tokens` behind it."""
        return [*self._said[-_CONTEXT:], *tokens[-_CONTEXT:]][-_CONTEXT:]
