"""A matcher of tokens, left to right, with an optional reasoning prefix.

Both the frontier over canvases and left-to-right decoders use `Matcher`. A text of tokens taken
from `allowed(budget)` is valid, and ends within the budget.

`LeftToRight` is one request's constraint for left-to-right decoders. It reads a draft of tokens, if
there is one, in the same call, so that one forward pass can judge all of it. It knows no model, and
not where a draft comes from.
"""

from collections.abc import Collection, Sequence
from enum import Enum, auto
from sys import maxsize

import numpy as np

from dlm.grammar.constraint import NextTokens, Row
from dlm.grammar.errors import DeadEndError, GrammarError, Unfinished
from dlm.grammar.masks import Mask, token_words
from dlm.grammar.parse.compiled import Compiled
from dlm.grammar.parse.earley import State
from dlm.grammar.parse.keys import Keys
from dlm.grammar.parse.remainders import NEVER
from dlm.grammar.vocabulary import Reasoning, common_prefix

# State before a token: phase, parser state, marker symbols, reasoning tokens, keys, promise.
_Before = tuple["_Phase", State, int, int, Keys | None, list[int] | None]
_ENDLESS = NEVER - 1  # tokens: a budget that refuses no text that the vocabulary spells


class _Phase(Enum):
    OPENING = auto()  # reasoning or the answer may begin
    REASONING = auto()  # any text, up to the closing marker
    ANSWER = auto()  # text of the grammar
    ENDED = auto()  # a stop token was read


class Matcher:
    """A matcher of one text's tokens. `accept` moves it forward, and `rollback` back.

    No other method changes its state. The grammar does not constrain the reasoning.
    """

    def __init__(self, compiled: Compiled, reasoning: Reasoning | None = None):
        """With `reasoning`, the text may begin with reasoning; None: it begins with the answer."""
        vocabulary = compiled.vocabulary
        self._compiled, self._pieces, self._reasoning = compiled, vocabulary.pieces, reasoning
        self._stops = frozenset(vocabulary.stops)
        self._state = compiled.parser.start
        self._phase = _Phase.ANSWER if reasoning is None else _Phase.OPENING
        self._marker = 0  # symbols of a marker read so far
        self._thought = 0  # tokens of reasoning so far, markers included
        self._keys = Keys() if compiled.free_keys or compiled.uniqueness.distinct else None
        self._promised: list[int] | None = None  # a completion that is known to fit, without a stop
        self._trail: list[_Before] = []  # the state before each token

    @property
    def ended(self) -> bool:
        """Whether a stop token was read: the text is complete."""
        return self._phase is _Phase.ENDED

    @property
    def complete(self) -> bool:
        """Whether the text may end here, with a stop."""
        between = self._phase in (_Phase.OPENING, _Phase.ANSWER) and not self._marker
        return between and self._state.cost == 0

    @property
    def state(self) -> State | None:
        """The parser's state; None before and after the answer."""
        return self._state if self._phase is _Phase.ANSWER else None

    @property
    def position(self) -> int:
        """The number of tokens accepted so far."""
        return len(self._trail)

    def accept(self, token: int) -> bool:
        """Move past `token`. Returns False, and does not move, if it is not allowed here."""
        promised = self._promised
        before = (self._phase, self._state, self._marker, self._thought, self._keys, promised)
        if self._phase is _Phase.ENDED:
            taken = False
        elif self._phase is _Phase.ANSWER or (
            self._phase is _Phase.OPENING and not self._opens(token)
        ):
            taken = not self._marker and self._answer(token)
        else:
            taken = self._reason(token)
        if taken:
            self._promised = promised[1:] if promised and promised[0] == token else None
            self._trail.append(before)
        return taken

    def accept_all(self, tokens: Sequence[int]) -> int:
        """Accept `tokens` up to the first that is not allowed. Returns the number accepted."""
        for position, token in enumerate(tokens):
            if not self.accept(token):
                return position
        return len(tokens)

    @property
    def keys(self) -> Keys | None:
        """The keys of the JSON text so far; None if the grammar constrains all keys."""
        return self._keys

    def follow(
        self, trail: Sequence[tuple[State, Keys | None]], end: State, keys: Keys | None
    ) -> None:
        """Move past tokens of the answer, given state and keys before each and after all."""
        if trail:
            phase, thought = _Phase.ANSWER, self._thought
            first, *others = trail
            self._trail.append((phase, first[0], 0, thought, first[1], self._promised))
            self._trail += [(phase, state, 0, thought, before, None) for state, before in others]
            self._promised = None
        self._state, self._keys = end, keys

    def rollback(self, count: int) -> None:
        """Take back the last `count` tokens."""
        if count:
            (self._phase, self._state, self._marker, self._thought, self._keys, self._promised) = (
                self._trail[-count]
            )
            del self._trail[-count:]

    def mask(self) -> Mask:
        """Return the tokens that `accept` would take: a row of the grammar's table, or ~token."""
        masks, reasoning, marker = self._compiled.masks, self._reasoning, self._marker
        if reasoning is not None and self._phase is _Phase.REASONING:
            return masks.kept((reasoning.close, marker), reasoning.close.allowed(marker))
        if reasoning is None or self._phase is _Phase.ANSWER:
            return self._without_repetitions(self._compiled.mask(self._state))
        opens = reasoning.open.rest(marker)[0]
        if marker:
            return ~opens
        return masks.changed(self._compiled.mask(self._state), more=[opens])

    def allowed(self, budget: int | None = None) -> np.ndarray:
        """Return a copy of the mask as packed bits: token `v` is bit `v % 32` of word `v // 32`.

        With a `budget`, only tokens after which the text can be completed and stopped within
        `budget` tokens, the token included. Near its end, tokens of longer completions may be
        missing, but never that of the shortest. Raises `BudgetError` if no token is left.
        """
        words = self._compiled.masks.words(self.mask())
        if budget is None or self.ended or (mask := self._tight(budget)) is None:
            return words.copy()
        words = words & mask
        if not words.any():
            raise self.too_long(budget)
        return words

    def forced(self) -> str:
        """Return the text with which every continuation begins."""
        return "" if self.state is None else self._compiled.parser.forced(self.state)

    def closes_within(self, tokens: int) -> bool:
        """Whether the text can be completed in `tokens` tokens, the stop excluded.

        Reasoning that has begun must also fit its own limits.
        """
        if self.ended:
            return True
        closing = len(self._closing())
        if closing and self._overthinks(closing, tokens + 1):
            return False
        if self._promised is not None and len(self._promised) <= tokens:
            return True
        return self._compiled.closes_within(self._state, self._keys, tokens - closing)

    def squeezes(self, token: int, tokens: int) -> bool:
        """Whether `token` is allowed, but needs more than the budget of `tokens` tokens after it.

        False if no budget would be enough: the reasoning's own budget refuses the token, or it is a
        dead end. False too if it spells a part of the forced text, which other tokens spell.
        """
        if not self.accept(token):
            return False
        try:
            refused = not self.closes_within(tokens) and self.closes_within(_ENDLESS)
        finally:
            self.rollback(1)
        piece = self._pieces[token]
        return refused and not (piece and self.forced().encode().startswith(piece))

    def shortest_completion(self, tokens: int = maxsize) -> list[int] | None:
        """Return a shortest completion of the text, without a stop; None if there is none.

        It takes at most `tokens` tokens if such a completion is known. Raises `BudgetError` if it
        has over 262,144 bytes.
        """
        left = tokens - len(self._closing())
        return self._after_closing(
            self._compiled.shortest_completion(self._state, self._keys, left)
        )

    def completing(self, tokens: int) -> list[int] | None:
        """Return the first tokens, or all, of a completion of at most `tokens` tokens.

        None if there is none. While its tokens are accepted, its rest is remembered and fits.
        """
        if self._promised is None or len(self._promised) > tokens:
            left = tokens - len(self._closing())
            rest, whole = self._compiled.completing(self._state, self._keys, left)
            found = self._after_closing(rest)
            if not whole:
                return found
            self._promised = found if found is not None and len(found) <= tokens else None
        return self._promised

    def check_budget(self, budget: int, work: int = maxsize) -> None:
        """Raises `BudgetError` or `DeadEndError` if no text fits `budget` tokens, stop included.

        Raises `Unfinished` if `work` units run out.
        """
        with self._compiled.meter.limited(work):
            if not self.closes_within(budget - 1):
                raise self.too_long(budget)

    def too_long(self, budget: int) -> GrammarError:
        """Return the error to raise if no text fits `budget` tokens, the stop included."""
        return self._compiled.too_long(self._state, self._keys, len(self._closing()), budget)

    def _without_repetitions(self, mask: Mask) -> Mask:
        """Return `mask` without the tokens that would repeat a key or an item."""
        keys, masks, compiled = self._keys, self._compiled.masks, self._compiled
        if keys is None or mask < 0 or not (keys.has_entries or compiled.uniqueness.distinct):
            return mask
        known = masks.known.get((mask, keys))
        if known is None:
            suspects = compiled.suspects(keys, masks.words(mask))
            compiled.meter.spend(1 + len(suspects) // 2)
            refused = [token for token in suspects if self._read(token) is None]
            known = masks.known[mask, keys] = masks.changed(mask, fewer=refused)
        return known

    def _after_closing(self, rest: list[int] | None) -> list[int] | None:
        return None if rest is None else self._closing() + rest

    def _tight(self, budget: int) -> np.ndarray | None:
        """Return the tokens that fit the budget, as packed bits; None: all of the mask."""
        masks, reasoning = self._compiled.masks, self._reasoning
        if reasoning is None or self._phase is _Phase.ANSWER:
            return self._tight_answer(budget)
        if self._marker and self._phase is _Phase.OPENING:
            return None  # only one token is allowed
        if self._phase is _Phase.REASONING:  # any token may begin the marker
            continues = self._reasons_within(budget, 1 + reasoning.close.longest)
            return None if continues else masks.words(~reasoning.close.rest(self._marker)[0])
        opens, close = reasoning.open.rest(0), reasoning.close.rest(0)
        left = self._tight_answer(budget)
        left = masks.words(self._compiled.mask(self._state)) if left is None else left
        if self._reasons_within(budget, len(opens) + len(close)):
            left = left | masks.words(~opens[0])
        return left

    def _reasons_within(self, budget: int, more: int) -> bool:
        """Whether `more` tokens of reasoning, then the answer and its stop, fit the budgets."""
        if self._overthinks(more, budget):
            return False
        return self._compiled.closes_within(self._state, self._keys, budget - 1 - more)

    def _overthinks(self, more: int, budget: int) -> bool:
        """Whether `more` tokens of reasoning are over its own budget, or leave too few of `budget`.

        `budget` includes the stop.
        """
        reasoning = self._reasoning
        if reasoning is None:
            return False
        over = reasoning.budget is not None and self._thought + more > reasoning.budget
        return over or budget - more < reasoning.reserve

    def _tight_answer(self, budget: int) -> np.ndarray | None:
        """Return the tokens that fit the budget, before the answer or within it; None: all."""
        left = self._compiled.allowed(
            self._state, self._keys, budget, lambda token: self._fits(token, budget - 2)
        )
        if left is not None:
            first = (self.completing(budget - 1) or [])[:1]
            left = left | self._compiled.masks.words(self._compiled.masks.changed(None, more=first))
        if left is not None and self._state.cost == 0:
            left = left | self._compiled.masks.words(
                self._compiled.masks.changed(None, more=self._compiled.vocabulary.stops)
            )
        return left

    def _fits(self, token: int, tokens: int) -> bool:
        """Whether the answer can be completed in `tokens` tokens after `token`, without a stop."""
        read = self._read(token)
        return read is not None and self._compiled.closes_within(*read, tokens)

    def _read(self, token: int) -> tuple[State, Keys | None] | None:
        """Return state and keys after a token of the answer, no stop; None if it is not allowed."""
        onward, keys = self._compiled.after(self._state, token), self._keys
        if onward is None or keys is None:
            return onward and (onward, None)
        keys = self._compiled.keys_after(self._state, onward, keys, self._pieces[token])
        return None if keys is None else (onward, keys)

    def _closing(self) -> list[int]:
        """Return the tokens that end the reasoning; none if it has not begun, or has ended."""
        reasoning = self._reasoning
        if reasoning is None:
            return []
        if self._phase is _Phase.REASONING:
            return reasoning.close.rest(self._marker)
        if self._phase is _Phase.OPENING and self._marker:
            return reasoning.open.rest(self._marker) + reasoning.close.rest(0)
        return []

    def _opens(self, token: int) -> bool:
        """Whether `token` continues the opening marker, and may not be the answer's first token."""
        reasoning = self._reasoning
        if reasoning is None or reasoning.open.rest(self._marker)[0] != token:
            return False
        if self._marker or not self._pieces[token]:
            return True
        return self._compiled.after(self._state, token) is None

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
            self._phase = _Phase.ENDED if self._state.cost == 0 else self._phase
            return self.ended
        read = self._read(token)
        if read is None:
            return False
        self._state, self._keys = read
        self._phase = _Phase.ANSWER
        return True


_AMPLE = 32  # tokens left beyond a completion, from which on the budget is not checked per token
CONTEXT = 20  # last tokens of the text, passed to the tokenizer and to error messages


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
        if not isinstance(row, np.ndarray) or token in self._vocabulary.stops:
            return False
        return bool(row[token >> 5] >> (token & 31) & 1) and self._take(token)

    def _allowed(self, refused: Collection[int] = (), exact: bool = False) -> np.ndarray:
        position = self._matcher.position
        if self._squeezes.get(position, False):
            return token_words(self._vocabulary.stops, len(self._vocabulary))
        left = self._budget - position
        ample = not self._squeezes or self._matcher.closes_within(left - _AMPLE)
        words = self._matcher.allowed(None if ample and not exact else left)
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
