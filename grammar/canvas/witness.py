"""The witness: a beginning of a valid text that has every token that stands on a canvas.

A sampler that unmasks positions in any order leaves tokens with holes to their left. They can only
stay if some text fits the holes. The last guess is such a text, since the sampler unmasks what is
in the guess and nothing else. A new guess is read from the left, and takes another token in a hole
only if a text is known that goes on from there and has all tokens that stand further right: by the
model's own choices in the holes between, or by the last witness.

The witness is exact where it says yes, and incomplete where it says no: a third text might fit.
"""

from collections.abc import Mapping, Sequence

from dlm.grammar.errors import GrammarError
from dlm.grammar.parse.matcher import Matcher


class Witness:
    """The last guess of a canvas, and walks from a new guess to the tokens that stand."""

    def __init__(self, matcher: Matcher, pad: int):
        self._matcher, self._pad = matcher, pad
        self.text: list[int] = []  # tokens of the canvas, with padding after a stop

    def check(self, held: Mapping[int, int]) -> None:
        """Raise `GrammarError` if a token of `held` is not the witness's own."""
        for position, token in sorted(held.items()):
            if position >= len(self.text) or self.text[position] != token:
                raise GrammarError(
                    f"token {token} at position {position} was not in the guess of the last step: "
                    "it must be masked again"
                )

    def reach(
        self,
        token: int,
        own: Sequence[int],
        standing: Sequence[bool],
        known: Sequence[int],
        tokens: int,
    ) -> tuple[list[int] | None, bool]:
        """Return the tokens that lead on from `token`, which the matcher has just accepted, to all
        tokens that stand; None if no such text is known. The second value is whether a larger
        budget would have found one.

        `own` are the model's choices at the positions after `token` up to the last one that stands;
        where `standing` is true, the tokens that stand. `known` is the known text from the position
        of `token` on, of one token more. `tokens` tokens may come after `token`, without the stop.
        """
        if known[0] == token:
            return list(known[1:]), False
        over_budget = False
        for text in (own, known[1:]):
            read, closes = self._read(text, standing, tokens)
            if closes:
                return read, False
            over_budget |= read is not None
        return None, over_budget

    def _read(
        self, text: Sequence[int], standing: Sequence[bool], tokens: int
    ) -> tuple[list[int] | None, bool]:
        """Return `text` with padding after its stop, or None if the grammar does not allow it next;
        and whether it can be completed within `tokens` tokens."""
        matcher, read = self._matcher, list(text)
        begin = matcher.position
        taken = matcher.accept_all(text)
        ended, closes = matcher.ended, matcher.ended and taken - 1 <= tokens
        if not ended and taken == len(text):
            closes = matcher.closes_within(tokens - len(text))
        matcher.rollback(matcher.position - begin)
        if ended:
            read[taken:] = [self._pad] * (len(text) - taken)
        if any(alone and a != b for alone, a, b in zip(standing, read, text, strict=True)):
            return None, False
        return (read if ended or taken == len(text) else None), closes
