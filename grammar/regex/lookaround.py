"""Determinises patterns with assertions: what looks ahead becomes an obligation on the way.

A state is the states of all lookbehinds, each of which reads the text from its start, and a set of
items. An item is a position and the lookaheads that have begun on the way to it and are not
decided yet, each a set of items of its own. All of them read on with every character.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from dlm.grammar.regex.algebra import grouped
from dlm.grammar.regex.effort import spend
from dlm.grammar.regex.ranges import EVERY, Ranges, alphabet, bits
from dlm.grammar.regex.table import Machine, Table, TooLargeError, explored

_MOST_STEPS = 150_000  # about half a second

Obligations = frozenset[Any]  # positions of lookaheads, each with its items
Item = tuple[int, Obligations]
Items = frozenset[Item]
Behind = tuple[int, ...]
_NONE: Obligations = frozenset()


@dataclass(frozen=True, slots=True)
class Ahead:
    """Decided by what the positions behind `start` make of the text that follows."""

    start: int
    wanted: bool


@dataclass(frozen=True, slots=True)
class Before:
    """Decided by an automaton of all the text so far."""

    machine: Machine
    wanted: bool


class Lookaround:
    """Positions as Glushkov's construction has them; some are assertions and read nothing.

    `ends` are the last positions of the pattern and of its lookaheads; these end with any text.
    """

    def __init__(
        self,
        ranges: list[Ranges],
        follow: list[int],
        ends: int,
        assertions: dict[int, Ahead | Before],
    ):
        self._follow, self._ends, self._assertions = follow, ends, assertions
        befores = [a for a in assertions.values() if isinstance(a, Before)]
        machines = list(dict.fromkeys(before.machine for before in befores))
        rows = [[grouped(state) for state in edges] for edges, _ in machines]
        self._classes, members = alphabet(
            [*ranges, *(r for table in rows for row in table for r in row.values())]
        )
        self._letters = [frozenset(members[r]) for r in ranges]
        self._before = [
            [{c: to for to, r in row.items() for c in members[r]} for row in table]
            for table in rows
        ]
        self._machines = {machine: number for number, machine in enumerate(machines)}
        self._open = {
            p
            for p, r in enumerate(ranges)
            if r == EVERY and (follow[p] & ends) >> p & 1  # from here on, any text fits
        }
        self._closures: dict[tuple[Item, Behind], tuple[list[Item], list[Obligations]]] = {}
        self._moves: dict[tuple[Items, Behind, int], Items] = {}
        self._steps = 0

    def determinised(self) -> Table:
        start = (0,) * len(self._before), frozenset({(0, _NONE)})
        return explored(start, self._next, lambda state: self._accepts(*state), self._classes)

    def _next(self, state: tuple[Behind, Items]) -> Iterable[tuple[int, tuple[Behind, Items]]]:
        behind, items = state
        for letter in range(len(self._classes)):
            if moved := self._move(items, behind, letter):
                reads = zip(self._before, behind, strict=True)
                after = (rows[s].get(letter, -1) if s >= 0 else -1 for rows, s in reads)
                yield letter, (tuple(after), moved)

    def _closure(self, item: Item, behind: Behind) -> tuple[list[Item], list[Obligations]]:
        """The positions that may read the next character; and of ends here, the obligations."""
        if known := self._closures.get((item, behind)):
            return known
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
                    case Before(machine, wanted):
                        if (behind[self._machines[machine]] in machine[1]) != wanted:
                            continue
                        reached = next_, obligations
                    case Ahead(start):
                        begun = next_, frozenset({(start, _NONE)})
                        reached = next_, obligations | {begun}
                if reached not in seen:
                    seen.add(reached)
                    work.append(reached)
        self._closures[item, behind] = reads, ends
        return reads, ends

    def _move(self, items: Items, behind: Behind, letter: int) -> Items:
        key = items, behind, letter
        if (known := self._moves.get(key)) is not None:
            return known
        found: dict[int, set[Obligations]] = {}
        for item in items:
            for position, obligations in self._closure(item, behind)[0]:
                self._work()
                if letter in self._letters[position]:
                    left = self._kept(obligations, behind, letter)
                    if left is not None:
                        found.setdefault(position, set()).add(left)
        if certain := next((p for p in self._open if _NONE in found.get(p, ())), None):
            moved = frozenset({(certain, _NONE)})
        else:  # of two with one position, one may ask for more than the other: it is not needed
            moved = frozenset(
                (position, left)
                for position, all_ in found.items()
                for left in all_
                if len(all_) == 1 or not any(fewer < left for fewer in all_)
            )
        self._moves[key] = moved
        return moved

    def _kept(self, obligations: Obligations, behind: Behind, letter: int) -> Obligations | None:
        """What is still open behind a character; None if something has failed."""
        kept = []
        for position, items in obligations:
            moved = self._move(items, behind, letter)
            fits = any(
                self._ends >> p & 1 and not more for p, more in moved
            )  # what follows is free
            if moved and not fits:
                kept.append((position, moved))
            elif fits != self._assertions[position].wanted:
                return None
        return frozenset(kept)

    def _accepts(self, behind: Behind, items: Items) -> bool:
        """The text may end here."""
        return any(
            all(self._accepts(behind, more) == self._assertions[p].wanted for p, more in left)
            for item in items
            for left in self._closure(item, behind)[1]
        )

    def _work(self) -> None:
        self._steps += 1
        spend(1)
        if self._steps > _MOST_STEPS:
            raise TooLargeError(f"its assertions take over {_MOST_STEPS:,} steps to work out")
