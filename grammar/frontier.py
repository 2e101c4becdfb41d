"""The frontier engine: any grammar that xgrammar compiles, along the model's own text.

A grammar is a statement about the whole string, and a denoising step predicts its positions
independently. From the left, the model's own choices are followed as long as the grammar takes
them; each of these positions is masked by the state that it is reached in. At the first refusal
the best allowed token is taken. Everything right of that was predicted under a wrong left context:
it is suspect, stays unmasked, and the loop noises it again. The guess goes on through it all the
same, greedily under masks, so that one valid whole is there at every step.
"""

from collections.abc import Sequence

import xgrammar as xgr

from dlm.grammar.constraint import Guidance, Scores
from dlm.grammar.errors import DeadEndError, GrammarError
from dlm.grammar.reader import Bits, Reader
from dlm.grammar.vocabulary import Vocabulary


class Frontier:
    """One request's grammar over canvases of `L` positions. `commit` alone moves its state."""

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
        self._committed: list[int] = []

    def guide(self, scores: Scores, pinned: Sequence[int] = ()) -> Guidance:
        self._bits.all()
        guess: list[int] = []
        try:
            suspect, repaired = self._follow(scores, pinned, guess)
            ended = self._reader.ended
        finally:
            self._reader.forget(len(guess))
        L, end = len(scores.argmax), len(guess)
        for position in range(end, L if suspect == L else end):
            self._bits.only(position, self._vocabulary.pad)
        return Guidance(
            guess=guess + [self._vocabulary.pad] * (L - end),
            bitmask=self._bits.tensor[:L],
            suspect=suspect,
            repaired=repaired,
            stop=end - 1 if ended else L,
            scored=end,
        )

    def commit(self, tokens: Sequence[int]) -> None:
        """Raises `GrammarError`, and moves nothing, if the grammar does not take `tokens`."""
        taken = self._reader.read_all(tokens)
        if taken < len(tokens):
            self._reader.forget(taken)
            raise GrammarError(f"token {tokens[taken]} at position {taken} is not allowed there")
        self._committed += tokens

    def _follow(self, scores: Scores, pinned: Sequence[int], guess: list[int]) -> tuple[int, bool]:
        """Extend `guess` to the stop or the canvas's end.

        Returns the first suspect position, and whether the grammar refused the model's choice.
        What the grammar dictates right behind a repair is certain all the same.
        """
        L, bits, reader = len(scores.argmax), self._bits, self._reader
        suspect, repaired, forced = L, False, []
        while len(guess) < L and not reader.ended:
            position = len(guess)
            forced = forced or self._dictated(guess)
            if repaired and not forced:
                suspect = min(suspect, position)
            row = position if suspect == L else self._scratch
            reader.fill(bits, row)
            if position < len(pinned):
                token = pinned[position]
                bits.only(row, token)
            elif not bits.allows(row, token := scores.argmax[position]):
                token = forced[0] if forced else scores.best(position, bits.rows[row])
                repaired = True
            if forced and token == forced[0]:
                forced = forced[1:]
                bits.only(row, token)
            else:
                forced = []
            if not reader.read(token):
                raise DeadEndError(f"no token is allowed after {self._said(guess)!r}")
            guess.append(token)
        return suspect, repaired

    def _dictated(self, guess: list[int]) -> list[int]:
        """Tokens that the grammar leaves no choice about, as the tokenizer writes them."""
        text = self._reader.forced()
        return self._vocabulary.canonical((self._committed + guess)[-4:], text) if text else []

    def _said(self, guess: list[int]) -> str:
        return self._vocabulary.text((self._committed + guess)[-20:])
