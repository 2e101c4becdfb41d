"""One request's constraint for left-to-right decoders.

It reads a draft of tokens, if there is one, in the same call, so that one forward pass can judge
all of it. It knows no model, and not where a draft comes from.
"""

from collections.abc import Collection, Sequence
from sys import maxsize

import numpy as np

from dlm.grammar.constraint import NextTokens, Row
from dlm.grammar.errors import DeadEndError, GrammarError, Unfinished
from dlm.grammar.masks.bits import token_words
from dlm.grammar.parse.compiled import Compiled
from dlm.grammar.parse.matcher import CONTEXT, Matcher
from dlm.grammar.vocabulary.markers import Reasoning
from dlm.grammar.vocabulary.spelling import common_prefix

_AMPLE = 32  # tokens left beyond a completion, from which on the budget is not checked per token


class LeftToRight:
    """A constraint from left to right. `commit` moves it forward, and `rollback` back.

    After tokens that `look` allows and `fits` takes, the text can be completed within its budget.
    Until the budget refuses a token, rows are the grammar's own masks: `fits` learns thereby which
    token the model would have chosen with a larger budget.
    """

    def __init__(
        self,
        compiled: Compiled,
        budget: int,
        reasoning: Reasoning | None = None,
        work: int = maxsize,
    ):
        """`budget` bounds all tokens, the stop included. `reasoning` may come before the answer.

        Raises `BudgetError` if not even the shortest text fits, `DeadEndError` if there is no
        text, and `Unfinished` if `work` runs out: a second try continues.
        """
        self._compiled, self._budget, self._vocabulary = compiled, budget, compiled.vocabulary
        self._matcher = Matcher(compiled, reasoning)
        self._tokens: list[int] = []
        # By position, where the budget refused a token: whether the text could end there.
        self._squeezes: dict[int, bool] = {}
        self.work = work  # units of about 10 us, for each `look`
        self.spent = 0  # units that the last `look` took
        self._matcher.check_budget(budget, work)

    @property
    def ended(self) -> bool:
        """Whether a stop token was committed: the text is complete."""
        return self._matcher.ended

    @property
    def squeezed(self) -> bool:
        """Whether the budget refused a token that another one has replaced."""
        return any(position < self._matcher.position for position in self._squeezes)

    def look(
        self, draft: Sequence[int] = (), refused: Collection[int] = (), exact: bool = False
    ) -> NextTokens:
        """Return the tokens allowed next, as `TokenConstraint.look` describes.

        Where the budget refused a token and the text is complete, it ends: what the model writes
        there was predicted as the continuation of the refused token.

        Raises `Unfinished` if its work runs out, and `DeadEndError` if no token is allowed.
        """
        self._compiled.masks.trim()
        begin, before = self._matcher.position, self._compiled.meter.spent
        try:
            with self._compiled.meter.limited(self.work):
                return self._look(draft, refused, exact)
        finally:
            self.spent = self._compiled.meter.spent - before
            self._rewind(begin)

    def fits(self, tokens: Sequence[int]) -> int:
        """Return the number of leading `tokens` after which the text can still be completed."""
        begin = position = self._matcher.position
        try:
            for token in tokens:
                if not self._take(token):
                    self._note_squeeze(token)
                    break
                position += 1
        finally:
            self._rewind(begin)
        return position - begin

    def _note_squeeze(self, token: int) -> None:
        """Note where the text is if the budget alone refuses `token` here."""
        position = self._matcher.position
        if self._matcher.squeezes(token, self._budget - position - 2):
            self._squeezes[position] = self._matcher.complete

    def commit(self, tokens: Sequence[int]) -> None:
        """Move past `tokens`. Raises `GrammarError`, and does not move, if they are not allowed."""
        begin = self._matcher.position
        taken = self._accept(tokens)
        if taken < len(tokens):
            self._rewind(begin)
            raise GrammarError(f"token {tokens[taken]} at position {begin + taken} is not allowed")

    def rollback(self, count: int) -> None:
        """Take back the last `count` tokens committed."""
        begin = self._matcher.position - count
        self._rewind(begin)
        self._squeezes = {at: ends for at, ends in self._squeezes.items() if at < begin}

    def _look(self, draft: Sequence[int], refused: Collection[int], exact: bool) -> NextTokens:
        forced = self._take_forced()
        draft = draft[len(forced) :] if list(draft[: len(forced)]) == forced else []
        rows: list[Row] = [self._allowed(() if forced else refused, exact)]
        at = 0
        try:
            while at < len(draft) and self._take_drafted(rows[-1], draft[at]):
                after = self._take_forced()
                at += 1
                agreed = common_prefix(after, draft[at:])
                at += agreed
                rows += [~token for token in after[: agreed + 1]]
                if agreed < len(after):
                    break
                rows.append(self._allowed())
        except (DeadEndError, Unfinished):
            pass  # return the part of the draft that was read
        return NextTokens(forced=forced, draft=list(draft[: len(rows) - 1]), rows=rows)

    def _take_drafted(self, row: Row, token: int) -> bool:
        """Read a token of a draft, if `row` allows it and it is no stop."""
        if not isinstance(row, np.ndarray) or token in self._compiled.stops.all:
            return False
        return bool(row[token >> 5] >> (token & 31) & 1) and self._take(token)

    def _allowed(self, refused: Collection[int] = (), exact: bool = False) -> np.ndarray:
        position = self._matcher.position
        if self._squeezes.get(position, False):
            masks = self._compiled.masks
            return masks.words(self._compiled.stops.mask).copy()
        remaining = self._budget - position
        ample = not self._squeezes or self._matcher.closes_within(remaining - _AMPLE)
        words = self._matcher.allowed(None if ample and not exact else remaining)
        if refused:
            others = words & ~token_words(refused, len(self._vocabulary))
            words = others if others.any() else words
        if not words.any():
            text = self._vocabulary.text(self._tokens[-CONTEXT:])
            raise DeadEndError(f"no token is allowed after {text!r}")
        return words

    def _take_forced(self) -> list[int]:
        """Read the forced text, in the tokenizer's spelling. Returns its tokens."""
        text, taken = self._matcher.forced(), []
        for token in self._vocabulary.canonical(self._tokens[-CONTEXT:], text) if text else ():
            if not self._take(token):
                break
            taken.append(token)
        return taken

    def _take(self, token: int) -> bool:
        """Read a token if the text can be completed within the budget after it."""
        if not self._accept([token]):
            return False
        if self._matcher.closes_within(self._budget - self._matcher.position - 1):
            return True
        self._rewind(self._matcher.position - 1)
        return False

    def _accept(self, tokens: Sequence[int]) -> int:
        taken = self._matcher.accept_all(tokens)
        self._tokens += tokens[:taken]
        return taken

    def _rewind(self, position: int) -> None:
        count = self._matcher.position - position
        self._matcher.rollback(count)
        del self._tokens[len(self._tokens) - count :]
