"""The frontier engine: any grammar, along the model's own text.

A grammar is about the whole string, and a denoising step predicts its positions independently.
From the left, the model's own choices are followed as long as the grammar takes them; each of
these positions is masked by the state that it is reached in. At the first refusal the best allowed
token is taken. Everything right of that was predicted under a wrong left context: it is suspect,
stays unmasked, and is noised again. It is read up to the next refusal, to see whether the next pass
says the same, and to its end in the last passes, where the whole guess may be committed.

No token is taken that leaves too few of the budget to complete the text: then the shortest
completion is followed instead.

One pass over a canvas: its guess and masks, and where the model's choices were refused.

Free text whose reasoning has an end: nothing is constrained but where it closes.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from sys import maxsize

import torch
from jaxtyping import Int32
from torch import Tensor

from dlm.grammar.constraint import (
    NOTHING,
    Candidates,
    Fixed,
    Free,
    FreeTokens,
    Guidance,
    NextTokens,
    Scores,
)
from dlm.grammar.errors import DeadEndError, GrammarError
from dlm.grammar.masks.bits import Mask
from dlm.grammar.parse.compiled import Compiled
from dlm.grammar.parse.earley import State
from dlm.grammar.parse.keys import Keys
from dlm.grammar.parse.matcher import Matcher, most_tokens
from dlm.grammar.parse.reasoning import Reasoning
from dlm.grammar.tokens import common_prefix


@dataclass(slots=True)
class CanvasPass:
    """As far as it got."""

    fixed: Fixed
    wanted: list[int] = field(default_factory=list)  # what is pinned, then the model's choices
    guess: list[int] = field(default_factory=list)
    masks: list[Mask] = field(default_factory=list)  # in front of the suspect position
    forced: list[int] = field(default_factory=list)  # what the grammar leaves no choice about, next
    forced_at: dict[int, list[int]] = field(default_factory=dict)  # what was forced where it was
    completions: dict[int, list[int]] = field(default_factory=dict)  # those begun, by position
    repair: int | None = None  # the first position where the model's choice was refused
    suspect: int | None = None  # the first position behind the repair and what that dictates
    mass: float = 1.0

    def guidance(self, ended: bool, pad: int, bitmask: Int32[Tensor, "masks words"]) -> Guidance:
        """What it says of the canvas. `ended`: the guess's last token is its stop."""
        L, read = len(self.wanted), len(self.guess)
        guess = self.guess if ended else self.guess + self.wanted[read:]
        suspect = L if self.suspect is None else self.suspect
        return Guidance(
            guess=guess + [pad] * (L - len(guess)),
            bitmask=bitmask,
            rows=self.masks + [~pad] * (suspect - len(guess)),
            suspect=suspect,
            repaired=self.repair is not None,
            stop=read - 1 if ended else L,
            scored=len(guess),
            read=L if ended else read,
            mass=self.mass,
            choice=self.choice,
        )

    def sure_of(self, token: int) -> bool:
        """The next one is pinned, or goes on with a completion: it is known to fit the budget."""
        position = len(self.guess)
        if position < len(self.fixed.pinned):
            return True
        return self.completions.get(position, [])[:1] == [token]

    @property
    def agreed(self) -> int:
        """Leading positions that hold the model's own choice."""
        return len(self.guess) if self.repair is None else self.repair

    @property
    def choice(self) -> int:
        """The last position in front of the repair that was the model's to choose; -1: none."""
        free = (p for p in range(self.agreed - 1, -1, -1) if p not in self.forced_at)
        last = -1 if self.repair is None else next(free, -1)
        return last if last >= len(self.fixed.pinned) else -1


_CONTEXT = 20  # tokens that are remembered of the text so far, to spell what follows and for errors
_TRIED = 3  # candidates for a repair: the budget may be too small for the likeliest


class Frontier:
    """One request's grammar over its canvases. `commit` and `rollback` move its state.

    From step to step the guess repeats most of itself, and one request's text much of another's: a
    pass resumes the last one where it departs from it, and runs where the states are known.
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
        self._compiled, self._budget = compiled, budget
        self._vocabulary, self._masks = compiled.vocabulary, compiled.masks
        self._matcher = Matcher(compiled, reasoning)
        self.work = work  # units that a look may take, each about 10 us, before it is `Unfinished`
        self._said: list[int] = []  # all tokens committed
        self._begin_canvas()
        compiled.meter.begin(work)
        try:
            self._matcher.check_budget(budget)
        finally:
            compiled.meter.begin()

    def guide(self, scores: Scores, fixed: Fixed = NOTHING) -> Guidance:
        self._masks.trim()
        here = self._resume(scores.argmax, fixed)
        if self._guidance is not None and len(here.guess) == self._guidance.scored:
            return self._guidance  # nothing new was said
        self._last, self._guidance = CanvasPass(NOTHING), None
        self._compiled.meter.begin(self.work)
        try:
            self._seek(here.guess)
            self._follow(scores, here)
        except BaseException:
            self._rewind()
            raise
        finally:
            self._compiled.meter.begin()
        self._last, self._age = here, self._masks.age
        pad, bitmask = self._vocabulary.pad, self._masks.table
        self._guidance = here.guidance(self._matcher.ended, pad, bitmask)
        return self._guidance

    def commit(self, tokens: Sequence[int]) -> None:
        """Raises `GrammarError`, and moves nothing, if the grammar does not take `tokens`."""
        try:
            taken = self._seek(tokens)
        except BaseException:
            self._rewind()
            raise
        if taken < len(tokens):
            raise GrammarError(f"token {tokens[taken]} at position {taken} is not allowed there")
        self._said += tokens
        self._begin_canvas()

    def rollback(self, count: int) -> None:
        self._rewind()
        self._matcher.rollback(count)
        del self._said[len(self._said) - count :]
        self._begin_canvas()

    def _begin_canvas(self) -> None:
        self._begin = self._matcher.position
        self._ahead: list[int] = []  # tokens of the canvas that the matcher is behind
        self._last, self._age = CanvasPass(NOTHING), self._masks.age
        self._guidance: Guidance | None = None  # of the last pass

    def _rewind(self) -> None:
        """Take the matcher back to where the canvas begins."""
        self._matcher.rollback(self._matcher.position - self._begin)
        self._ahead = []

    def _seek(self, tokens: Sequence[int]) -> int:
        """Take the matcher from where it is behind `tokens`; says how many of them it takes."""
        kept = common_prefix(self._ahead, tokens)
        self._matcher.rollback(len(self._ahead) - kept)
        kept += self._matcher.accept_all(tokens[kept:])
        self._ahead = list(tokens[:kept])
        return kept

    def _resume(self, argmax: Sequence[int], fixed: Fixed) -> CanvasPass:
        """The last pass, up to where the model's choice departs from it."""
        last, pinned = self._last, fixed.pinned
        wanted = [*pinned, *argmax[len(pinned) :]]
        same, keep = fixed == last.fixed, common_prefix(wanted, last.guess)
        known = keep if same else min([keep, *fixed.banned])
        completions = {p: text for p, text in last.completions.items() if p <= known}
        keep = min(last.agreed, keep)
        if not same or self._age != self._masks.age:
            return CanvasPass(fixed, wanted, completions=completions)
        return CanvasPass(
            fixed,
            wanted,
            last.guess[:keep],
            last.masks[:keep],
            last.forced_at.get(keep - 1, [])[1:],
            {p: forced for p, forced in last.forced_at.items() if p < keep},
            completions,
        )

    def _follow(self, scores: Scores, here: CanvasPass) -> None:
        """Extend the guess to the stop or the canvas's end, or to the second refusal.

        What the grammar dictates right behind a repair is certain all the same.
        """
        while True:
            self._run(here)
            position = len(here.guess)
            if self._matcher.ended or position == len(here.wanted):
                return
            here.forced = here.forced or self._spelled(here.guess, self._matcher.forced())
            if here.repair is not None and here.suspect is None and not here.forced:
                here.suspect = position
            self._advance(scores, here)
            refused = here.guess[position] != here.wanted[position]
            if refused and here.suspect is not None and not here.fixed.last:
                return

    def _run(self, here: CanvasPass) -> None:
        """Take the model's choices as far as masks are known: what `_advance` does, faster."""
        state, wanted, banned = self._matcher.state, here.wanted, here.fixed.banned
        trusted, forced, begin = here.suspect is None, here.forced, len(here.guess)
        if state is None or self._compiled.may_run_out or (trusted and here.repair is not None):
            return
        left = self._left(0) if self._vocabulary.spells_every_byte else -1
        trail: list[tuple[State, Keys | None]] = []
        keys = self._matcher.keys
        for position in range(begin, len(wanted)):
            token = wanted[position]
            onward = self._compiled.after(state, token)
            if onward is None or onward.cost is None or position in banned:
                break
            read = keys and keys.after(self._vocabulary.pieces[token])
            rest = most_tokens(onward.cost) if keys else onward.cost
            if rest >= left - position or (keys and not read):
                break
            forced = forced or self._spelled(here.guess, self._compiled.parser.forced(state))
            said = bool(forced) and forced[0] == token
            if trusted:
                alone = said or position < len(here.fixed.pinned)
                mask = ~token if alone else self._compiled.known_mask(state, keys)
                if mask is None:
                    break
                here.masks.append(mask)
            if said:
                here.forced_at[position] = forced
            forced = forced[1:] if said else []
            here.guess.append(token)
            trail.append((state, keys))
            state, keys = onward, read
        here.forced = forced
        self._matcher.follow(trail, state, keys)
        self._ahead += here.guess[begin:]

    def _advance(self, scores: Scores, here: CanvasPass) -> None:
        """Go on by one token."""
        position, forced = len(here.guess), here.forced
        token, mask = self._take(scores, here)
        if here.suspect is None:
            here.masks.append(mask)
        said, completion = forced[:1] == [token], here.completions.get(position, [])
        if said:
            here.forced_at[position] = forced
        if completion[:1] == [token]:
            here.completions[position + 1] = completion[1:]
        here.forced = forced[1:] if said else []
        here.guess.append(token)
        self._ahead.append(token)

    def _take(self, scores: Scores, here: CanvasPass) -> tuple[int, Mask]:
        """Read the first token that the grammar takes and the budget can complete."""
        matcher, position = self._matcher, len(here.guess)
        refused = set(here.fixed.banned.get(position, ()))
        for token, mask in self._proposals(scores, here, refused):
            if matcher.accept(token):
                if here.sure_of(token) or matcher.closes_within(self._left(position)):
                    return token, mask
                matcher.rollback(1)
            refused.add(token)
        said = self._vocabulary.text(self._recent(here.guess))
        raise DeadEndError(f"no token is allowed after {said!r}")

    def _left(self, position: int) -> int:
        """What the budget leaves behind `position` for the text, its stop not counted."""
        return self._budget - len(self._said) - position - 2

    def _proposals(
        self, scores: Scores, here: CanvasPass, refused: Collection[int]
    ) -> Iterator[tuple[int, Mask]]:
        """What the next token may be, with its mask: the model's own choice, else its stand-ins."""
        position, forced = len(here.guess), here.forced
        wanted = here.wanted[position]
        if position < len(here.fixed.pinned):
            yield wanted, ~wanted
            return
        if wanted not in refused:
            yield wanted, ~wanted if forced[:1] == [wanted] else self._mask(here, refused)
        first = here.repair is None
        if first:
            here.repair = position
        if forced:
            if first:
                here.mass = self._candidates(scores, position, ~forced[0]).mass
            yield forced[0], ~forced[0]
        elif first:
            found = self._candidates(scores, position, self._mask(here, refused))
            here.mass = found.mass
            yield from ((token, self._mask(here, refused)) for token, _ in found.ranked)
        elif here.fixed.last:
            yield scores.best(position, self._masks.words(self._allowed(refused))), 0
        yield self._completing(scores, here)

    def _mask(self, here: CanvasPass, refused: Collection[int]) -> Mask:
        """What the grammar allows, without what was refused; nobody asks behind what is suspect."""
        return self._allowed(refused) if here.suspect is None else 0

    def _allowed(self, refused: Collection[int]) -> Mask:
        return self._masks.changed(self._matcher.mask(), fewer=refused)

    def _candidates(self, scores: Scores, position: int, mask: Mask) -> Candidates:
        return scores.candidates(position, self._masks.words(mask), _TRIED)

    def _completing(self, scores: Scores, here: CanvasPass) -> tuple[int, Mask]:
        """The next token of a shortest completion, or the stop behind it."""
        position = len(here.guess)
        known, left = here.completions.get(position), self._left(position) + 1
        completion = known or self._matcher.completing(left)
        if completion is None:
            raise DeadEndError("the grammar goes on, but no token of the vocabulary does")
        if completion:
            here.completions[position] = completion
            return completion[0], ~completion[0]
        stops = self._masks.changed(None, more=self._vocabulary.stops)
        return scores.best(position, self._masks.words(stops)), stops

    def _spelled(self, guess: list[int], text: str) -> list[int]:
        """The tokens of what must come next, as the tokenizer writes them."""
        return self._vocabulary.canonical(self._recent(guess), text) if text else []

    def _recent(self, tokens: Sequence[int]) -> list[int]:
        """The last of what was committed and of `tokens` behind it."""
        return [*self._said[-_CONTEXT:], *tokens[-_CONTEXT:]][-_CONTEXT:]


class Bounded(Free):
    """Once `reasoning.budget` tokens of reasoning are full, its closing marker is all that may
    come. What was predicted behind it was meant to be reasoning, and is suspect."""

    def __init__(self, stops: Collection[int], reasoning: Reasoning, words: int):
        """`words` is the number of 32-bit words that a mask over the vocabulary takes."""
        super().__init__(stops)
        self._reasoning, self._said = reasoning, list[int]()
        self._any = torch.full((1, words), -1, dtype=torch.int32)

    def guide(self, scores: Scores, fixed: Fixed = NOTHING) -> Guidance:
        free = super().guide(scores, fixed)
        L, pinned = len(free.guess), list(fixed.pinned)
        guess = pinned + free.guess[len(pinned) :]
        stop = next((i for i, token in enumerate(guess) if token in self._stops), L)
        begin, marker = _closing(self._said, guess[:stop], self._reasoning)
        forced = marker[: L - begin] if begin <= stop else []
        end = max(len(pinned), begin + len(forced) if forced else 0)
        repaired = bool(forced) and guess[begin : begin + len(forced)] != forced
        if forced:
            guess[begin : begin + len(forced)] = forced
        if repaired:
            stop = L
        return replace(
            free,
            guess=guess,
            bitmask=self._any,
            rows=[~t if i < len(pinned) or i >= begin else 0 for i, t in enumerate(guess[:end])],
            suspect=end if repaired else L,
            repaired=repaired,
            stop=stop,
        )

    def commit(self, tokens: Sequence[int]) -> None:
        self._said += tokens

    def rollback(self, count: int) -> None:
        del self._said[len(self._said) - count :]


class BoundedTokens(FreeTokens):
    """The same for text that is written left to right."""

    def __init__(self, stops: Collection[int], budget: int, reasoning: Reasoning):
        super().__init__(stops, budget)
        self._reasoning, self._said = reasoning, list[int]()

    def look(
        self, draft: Sequence[int] = (), refused: Collection[int] = (), exact: bool = False
    ) -> NextTokens:
        begin, marker = _closing(self._said, list(draft), self._reasoning)
        if not marker or begin > len(draft):
            return super().look(draft)
        if begin == 0:
            return NextTokens(forced=marker[: max(0, self._left - 1)], draft=[], rows=[None])
        free = super().look(draft[:begin])
        rows = free.rows if len(free.draft) < begin else [*free.rows[:-1], ~marker[0]]
        return NextTokens(forced=[], draft=free.draft, rows=rows)

    def commit(self, tokens: Sequence[int]) -> None:
        super().commit(tokens)
        self._said += tokens

    def rollback(self, count: int) -> None:
        super().rollback(count)
        del self._said[len(self._said) - count :]


def _closing(said: list[int], guess: list[int], reasoning: Reasoning) -> tuple[int, list[int]]:
    """Where in `guess`, which comes behind `said`, reasoning must be closed, and what of the marker
    is not said yet; no tokens where it closes by itself, or there is none."""
    text, opens, closes = said + guess, reasoning.open, reasoning.close
    opened = opens.find(text)
    if opened is None or (opens.size and opened[0]) or reasoning.budget is None:
        return 0, []
    end = opened[0] + reasoning.budget
    closed = closes.find(text[opened[1] :])
    if closed is not None and opened[1] + closed[1] <= end:
        return 0, []
    marker = closes.rest(0)
    begin = max(opened[1], end - len(marker)) - len(said)
    if begin < -len(marker):  # it was not closed in time, which a marker of text may not allow
        return 0, []
    return max(0, begin), marker[max(0, -begin) :]
