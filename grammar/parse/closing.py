"""Closing: whether a text can be completed within a budget, by which tokens, and if not, why.

One object answers for all states of a grammar, and the requests that use the grammar share it. It
knows neither requests nor reasoning: what comes before the answer is subtracted from the budget by
the caller. If the grammar leaves keys free or has distinct items, completions repeat none of them.
If it constrains all keys, `keys` is None.
"""

from collections.abc import Iterator
from functools import cached_property
from itertools import islice
from sys import maxsize

import numpy as np
from jaxtyping import Bool, UInt32

from dlm.grammar.errors import BudgetError, DeadEndError, Unfinished
from dlm.grammar.json_escapes import unescaped
from dlm.grammar.limits import Begun, LimitedCache, Meter
from dlm.grammar.masks.bits import token_words
from dlm.grammar.parse.earley import Parser
from dlm.grammar.parse.fewest_tokens import FewestTokens
from dlm.grammar.parse.fitting_tokens import FittingTokens
from dlm.grammar.parse.following import Following
from dlm.grammar.parse.keys import Keys
from dlm.grammar.parse.remainders import NEVER, Remainders
from dlm.grammar.parse.state_masks import StateMasks
from dlm.grammar.parse.states import State
from dlm.grammar.parse.steps import Steps
from dlm.grammar.parse.unique_text import UniqueText
from dlm.grammar.vocabulary.vocabulary import Vocabulary

ENDLESS = NEVER - 1  # tokens: a budget that refuses no text that the vocabulary spells
_COMPLETIONS = 4096  # cached completions
_FARTHEST = 1 << 16  # states with a cached bound on the distance to the end
COUNTED = 1 << 18  # bytes: tokens of longer completions are not counted
_BEGUN = 64  # bytes spelled of a completion that is known to fit
_DOUBTFUL, _ONE_BY_ONE = 1024, 256  # states, or keys, after which completions are computed
_READ = 2048  # tokens whose keys are read one by one
_SHORT = 1024  # bytes: of longer texts to the end, the tokens that are parts are not looked up
_TEXTS = 64  # cached unfinished completions
_UNFINISHED = 4  # sets of tokens that are not finished: up to 9 MB each, at 262,144 tokens
_FOLLOWINGS = 4  # states whose following tokens are cached: 6 MB at 262,144 tokens
_CLOSINGS = 256  # cached sets of tokens: 8 MB at 262,144 tokens
_FEW = 32  # tokens of a text to search for if none is known
_COUNTED_FOR_ERROR = 1 << 15  # bytes: longer completions are not counted for an error message


def most_tokens(cost: int) -> int:
    """Return a bound on the tokens of a text without repetitions, from the shortest text's bytes.

    A free key with its value has four bytes or more, and two more make it new.
    """
    return cost + cost // 2 + 2


class Closing:
    """The completions of one grammar's texts."""

    def __init__(
        self,
        parser: Parser,
        steps: Steps,
        state_masks: StateMasks,
        vocabulary: Vocabulary,
        meter: Meter,
    ):
        self._parser, self._steps, self._state_masks = parser, steps, state_masks
        self._vocabulary, self._meter = vocabulary, meter
        self.remainders = Remainders(parser, vocabulary, meter)
        self._completions = LimitedCache[tuple[State, Keys], list[int] | None](_COMPLETIONS)
        self._begun = LimitedCache[tuple[State, int], list[int]](_COMPLETIONS)
        self._texts = LimitedCache[tuple[State, Keys], UniqueText](_TEXTS)
        self._shortest = LimitedCache[tuple[State, Keys], tuple[bytes, int]](_COMPLETIONS)
        # By state, keys and budget: calls of `tokens` that are not finished.
        self._unfinished = Begun[tuple[State, Keys | None, int], FittingTokens](_UNFINISHED)
        self._followings = LimitedCache[State, tuple[Following, bool]](_FOLLOWINGS)
        # By state, keys and budget: the tokens after which the text can be completed.
        self._closings = LimitedCache[tuple[State, Keys | None, int], np.ndarray | None](_CLOSINGS)
        # By state: a bound on the tokens, or bytes, to the end after any token that may follow.
        self._farthest = LimitedCache[State, int](_FARTHEST)
        self._farthest_bytes = LimitedCache[State, int](_FARTHEST)

    @property
    def nbytes(self) -> int:
        """Approximate memory of the larger caches. Another thread may use them meanwhile."""
        closings, followings = list(self._closings.values()), list(self._followings.values())
        sets = sum(words.nbytes for words in closings if words is not None)
        following = (array for tokens, _ in followings for array in tokens)
        sets += self.remainders.nbytes + self._unfinished.nbytes
        return sets + sum(array.nbytes for array in following)

    def fits(self, state: State, keys: Keys | None, tokens: int) -> bool:
        """Whether the text can be completed in `tokens` tokens, the stop excluded."""
        decided = self._decided_by_bytes(state, keys, tokens)
        if decided is False or (decided and not self._steps.may_run_out):
            return decided
        if keys is None:
            # Fewer tokens are searched for only if those of the shortest text are too many.
            return self.remainders.tokens(state) <= tokens or self.least(state) <= tokens
        shortest = self.completion(state, keys, tokens)
        return shortest is not None and len(shortest) <= tokens

    def _decided_by_bytes(self, state: State, keys: Keys | None, tokens: int) -> bool | None:
        """Whether a completion fits `tokens`, judged by its bytes; None if they do not decide.

        A text too long to be counted fits only if its bytes do.
        """
        if state.cost is None or self._fewest_possible(state) > tokens:
            return False
        most = state.cost if keys is None else most_tokens(state.cost)
        if most <= tokens and self._vocabulary.spells_every_byte:
            return True
        return None if state.cost <= COUNTED else False

    def least(self, state: State) -> int:
        """Return the fewest tokens known to complete the text; fewer may be possible."""
        by_bytes = self.remainders.tokens(state)
        other = self._by_fewest_tokens.get(state) if by_bytes else None
        return by_bytes if other is None else min(by_bytes, len(other))

    def completion(
        self, state: State, keys: Keys | None = None, tokens: int = maxsize
    ) -> list[int] | None:
        """Return the tokens of a shortest text to the end, the stop excluded; None: there is none.

        The shortest in bytes if it takes at most `tokens` tokens, else the shortest in tokens.
        Raises `BudgetError` if it has over 262,144 bytes.
        """
        if (state.cost or 0) > COUNTED:
            least = self._fewest_possible(state) + 1
            raise BudgetError(
                f"the shortest answer takes at least {least} tokens, too many to write it out: "
                f"it has {state.cost} bytes, and up to {COUNTED} are written out",
                least,
            )
        if keys is not None:
            shortest = self._unique_completion(state, keys)
            if shortest is None or len(shortest) > tokens:
                other = self._by_fewest_tokens.get(state)
                if other and len(other) <= tokens and self._is_unique(state, keys, other):
                    return other
            return shortest
        by_bytes = self.begun(state, maxsize)
        if by_bytes is None or self.remainders.tokens(state) > tokens:
            return self._by_fewest_tokens.get(state, by_bytes)
        return by_bytes

    def beginning(
        self, state: State, keys: Keys | None, tokens: int
    ) -> tuple[list[int] | None, bool]:
        """Return a completion of at most `tokens` tokens, or None, and whether it is whole.

        Only its beginning is returned if the bytes bound the tokens.
        """
        decided = self._decided_by_bytes(state, keys, tokens)
        if decided is False:
            return None, False
        if decided is None or self._steps.may_run_out:
            return self.completion(state, keys, tokens), True
        if keys is None:
            return self.begun(state), False
        text = self._text(state, keys).written(_BEGUN)
        return None if text is None else self._vocabulary.fewest(text), False

    def begun(self, state: State, most: int = _BEGUN) -> list[int] | None:
        """Return the first `most` tokens, or all, of the shortest text in bytes.

        None if there is no text, or no tokens spell it.
        """
        if state.cost is None or self.remainders.tokens(state) >= NEVER:
            return None
        key = state, most
        if key not in self._begun:
            remainder = self.remainders.of(state)
            spelled = [] if remainder is None else remainder.spelled(self._vocabulary, most)[0]
            self._begun[key] = spelled
        return self._begun[key]

    def error(
        self, state: State, keys: Keys | None, before: int, budget: int
    ) -> BudgetError | DeadEndError:
        """Return the error to raise if no completion fits `budget` tokens.

        `budget` includes the stop and the `before` tokens before the completion.
        """
        cost = state.cost or 0
        least = before + self._fewest_possible(state) + 1
        if least > budget and cost > _COUNTED_FOR_ERROR:
            return BudgetError(
                f"the shortest answer takes at least {least} tokens, more than {budget}", least
            )
        if cost > COUNTED:
            enough = before + (cost if keys is None else most_tokens(cost)) + 1
            return BudgetError(
                f"the shortest answer takes at least {least} tokens, and surely fits {enough}, "
                f"but it is too long to tell whether it fits {budget}",
                enough,
            )
        shortest = self.completion(state, keys, budget - 1 - before)
        if shortest is None:
            return DeadEndError(
                "no text that the grammar accepts can be written in this vocabulary"
            )
        needed = before + len(shortest) + 1
        return BudgetError(f"the shortest answer takes {needed} tokens, more than {budget}", needed)

    def _fewest_possible(self, state: State) -> int:
        """Return a lower bound on the tokens of a completion, from the longest token's bytes."""
        return -(-(state.cost or 0) // max(1, self._vocabulary.longest))

    def _unique_completion(self, state: State, keys: Keys) -> list[int] | None:
        """Return the tokens of a short text to the end that repeats no key and no distinct item.

        None if none is found.
        """
        key = state, keys
        if key not in self._completions:
            text = self._text(state, keys).written(maxsize)
            self._completions[key] = None if text is None else self._vocabulary.fewest(text)
            self._texts.pop(key, None)
        return self._completions[key]

    def _is_unique(self, state: State, keys: Keys, tokens: list[int]) -> bool:
        """Whether `tokens` can follow without a repeated key or item."""
        for token in tokens:
            after = self._steps.uniqueness.after(state, keys, self._vocabulary.pieces[token])
            onward = self._steps.after(state, token)
            if onward is None or after is None:
                return False
            state, keys = onward, after
        return True

    def _text(self, state: State, keys: Keys) -> UniqueText:
        key = state, keys
        if key not in self._texts:
            text = UniqueText(
                self._parser, self._steps.uniqueness, self._steps.detour, self._meter, key
            )
            self._texts[key] = text
        return self._texts[key]

    @cached_property
    def _by_fewest_tokens(self) -> dict[State, list[int]]:
        """Completions in fewer tokens than the shortest text in bytes, for states on one path."""
        steps = self._fewest.path()
        tokens = [token for _, token in steps]
        return {state: tokens[i:] for i, (state, _) in enumerate(steps)}

    @cached_property
    def _fewest(self) -> FewestTokens:
        """The search for that path, which may take several calls."""
        start = self._parser.start
        counted = self.remainders.tokens(start) if (start.cost or 0) <= COUNTED else NEVER
        most = _FEW if counted == NEVER else counted - 1
        return FewestTokens(self._parser, self._vocabulary, self._meter, most)

    def tokens(
        self, state: State, keys: Keys | None, budget: int
    ) -> UInt32[np.ndarray, " words"] | None:
        """Return the tokens after which the text can be completed within `budget`.

        `budget` includes the token and the stop, and stops are left out. Packed bits; None: all
        tokens that may follow.
        """
        key = state, keys, budget
        if key not in self._closings:
            judged = self._unfinished.take(key) or FittingTokens()
            try:
                if keys is None:
                    fitting = self._closing(state, budget - 2, judged)
                else:
                    fitting = self._closing_unique(state, keys, budget, judged)
            except Unfinished:
                self._unfinished.keep(key, judged)
                raise
            self._closings[key] = fitting
        return self._closings[key]

    def _closing(self, state: State, tokens: int, judged: FittingTokens) -> np.ndarray | None:
        if self._farthest.get(state, maxsize) <= tokens:
            return None
        if judged.following is None:
            following, judged.all_end = self._following(state)
            if self._vocabulary.spells_every_byte:
                judged.sure = following.costs <= tokens
            doubtful = None if judged.sure is None else ~judged.sure
            judged.waiting = [*following.groups(doubtful)][::-1]
            judged.following = following
        following, sure = judged.following, judged.sure

        def fits(token: int, cost: int) -> bool:
            onward = self._steps.after(state, token)
            needed = NEVER if onward is None or cost > COUNTED else self.least(onward)
            judged.farthest = max(judged.farthest, needed)
            return needed <= tokens

        judged.judge(fits, self._meter)
        if judged.all_end:
            nearer = 0 if sure is None else int(following.costs[sure].max(initial=0))
            self._farthest[state] = max(judged.farthest, nearer)
            if judged.farthest <= tokens:
                return None
        return self._members(following, sure, judged.fitting)

    def _closing_unique(
        self, state: State, keys: Keys, budget: int, judged: FittingTokens
    ) -> np.ndarray | None:
        """Return what `_closing` returns, for grammars with free keys or distinct items.

        A token with few bytes to the end after it fits, and one that makes a string new if the
        shortest text after it does. For others, `fits` decides once for each situation that tokens
        lead to. A limit of calls holds; tokens beyond it are left out.
        """
        sure_bytes = 2 * (budget - 4) // 3  # inverse of `most_tokens`
        if self._farthest_bytes.get(state, maxsize) <= sure_bytes:
            return None
        if judged.following is None:
            following, all_end = self._following(state)
            if self._steps.may_run_out:
                sure = self._new_within_string(state, keys, following, budget - 2)
            else:
                sure = following.costs <= sure_bytes if self._vocabulary.spells_every_byte else None
                if all_end and sure is not None and sure.all():
                    self._farthest_bytes[state] = int(following.costs.max(initial=0))
                    return None
            doubtful = np.ones(len(following.tokens), bool) if sure is None else ~sure
            groups = [
                *islice(self._unchanging(keys, following, doubtful), _DOUBTFUL),
                *islice(self._changing(state, keys, following, doubtful), _ONE_BY_ONE),
            ]
            judged.sure, judged.following = sure, following
            judged.waiting = [(group, 0) for group in reversed(groups)]
        judged.judge(lambda token, _: self._fits_after(state, keys, token, budget - 2), self._meter)
        return self._members(judged.following, judged.sure, judged.fitting)

    def _new_within_string(
        self, state: State, keys: Keys, following: Following, tokens: int
    ) -> Bool[np.ndarray, " n"]:
        """Return which of the `following` tokens make the string of a key or an item a new one, and
        fit, since `tokens` are enough for the shortest text after them.

        After all of them that lead to one state this is the same text, unless it repeats their
        string: tokens that are parts of it are left out.
        """
        vocabulary, sure = self._vocabulary, np.zeros(len(self._vocabulary), bool)
        quoted = vocabulary.quoted
        if not keys.string or keys.escape or keys.unchanged_by(quoted) is not None:
            return sure[following.tokens]
        new = quoted.within.copy()
        new[vocabulary.beginnings(*keys.taken_continuations)] = False
        for group, cost in islice(following.groups(new[following.tokens]), _ONE_BY_ONE):
            onward, after = self._steps.read(state, keys, int(group[0])) or (None, None)
            if onward is None or after is None or cost > _SHORT:
                continue
            shortest, needed = self._without_detour(onward, after)
            if needed <= tokens:
                parts = vocabulary.beginnings(*(shortest[at:] for at in range(len(shortest))))
                parts_of_others = sure[parts]
                sure[group] = True
                sure[parts] = parts_of_others
        return sure[following.tokens]

    def _without_detour(self, state: State, keys: Keys) -> tuple[bytes, int]:
        """Return the shortest text to the end in the canonical spelling, without its control
        tokens, and its fewest tokens: `NEVER` if it would repeat a key or an item."""
        key = state, keys
        if key not in self._shortest:
            text = self._text(state, keys)
            written = text.written(maxsize)
            spelled = None if written is None or text.detours else self._vocabulary.fewest(written)
            parts = (part for part in written or () if isinstance(part, bytes))
            needed = NEVER if spelled is None else len(spelled)
            self._shortest[key] = unescaped(b"".join(parts)), needed
            self._texts.pop(key, None)
        return self._shortest[key]

    def _fits_after(self, state: State, keys: Keys | None, token: int, tokens: int) -> bool:
        """Whether the text can be completed in `tokens` tokens after `token`, without a stop."""
        read = self._steps.read(state, keys, token)
        return read is not None and self.fits(*read, tokens)

    def _unchanging(
        self, keys: Keys, following: Following, doubtful: np.ndarray
    ) -> Iterator[np.ndarray]:
        """Yield groups of the `doubtful` tokens that lead to one state and leave the keys."""
        unchanged = keys.unchanged_by(self._vocabulary.quoted)
        if unchanged is not None:
            for group, cost in following.groups(doubtful & unchanged[following.tokens]):
                if cost <= COUNTED:
                    yield group

    def _changing(
        self, state: State, keys: Keys, following: Following, doubtful: np.ndarray
    ) -> Iterator[np.ndarray]:
        """Yield groups of the other `doubtful` tokens that lead to one state and equal keys.

        Tokens that begin different keys need different texts to the end, whatever their state.
        """
        unchanged = keys.unchanged_by(self._vocabulary.quoted)
        if unchanged is not None:
            doubtful = doubtful & ~unchanged[following.tokens]
        doubtful = doubtful & (following.costs <= COUNTED)
        tokens, costs = following.tokens[doubtful], following.costs[doubtful]
        groups: dict[tuple[State, Keys], list[int]] = {}
        for token in tokens[np.lexsort((tokens, costs))][:_READ].tolist():
            onward = self._steps.after(state, token)
            after = self._steps.uniqueness.after(state, keys, self._vocabulary.pieces[token])
            if onward is not None and after is not None:
                groups.setdefault((onward, after), []).append(token)
        self._meter.add(min(_READ, len(tokens)))
        yield from map(np.array, groups.values())

    def _following(self, state: State) -> tuple[Following, bool]:
        """Return `StateMasks.following`, cached for a call that is `Unfinished` and repeated."""
        if state not in self._followings:
            self._followings[state] = self._state_masks.following(state)
        return self._followings[state]

    def _members(
        self, following: Following, sure: np.ndarray | None, fitting: list[np.ndarray]
    ) -> np.ndarray:
        sets = [following.tokens[:0] if sure is None else following.tokens[sure], *fitting]
        return token_words(np.concatenate(sets), len(self._vocabulary))
