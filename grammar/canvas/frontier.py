"""The frontier: any grammar over canvases, following the model's own text from the left.

A grammar constrains the whole text, but a denoising step predicts its positions independently. The
model's choices are followed from the left as long as the grammar allows them. Each of these
positions is masked by the parser state before it. At the first refusal, the best allowed token is
taken: the repair. All positions after it were predicted under a wrong left context. They are
suspect, stay unmasked, and get new noise. They are read up to the next refusal, since the next pass
may predict them again. In the last passes, where the whole guess may be committed, they are read
to the end.

If a token leaves too little of the budget to complete the text, the likeliest token that does not
is taken instead, or the shortest completion is followed. If the text is complete there already, it
ends: what the model writes after such a token was predicted as its continuation. `squeezed` is
whether that happened in the committed text.
"""

from collections.abc import Collection, Iterator, Sequence
from sys import maxsize

from dlm.grammar.canvas.canvas_pass import CanvasPass
from dlm.grammar.canvas.squeezes import Squeezes
from dlm.grammar.canvas.witness import Witness
from dlm.grammar.constraint import (
    NOTHING,
    Candidates,
    Fixed,
    Guidance,
    Scores,
)
from dlm.grammar.errors import DeadEndError, GrammarError
from dlm.grammar.masks.table import Mask
from dlm.grammar.parse.closing import most_tokens
from dlm.grammar.parse.compiled import Compiled
from dlm.grammar.parse.keys import Keys
from dlm.grammar.parse.matcher import CONTEXT, Matcher
from dlm.grammar.parse.states import State
from dlm.grammar.vocabulary.markers import Reasoning
from dlm.grammar.vocabulary.spelling import common_prefix

_TRIED = 3  # candidates for a repair: the budget may be too small for the likeliest


class Frontier:
    """One request's grammar over its canvases. `commit` and `rollback` move its state.

    A pass resumes the previous one at the first difference, since guesses change little.
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
        self._compiled, self._budget = compiled, budget
        self._vocabulary, self._masks = compiled.vocabulary, compiled.masks
        self._matcher = Matcher(compiled, reasoning)
        self.work = work  # units of about 10 us, for each `guide`
        self.spent = 0  # units that the last `guide` took
        self._committed: list[int] = []
        self._squeezes = Squeezes()
        self._witness = Witness(self._matcher, self._vocabulary.pad)
        self._begin_canvas()
        self._matcher.check_budget(budget, work)

    @property
    def squeezed(self) -> bool:
        return bool(self._squeezes)

    def guide(self, scores: Scores, fixed: Fixed = NOTHING) -> Guidance:
        self.spent = 0
        self._masks.trim()
        self._witness.check(fixed.held)
        last = self._last
        if last.repair is not None and fixed.banned != last.fixed.banned:
            self._squeezes.note_bans(last.guess[: last.repair], fixed.banned)
        here = self._resume(scores.argmax, fixed)
        unchanged = self._guidance is not None and len(here.guess) == self._guidance.scored
        if self._guidance is not None and unchanged and fixed == last.fixed:
            return self._guidance
        self._last, self._guidance = CanvasPass(NOTHING), None
        here.reached = self._witness.text[len(here.guess) : 1 + max(fixed.held, default=-1)]
        meter = self._compiled.meter
        before = meter.spent
        try:
            with meter.limited(self.work):
                self._seek(here.guess)
                self._follow(scores, here)
        except BaseException:
            self._rewind()
            raise
        finally:
            self.spent = meter.spent - before
        self._last, self._age = here, self._masks.age
        pad, bitmask = self._vocabulary.pad, self._masks.table
        self._guidance = guidance = here.guidance(self._matcher.ended, pad, bitmask)
        self._witness.text = guidance.guess[: guidance.read]
        return guidance

    def commit(self, tokens: Sequence[int]) -> None:
        """Move past `tokens`. Raises `GrammarError`, and does not move, if they are not allowed."""
        try:
            taken = self._seek(tokens)
        except BaseException:
            self._rewind()
            raise
        if taken < len(tokens):
            raise GrammarError(f"token {tokens[taken]} at position {taken} is not allowed there")
        self._squeezes.commit(
            len(self._committed), tokens, lambda at, token: self._refuses(tokens[:at], token)
        )
        self._seek(tokens)
        self._committed += tokens
        self._begin_canvas()

    def rollback(self, count: int) -> None:
        self._rewind()
        self._matcher.rollback(count)
        del self._committed[len(self._committed) - count :]
        self._squeezes.rollback(len(self._committed))
        self._begin_canvas()

    def _begin_canvas(self) -> None:
        self._begin = self._matcher.position
        self._accepted: list[int] = []  # tokens of the canvas that the matcher has accepted
        self._last, self._age = CanvasPass(NOTHING), self._masks.age
        self._guidance: Guidance | None = None  # of the last pass
        self._witness.text = []

    def _rewind(self) -> None:
        """Move the matcher back to the canvas's beginning."""
        self._matcher.rollback(self._matcher.position - self._begin)
        self._accepted = []

    def _seek(self, tokens: Sequence[int]) -> int:
        """Move the matcher to after `tokens` of the canvas. Returns the number it accepts."""
        kept = common_prefix(self._accepted, tokens)
        self._matcher.rollback(len(self._accepted) - kept)
        kept += self._matcher.accept_all(tokens[kept:])
        self._accepted = list(tokens[:kept])
        return kept

    def _resume(self, argmax: Sequence[int], fixed: Fixed) -> CanvasPass:
        """Return the last pass, cut off at the first difference to the model's new choices."""
        last, pinned = self._last, fixed.pinned
        wanted = [*pinned, *argmax[len(pinned) :]]
        for position in fixed.held.keys() - set(fixed.edits):
            wanted[position] = fixed.held[position]
        if self._age != self._masks.age:
            return CanvasPass(fixed, wanted)
        return last.resumed(fixed, wanted)

    def _follow(self, scores: Scores, here: CanvasPass) -> None:
        """Extend the guess to the stop, the canvas's end, or the second refusal, and from there to
        the last token that stands, or the stop before it.

        Forced tokens right after a repair are not suspect.
        """
        going_on = True
        while going_on:
            if self._run(here):
                return
            position = len(here.guess)
            if self._matcher.ended or position == len(here.wanted):
                return
            here.forced = here.forced or self._spelled(here.guess, self._matcher.forced())
            if here.repair is not None and here.suspect is None and not here.forced:
                here.suspect = position
            going_on = self._advance(scores, here)
        tail = here.reached[: self._matcher.accept_all(here.reached)]
        here.guess += tail
        self._accepted += tail

    def _run(self, here: CanvasPass) -> bool:
        """Follow the model's choices as long as masks are known: a fast path of `_advance`. Returns
        whether the grammar refuses a choice after which nothing is read."""
        state, wanted, compiled = self._matcher.state, here.wanted, self._compiled
        trusted, forced, begin = here.suspect is None, here.forced, len(here.guess)
        pinned, held = len(here.fixed.pinned), here.fixed.held
        if state is None or compiled.steps.may_run_out or (trusted and here.repair is not None):
            return False
        left = self._left(0) if self._vocabulary.spells_every_byte else -1
        reached, reached_end, refused = here.reached, begin + len(here.reached), False
        halts = here.fixed.banned.keys() | self._squeezes.ends
        end = min((position for position in halts if position >= begin), default=len(wanted))
        keys, pieces, moves = self._matcher.keys, self._vocabulary.pieces, compiled.moves
        states, keys_after = list[State](), list[Keys | None]()
        guess, masks = here.guess, here.masks
        for position, token in enumerate(wanted[begin:end], begin):
            if position < reached_end and token != reached[position - begin]:
                break
            move = moves.get((state, token)) or compiled.move(state, token)
            if move is None:
                refused = not trusted and token not in compiled.stops.all
                break
            onward, cost, mask = move
            read = None
            if keys is not None:
                read, cost = keys.after(pieces[token]), most_tokens(cost)
                if read is None:
                    break
            if cost >= left - position:
                break
            if not forced and state.forced != "":
                forced = self._spelled(guess, compiled.parser.forced(state))
            is_forced = bool(forced) and forced[0] == token
            if trusted:
                if is_forced or position < pinned or position in held:
                    mask = ~token
                elif mask is None or keys is not None:
                    mask = compiled.known_mask(state, keys)
                if mask is None:
                    break
                masks.append(mask)
            if is_forced:
                here.forced_at[position] = forced
                forced = forced[1:]
            elif forced:
                forced = []
            guess.append(token)
            state, keys = onward, read
            states.append(onward)
            keys_after.append(read)
        here.forced, here.reached = forced, reached[len(states) :]
        followed = guess[begin:]
        self._matcher.follow(followed, states, keys_after)
        self._accepted += followed
        return refused and here.ends_at_refusal and not here.reached and not here.standing

    def _advance(self, scores: Scores, here: CanvasPass) -> bool:
        """Extend the guess by one token. Returns False at a refusal after which nothing is read."""
        position, forced = len(here.guess), here.forced
        taken = self._take(scores, here)
        if taken is None:
            return False
        token, mask = taken
        if here.suspect is None:
            here.masks.append(mask)
        is_forced = forced[:1] == [token]
        if is_forced:
            here.forced_at[position] = forced
        here.forced = forced[1:] if is_forced else []
        here.guess.append(token)
        self._accepted.append(token)
        return True

    def _take(self, scores: Scores, here: CanvasPass) -> tuple[int, Mask] | None:
        """Accept the first proposal that the grammar allows and that fits the budget.

        None: the model's choice at a suspect position is refused, and the next pass predicts it.
        """
        matcher, position = self._matcher, len(here.guess)
        refused = set(here.fixed.banned.get(position, ()))
        squeezed = list[int]()
        for token, mask in self._proposals(scores, here, refused):
            if matcher.accept(token):
                fits = here.sure_of(token) or matcher.closes_within(self._left(position))
                over_budget = False
                if fits and here.reached:
                    fits, over_budget = self._reach(here, token)
                if fits:
                    if squeezed:
                        self._squeezes.note_replacement(position, squeezed[0], token)
                    return token, mask
                matcher.rollback(1)
                if over_budget and not here.ends_at_refusal:
                    self._squeezes.note(here.guess, token)
                    squeezed.append(token)
                elif self._note_squeeze(here, token):
                    squeezed.append(token)
            refused.add(token)
        if here.ends_at_refusal:
            return None
        text = self._vocabulary.text(self._recent(here.guess))
        raise DeadEndError(f"no token is allowed after {text!r}")

    def _reach(self, here: CanvasPass, token: int) -> tuple[bool, bool]:
        """Return whether the tokens that stand can be reached after `token`, which the matcher has
        accepted, and whether a larger budget would reach them."""
        begin = len(here.guess) + 1
        own = here.wanted[begin : begin + len(here.reached) - 1]
        standing = [here.stands(begin + i) for i in range(len(own))]
        left = self._left(begin - 1)
        reached, over_budget = self._witness.reach(token, own, standing, here.reached, left)
        if reached is not None:
            here.reached = reached
        return reached is not None, over_budget

    def _note_squeeze(self, here: CanvasPass, token: int) -> bool:
        """Note a token that the budget alone refuses, where the guess may be committed as it is.
        Returns whether it was noted."""
        matcher, left = self._matcher, self._left(len(here.guess))
        squeezes = not here.ends_at_refusal and matcher.squeezes(token, left)
        if squeezes:
            self._squeezes.note(here.guess, token, matcher.complete)
        return squeezes

    def _refuses(self, before: Sequence[int], token: int) -> bool:
        """Whether the budget alone refuses `token` after the canvas's tokens `before`."""
        self._seek(before)
        return self._matcher.squeezes(token, self._left(len(before)))

    def _left(self, position: int) -> int:
        """Return the tokens that the budget leaves after `position`, the stop excluded."""
        return self._budget - len(self._committed) - position - 2

    def _proposals(
        self, scores: Scores, here: CanvasPass, refused: set[int]
    ) -> Iterator[tuple[int, Mask]]:
        """Yield candidates for the next token, with masks: the model's own choice comes first."""
        position, forced = len(here.guess), here.forced
        wanted = here.wanted[position]
        if here.stands(position):
            yield wanted, ~wanted
            return
        if position in here.fixed.edits:  # a refused edit leaves the token, and repairs nothing
            if wanted not in refused:
                yield wanted, ~wanted
            yield here.reached[0], ~here.reached[0]
            return
        if wanted not in refused and (not self._ends(here) or wanted in self._compiled.stops.all):
            yield wanted, ~wanted if forced[:1] == [wanted] else self._mask(here, refused)
        if here.ends_at_refusal:
            return
        is_repair = here.repair is None
        if is_repair:
            here.repair = position
        if self._ends(here):
            pass
        elif forced:
            if is_repair:
                here.mass = self._candidates(scores, here, ~forced[0]).mass
            yield forced[0], ~forced[0]
        elif is_repair:
            mask = self._mask(here, refused)
            candidates = self._candidates(scores, here, mask)
            here.mass = candidates.mass
            for rank, (token, _) in enumerate(candidates.ranked):
                if not self._ends(here):
                    yield token, self._mask(here, refused) if rank else mask
        elif here.suspect is not None:
            yield scores.best(position, self._masks.words(self._allowed(refused))), 0
        if self._ends(here):
            yield self._stop(scores, here)
        if here.reached:
            yield here.reached[0], self._mask(here, refused - {here.reached[0]})
        elif not self._ends(here):
            yield self._completing(scores, here)

    def _ends(self, here: CanvasPass) -> bool:
        """Whether the text ends here, since the budget refused a token after this complete text."""
        return self._squeezes.ends_after(here.guess)

    def _mask(self, here: CanvasPass, refused: Collection[int]) -> Mask:
        """Return the allowed tokens without `refused`. Suspect positions need no mask: it is 0."""
        return self._allowed(refused) if here.suspect is None else 0

    def _allowed(self, refused: Collection[int]) -> Mask:
        return self._masks.changed(self._matcher.mask(), fewer=refused)

    def _candidates(self, scores: Scores, here: CanvasPass, mask: Mask) -> Candidates:
        """Return candidates for the repair, and note the mask that they were queried under."""
        here.refused_by = mask if mask >= 0 else self._masks.changed(None, [~mask])
        return scores.candidates(len(here.guess), self._masks.words(mask), _TRIED)

    def _completing(self, scores: Scores, here: CanvasPass) -> tuple[int, Mask]:
        """Return the next token of a completion that fits, or the stop after it."""
        completion = self._matcher.completing(self._left(len(here.guess)) + 1)
        if completion is None:
            raise DeadEndError("the grammar goes on, but no token of the vocabulary does")
        token = completion.next
        return self._stop(scores, here) if token is None else (token, ~token)

    def _stop(self, scores: Scores, here: CanvasPass) -> tuple[int, Mask]:
        """Return the likeliest stop."""
        stops = self._compiled.stops.mask
        return scores.best(len(here.guess), self._masks.words(stops)), stops

    def _spelled(self, guess: list[int], text: str) -> list[int]:
        """Return the tokens of a forced text after `guess`, in the tokenizer's spelling."""
        return self._vocabulary.canonical(self._recent(guess), text) if text else []

    def _recent(self, tokens: Sequence[int]) -> list[int]:
        """Return the last tokens of the text, where `tokens` come after the committed ones."""
        return [*self._committed[-CONTEXT:], *tokens[-CONTEXT:]][-CONTEXT:]
