"""Deterministic automata of patterns with assertions, which are positions that read nothing.

A state consists of the states of all lookbehinds, each of which reads the text from its start, and
a set of items. An item is a position with its obligations: the lookaheads that began before it and
are not decided yet, each with a set of items of its own. Every character moves all of them.
"""

from collections.abc import Iterable
from typing import Any

from dlm.grammar.immutable import immutable
from dlm.grammar.limits import spend
from dlm.grammar.regex.automaton import (
    Automaton,
    TooLargeError,
    TransitionTable,
    explored,
    grouped,
)
from dlm.grammar.regex.characters import EVERY, Ranges, alphabet, bits

_MOST_LOOKAROUND_STEPS = 150_000  # about half a second
Obligations = frozenset[Any]  # pairs of a lookahead's position and its items
Item = tuple[int, Obligations]
Items = frozenset[Item]
LookbehindStates = tuple[int, ...]
_NONE: Obligations = frozenset()


@immutable()
class FollowedBy:
    """A lookahead: the text that follows matches from the position `start` on, or must not."""

    start: int
    positive: bool


@immutable()
class PrecededBy:
    """A lookbehind: `automaton` accepts the text so far, or must not."""

    automaton: Automaton
    positive: bool


class Lookaround:
    """Subset construction for a pattern with assertions.

    `ranges` and `follow` are those of Glushkov's construction, by position. `ends` are the last
    positions of the pattern and of its lookaheads, which end with any text.
    """

    def __init__(
        self,
        ranges: list[Ranges],
        follow: list[int],
        ends: int,
        assertions: dict[int, FollowedBy | PrecededBy],
    ):
        self._follow, self._ends, self._assertions = follow, ends, assertions
        preceded = [a for a in assertions.values() if isinstance(a, PrecededBy)]
        automata = list(dict.fromkeys(assertion.automaton for assertion in preceded))
        rows = [[grouped(state) for state in automaton.edges] for automaton in automata]
        self._classes, members = alphabet(
            [*ranges, *(r for table in rows for row in table for r in row.values())]
        )
        self._letters = [frozenset(members[r]) for r in ranges]
        self._rows = [
            [{c: to for to, r in row.items() for c in members[r]} for row in table]
            for table in rows
        ]
        self._numbers = {automaton: number for number, automaton in enumerate(automata)}
        self._open = {
            p
            for p, r in enumerate(ranges)
            if r == EVERY and (follow[p] & ends) >> p & 1  # any further text matches
        }
        self._closures: dict[
            tuple[Item, LookbehindStates], tuple[list[Item], list[Obligations]]
        ] = {}
        self._moves: dict[tuple[Items, LookbehindStates, int], Items] = {}
        self._steps = 0

    def determinized(self) -> TransitionTable:
        """Return the deterministic automaton. Raises `TooLargeError`."""
        start = (0,) * len(self._rows), frozenset({(0, _NONE)})
        return explored(start, self._next, lambda state: self._accepts(*state), self._classes)

    def _next(
        self, state: tuple[LookbehindStates, Items]
    ) -> Iterable[tuple[int, tuple[LookbehindStates, Items]]]:
        past, items = state
        for letter in range(len(self._classes)):
            if moved := self._move(items, past, letter):
                reads = zip(self._rows, past, strict=True)
                after = (rows[s].get(letter, -1) if s >= 0 else -1 for rows, s in reads)
                yield letter, (tuple(after), moved)

    def _closure(self, item: Item, past: LookbehindStates) -> tuple[list[Item], list[Obligations]]:
        """Return the items that may read the next character, and the obligations of all ends."""
        if closure := self._closures.get((item, past)):
            return closure
        reads: list[Item] = []
        ends: list[Obligations] = []
        seen, work = {item}, [item]
        while work:
            position, obligations = work.pop()
            self._work()
            if self._ends >> position & 1:
                ends.append(obligations)
            for next_ in bits(self._follow[position]):
                match self._assertions.get(next_):
                    case None:
                        reads.append((next_, obligations))
                        continue
                    case PrecededBy(automaton, positive):
                        if (past[self._numbers[automaton]] in automaton.final) != positive:
                            continue
                        reached = next_, obligations
                    case FollowedBy(start):
                        obligation = next_, frozenset({(start, _NONE)})
                        reached = next_, obligations | {obligation}
                if reached not in seen:
                    seen.add(reached)
                    work.append(reached)
        self._closures[item, past] = reads, ends
        return reads, ends

    def _move(self, items: Items, past: LookbehindStates, letter: int) -> Items:
        key = items, past, letter
        if (moved := self._moves.get(key)) is not None:
            return moved
        by_position: dict[int, set[Obligations]] = {}
        for item in items:
            for position, obligations in self._closure(item, past)[0]:
                self._work()
                if letter in self._letters[position]:
                    undecided = self._kept(obligations, past, letter)
                    if undecided is not None:
                        by_position.setdefault(position, set()).add(undecided)
        if certain := next((p for p in self._open if _NONE in by_position.get(p, ())), None):
            moved = frozenset({(certain, _NONE)})
        else:  # drop an item if another with the same position has fewer obligations
            moved = frozenset(
                (position, undecided)
                for position, all_ in by_position.items()
                for undecided in all_
                if len(all_) == 1 or not any(fewer < undecided for fewer in all_)
            )
        self._moves[key] = moved
        return moved

    def _kept(
        self, obligations: Obligations, past: LookbehindStates, letter: int
    ) -> Obligations | None:
        """Return the undecided obligations after the character `letter`; None if one has failed."""
        kept = []
        for position, items in obligations:
            moved = self._move(items, past, letter)
            # A lookahead that has matched is decided, whatever follows.
            fits = any(self._ends >> p & 1 and not items_left for p, items_left in moved)
            if moved and not fits:
                kept.append((position, moved))
            elif fits != self._assertions[position].positive:
                return None
        return frozenset(kept)

    def _accepts(self, past: LookbehindStates, items: Items) -> bool:
        """Whether the text may end in this state."""
        return any(
            all(
                self._accepts(past, obliged) == self._assertions[p].positive
                for p, obliged in obligations
            )
            for item in items
            for obligations in self._closure(item, past)[1]
        )

    def _work(self) -> None:
        self._steps += 1
        spend(1)
        if self._steps > _MOST_LOOKAROUND_STEPS:
            raise TooLargeError(
                f"its assertions take over {_MOST_LOOKAROUND_STEPS:,} steps to work out"
            )
