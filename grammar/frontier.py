"""The frontier engine: any grammar that xgrammar compiles, along the model's own text.

A grammar is a statement about the whole string, and a denoising step predicts its positions
independently. From the left, the model's own choices are followed as long as the grammar takes
them; each of these positions is masked by the state that it is reached in. At the first refusal
the best allowed token is taken. Everything right of that was predicted under a wrong left context:
it is suspect, stays unmasked, and the loop noises it again. The guess goes on through it all the
same, greedily under masks, so that one valid whole is there at every step.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import takewhile

import xgrammar as xgr

from dlm.grammar.constraint import Guidance, Scores
from dlm.grammar.errors import DeadEndError, GrammarError
from dlm.grammar.reader import Bits, Reader
from dlm.grammar.vocabulary import Vocabulary

_CONTEXT = 20  # tokens that are remembered of the text so far, to spell what follows and for errors


@dataclass(slots=True)
class _Pass:
    """One reading of a canvas, as far as it got."""

    guess: list[int] = field(default_factory=list)
    dictated: list[list[int]] = field(default_factory=list)  # what was still due at each position
    repair: int | None = None  # the first position where the model's choice was refused
    suspect: int | None = None  # the first position behind the repair and what that dictates
    pinned: int = 0

    @property
    def agreed(self) -> int:
        """Leading positions that hold the model's own choice."""
        return len(self.guess) if self.repair is None else self.repair


class Frontier:
    """One request's grammar over canvases of `L` positions. `commit` alone moves its state.

    A mask costs far more than to accept a token, and from step to step the guess repeats most of
    itself: rows of the bitmask are filled again only from where it departs from the last one.
    """

    def __init__(
        self,
        compiled: xgr.CompiledGrammar,
        vocabulary: Vocabulary,
        canvas_length: int,
        thinking: bool = False,
    ):
        """With `thinking`, reasoning may come first; the grammar begins behind its end."""
        self._vocabulary = vocabulary
        self._reader = Reader(compiled, vocabulary, thinking)
        self._scratch = canvas_length  # the row behind the canvas's own
        self._bits = Bits(canvas_length + 1, len(vocabulary))
        self._last = _Pass()
        self._said: list[int] = []  # the last tokens committed

    def guide(self, scores: Scores, pinned: Sequence[int] = ()) -> Guidance:
        L = len(scores.argmax)
        here, self._last = self._resume(scores.argmax, pinned), _Pass()
        self._reader.read_all(here.guess)
        try:
            self._follow(scores, pinned, here)
            ended = self._reader.ended
        finally:
            self._reader.forget(len(here.guess))
        end = len(here.guess)
        suspect = L if here.suspect is None else here.suspect
        for position in range(end, suspect):
            self._bits.only(position, self._vocabulary.pad)
        self._last = here
        return Guidance(
            guess=here.guess + [self._vocabulary.pad] * (L - end),
            bitmask=self._bits.tensor[:suspect],
            suspect=suspect,
            repaired=here.repair is not None,
            stop=end - 1 if ended else L,
            scored=end,
        )

    def commit(self, tokens: Sequence[int]) -> None:
        """Raises `GrammarError`, and moves nothing, if the grammar does not take `tokens`."""
        taken = self._reader.read_all(tokens)
        if taken < len(tokens):
            self._reader.forget(taken)
            raise GrammarError(f"token {tokens[taken]} at position {taken} is not allowed there")
        self._said = self._recent(tokens)
        self._last = _Pass()

    def _resume(self, argmax: Sequence[int], pinned: Sequence[int]) -> _Pass:
        """The last pass, up to where the model's choice departs from it."""
        last = self._last
        if len(pinned) != last.pinned:
            return _Pass(pinned=len(pinned))
        wanted = [*pinned, *argmax[len(pinned) :]]
        same = takewhile(lambda pair: pair[0] == pair[1], zip(wanted, last.guess, strict=False))
        keep = min(last.agreed, sum(1 for _ in same))
        return _Pass(last.guess[:keep], last.dictated[:keep], pinned=len(pinned))

    def _follow(self, scores: Scores, pinned: Sequence[int], here: _Pass) -> None:
        """Extend the guess to the stop or the canvas's end.

        What the grammar dictates right behind a repair is certain all the same.
        """
        bits, reader, guess = self._bits, self._reader, here.guess
        forced = here.dictated[-1][1:] if here.dictated else []
        while len(guess) < len(scores.argmax) and not reader.ended:
            position = len(guess)
            forced = forced or self._dictated(guess)
            if here.repair is not None and here.suspect is None and not forced:
                here.suspect = position
            row = position if here.suspect is None else self._scratch
            reader.fill(bits, row)
            if position < len(pinned):
                token = pinned[position]
                bits.only(row, token)
            elif not bits.allows(row, token := scores.argmax[position]):
                token = forced[0] if forced else scores.best(position, bits.rows[row])
                here.repair = position if here.repair is None else here.repair
            if forced and token == forced[0]:
                bits.only(row, token)
            else:
                forced = []
            if not reader.read(token):
                said = self._vocabulary.text(self._recent(guess))
                raise DeadEndError(f"no token is allowed after {said!r}")
            guess.append(token)
            here.dictated.append(forced)
            forced = forced[1:]

    def _dictated(self, guess: list[int]) -> list[int]:
        """Tokens that the grammar leaves no choice about, as the tokenizer writes them."""
        text = self._reader.forced()
        return self._vocabulary.canonical(self._recent(guess), text) if text else []

    def _recent(self, tokens: Sequence[int]) -> list[int]:
        """The last of what was committed and of `tokens` behind it."""
        return [*self._said, *tokens[-_CONTEXT:]][-_CONTEXT:]
