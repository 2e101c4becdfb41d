"""One request's constraint for decoders that write from left to right: what may come next.

A draft of what may follow, if there is one, is read along with it, so that one pass of a model can
judge all of it. Knows no model, and not where a draft comes from.
"""

from collections.abc import Collection, Sequence
from sys import maxsize

import numpy as np

from dlm.grammar.constraint import NextTokens, Row
from dlm.grammar.errors import DeadEndError, GrammarError, Unfinished
from dlm.grammar.masks import bits
from dlm.grammar.parse.compiled import Compiled
from dlm.grammar.parse.matcher import Matcher
from dlm.grammar.parse.reasoning import Reasoning
from dlm.grammar.tokens import common_prefix

_AMPLE = 32  # tokens of room for the text's completion, beyond those that it takes
_CONTEXT = 20  # tokens of the text so far that are remembered, to spell what follows


class LeftToRight:
    """`commit` moves its state forward, `rollback` back; `look` leaves no trace.

    Tokens that a look allows and that `fits` takes keep the text within its budget: it can always
    still be completed.
    """

    def __init__(
        self,
        compiled: Compiled,
        budget: int,
        reasoning: Reasoning | None = None,
        work: int = maxsize,
    ):
        """`budget` bounds all tokens, the stop among them. With `reasoning`, that may come first.

        Raises `BudgetError` if not even the shortest text fits, `DeadEndError` if there is none,
        and `Unfinished` where to know it takes more than `work`: trying again goes on.
        """
        self._compiled, self._budget, self._vocabulary = compiled, budget, compiled.vocabulary
        self._matcher = Matcher(compiled, reasoning)
        self._said: list[int] = []
        self.work = work  # units that a look may take, each about 10 us
        compiled.meter.begin(work)
        try:
            self._matcher.check_budget(budget)
        finally:
            compiled.meter.begin()

    @property
    def ended(self) -> bool:
        """A stop token was committed: the text is complete."""
        return self._matcher.ended

    def look(
        self, draft: Sequence[int] = (), refused: Collection[int] = (), exact: bool = False
    ) -> NextTokens:
        """What may come next, and behind each token of `draft` that may.

        The next token is none of `refused`, unless nothing else may come. What each token of a
        vocabulary leaves to be written is costly to know: rows with ample room, but for the first
        of an `exact` look, are only what the grammar allows. Raises `Unfinished` when its work is
        spent (asking again goes on), and `DeadEndError` if no token may come.
        """
        self._compiled.masks.trim()
        self._compiled.meter.begin(self.work)
        begin = self._matcher.position
        try:
            return self._look(draft, refused, exact)
        finally:
            self._rewind(begin)
            self._compiled.meter.begin()

    def fits(self, tokens: Sequence[int]) -> int:
        """How many of `tokens` the grammar takes and leave room to complete the text."""
        begin = self._matcher.position
        taken = next((i for i, token in enumerate(tokens) if not self._take(token)), len(tokens))
        self._rewind(begin)
        return taken

    def commit(self, tokens: Sequence[int]) -> None:
        """Raises `GrammarError`, and moves nothing, if the grammar does not take `tokens`."""
        begin = self._matcher.position
        taken = self._accept(tokens)
        if taken < len(tokens):
            self._rewind(begin)
            raise GrammarError(f"token {tokens[taken]} at position {begin + taken} is not allowed")

    def rollback(self, count: int) -> None:
        """Take back the last `count` tokens committed."""
        self._rewind(self._matcher.position - count)

    def _look(self, draft: Sequence[int], refused: Collection[int], exact: bool) -> NextTokens:
        forced = self._take_forced()
        draft = draft[len(forced) :] if list(draft[: len(forced)]) == forced else []
        rows: list[Row] = [self._allowed(() if forced else refused, exact)]
        at = 0
        try:
            while at < len(draft) and self._goes_on(rows[-1], draft[at]):
                behind = self._take_forced()
                at += 1
                said = common_prefix(behind, draft[at:])
                at += said
                rows += [~token for token in behind[: said + 1]]
                if said < len(behind):
                    break
                rows.append(self._allowed())
        except (DeadEndError, Unfinished):
            pass  # so far the draft was read
        return NextTokens(forced=forced, draft=list(draft[: len(rows) - 1]), rows=rows)

    def _goes_on(self, row: Row, token: int) -> bool:
        """Read a token of a draft. The one that stops is not worth it: nothing follows."""
        if not isinstance(row, np.ndarray) or token in self._vocabulary.stops:
            return False
        return bool(row[token >> 5] >> (token & 31) & 1) and self._take(token)

    def _allowed(self, refused: Collection[int] = (), exact: bool = False) -> np.ndarray:
        left = self._budget - self._matcher.position
        ample = not exact and self._matcher.closes_within(left - _AMPLE)
        words = self._matcher.allowed(None if ample else left)
        if refused:
            others = words.copy()
            for token in refused:
                bits.remove(others, token)
            words = others if others.any() else words
        if not words.any():
            said = self._vocabulary.text(self._said[-_CONTEXT:])
            raise DeadEndError(f"no token is allowed after {said!r}")
        return words

    def _take_forced(self) -> list[int]:
        """Read what every text goes on with from here, as the tokenizer spells it."""
        text, taken = self._matcher.forced(), []
        for token in self._vocabulary.canonical(self._said[-_CONTEXT:], text) if text else ():
            if not self._take(token):
                break
            taken.append(token)
        return taken

    def _take(self, token: int) -> bool:
        """Read a token that leaves room to complete the text, and no other."""
        if not self._accept([token]):
            return False
        if self._matcher.closes_within(self._budget - self._matcher.position - 1):
            return True
        self._rewind(self._matcher.position - 1)
        return False

    def _accept(self, tokens: Sequence[int]) -> int:
        taken = self._matcher.accept_all(tokens)
        self._said += tokens[:taken]
        return taken

    def _rewind(self, position: int) -> None:
        count = self._matcher.position - position
        self._matcher.rollback(count)
        del self._said[len(self._said) - count :]
