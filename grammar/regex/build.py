"""From the nodes of a pattern to a deterministic automaton.

Glushkov's construction gives each character of a pattern a position, and each position those that
may follow it; sets of positions, as the bits of an integer, are the states (subset construction).
Assertions are positions that read nothing: patterns with them are `lookaround.py`'s.

Determinises patterns with assertions: what looks ahead becomes an obligation on the way.

A state is the states of all lookbehinds, each of which reads the text from its start, and a set of
items. An item is a position and the lookaheads that have begun on the way to it and are not
decided yet, each a set of items of its own. All of them read on with every character.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from dlm.grammar.regex.algebra import (
    MOST_STATES,
    TooLargeError,
    TransitionMachine,
    Transitions,
    TransitionTable,
    explored,
    grouped,
    lengths,
    minimal,
    product,
    words,
)
from dlm.grammar.regex.nodes import (
    EVERY,
    Alternation,
    Characters,
    Concatenation,
    Literal,
    Lookahead,
    Lookbehind,
    Node,
    Ranges,
    Repetition,
    Spelling,
    Terminal,
    alphabet,
    bits,
    spend,
)

_MOST_LOOKAROUND_STEPS = 150_000  # about half a second

Obligations = frozenset[Any]  # positions of lookaheads, each with its items
Position = tuple[int, Obligations]
Positions = frozenset[Position]
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

    machine: TransitionMachine
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
        self._closures: dict[tuple[Position, Behind], tuple[list[Position], list[Obligations]]] = {}
        self._moves: dict[tuple[Positions, Behind, int], Positions] = {}
        self._steps = 0

    def determinised(self) -> TransitionTable:
        start = (0,) * len(self._before), frozenset({(0, _NONE)})
        return explored(start, self._next, lambda state: self._accepts(*state), self._classes)

    def _next(
        self, state: tuple[Behind, Positions]
    ) -> Iterable[tuple[int, tuple[Behind, Positions]]]:
        behind, items = state
        for letter in range(len(self._classes)):
            if moved := self._move(items, behind, letter):
                reads = zip(self._before, behind, strict=True)
                after = (rows[s].get(letter, -1) if s >= 0 else -1 for rows, s in reads)
                yield letter, (tuple(after), moved)

    def _closure(self, item: Position, behind: Behind) -> tuple[list[Position], list[Obligations]]:
        """The positions that may read the next character; and of ends here, the obligations."""
        if known := self._closures.get((item, behind)):
            return known
        reads: list[Position] = []
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

    def _move(self, items: Positions, behind: Behind, letter: int) -> Positions:
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

    def _accepts(self, behind: Behind, items: Positions) -> bool:
        """The text may end here."""
        return any(
            all(self._accepts(behind, more) == self._assertions[p].wanted for p, more in left)
            for item in items
            for left in self._closure(item, behind)[1]
        )

    def _work(self) -> None:
        self._steps += 1
        spend(1)
        if self._steps > _MOST_LOOKAROUND_STEPS:
            raise TooLargeError(
                f"its assertions take over {_MOST_LOOKAROUND_STEPS:,} steps to work out"
            )


_MOST_POSITIONS = 4 * MOST_STATES
_MOST_STEPS = 600_000  # of putting sets of positions together: about half a second
_STEPS = 4  # that take as long as an edge
_ANY = Repetition(Characters(EVERY))
_MANY_WORDS = 16  # of an alternation: from here on they are merged first

Part = tuple[int, int, bool]  # positions it begins with, and ends with; whether it may be empty


def built(node: Node) -> TransitionMachine:
    """Raises `TooLargeError`."""
    try:
        return _Builder(node).determinised()
    except RecursionError:
        raise TooLargeError("its groups are nested too deep") from None


def positions(node: Node) -> int:
    """How many characters a pattern has, its repetitions written out."""
    return _Sizes().of(node)


class _Sizes:
    """At least 1 each: what reads nothing takes its time, too."""

    def __init__(self):
        self._known: dict[int, int] = {}

    def of(self, node: Node) -> int:
        if (known := self._known.get(id(node))) is not None:
            return known
        match node:
            case Characters():
                size = 1
            case Literal(text):
                size = len(text)
            case Concatenation(parts) | Alternation(parts):
                size = sum(map(self.of, parts))
            case Repetition(part, low, high):
                size = self.of(part) * (max(low, 1) if high is None else high)
            case Terminal(automaton, low, high, Spelling.RAW):
                size = sum(map(len, automaton.edges)) * max(low, high or 1)
            case Lookahead(part) | Lookbehind(part):
                size = self.of(part) + 3
            case _:
                raise TypeError(f"{type(node).__name__} is no part of a pattern")
        self._known[id(node)] = size = max(1, size)
        return size


class _Builder:
    def __init__(self, node: Node, steps: int = 0):
        self._steps = steps
        self._behind: dict[int, TransitionMachine] = {}  # of lookbehinds
        if positions(node) > _MOST_POSITIONS:
            raise TooLargeError(f"written out, it has over {_MOST_POSITIONS:,} characters")
        self._ranges: list[Ranges] = [()]  # by position; the first one is the start
        self._follow = [0]
        self._assertions: dict[int, Ahead | Before] = {}
        self._ends = 0
        self._begin(0, node)

    def _begin(self, start: int, node: Node) -> None:
        self._follow[start], ends, empty = self._add(node)
        self._ends |= ends | empty << start

    def determinised(self) -> TransitionMachine:
        if self._assertions:
            rest = self._ranges, self._follow, self._ends, self._assertions
            return minimal(Lookaround(*rest).determinised())
        classes, members = alphabet(self._ranges)
        masks = [0] * len(classes)  # the positions that read each class
        for position, ranges in enumerate(self._ranges):
            for letter in members[ranges]:
                masks[letter] |= 1 << position

        def follow(state: int) -> Iterable[tuple[int, int]]:
            next_ = self._followers(state)
            return [(letter, to) for letter, mask in enumerate(masks) if (to := next_ & mask)]

        return minimal(explored(1, follow, lambda state: bool(state & self._ends), classes))

    def _followers(self, state: int) -> int:
        self._work(state.bit_count())
        found = 0
        for position in bits(state):
            found |= self._follow[position]
        return found

    def _work(self, steps: int) -> None:
        self._steps += steps
        spend(steps // _STEPS)
        if self._steps > _MOST_STEPS:
            raise TooLargeError(f"its automaton takes over {_MOST_STEPS:,} steps to make")

    def _add(self, node: Node) -> Part:
        match node:
            case Characters(ranges):
                position = self._position(ranges)
                return position, position, False
            case Literal(text):
                return self._row(self._add(Characters(((ord(c), ord(c)),))) for c in text)
            case Concatenation(parts):
                return self._row(map(self._add, parts))
            case Alternation(options):
                return self._either(options)
            case Repetition(part, low, high):
                return self._repeat(part, low, high)
            case Terminal(automaton, low, high):
                machine = automaton.edges, automaton.final
                if (low, high) != (0, None):
                    machine = product(machine, lengths(low, high), bool.__and__)
                return self._join(*machine)
            case Lookahead(part, wanted):
                start = self._position(()).bit_length() - 1
                self._begin(start, Concatenation((part, _ANY)))
                return self._assertion(Ahead(start, wanted))
            case Lookbehind(part, wanted):
                return self._assertion(Before(self._machine(part), wanted))
        raise TypeError(f"{type(node).__name__} is no part of a pattern")

    def _machine(self, part: Node) -> TransitionMachine:
        """Of all texts that end with `part`: made once, however often that is repeated."""
        if id(part) not in self._behind:
            builder = _Builder(Concatenation((_ANY, part)), self._steps)
            self._behind[id(part)] = builder.determinised()
            self._steps = builder._steps
        return self._behind[id(part)]

    def _assertion(self, assertion: Ahead | Before) -> Part:
        position = self._position(())
        self._assertions[position.bit_length() - 1] = assertion
        return position, position, False

    def _position(self, ranges: Ranges) -> int:
        self._ranges.append(ranges)
        self._follow.append(0)
        return 1 << len(self._follow) - 1

    def _link(self, ends: int, begins: int) -> None:
        self._work(ends.bit_count())
        for position in bits(ends):
            self._follow[position] |= begins

    def _row(self, parts: Iterable[Part]) -> Part:
        begins, ends, empty = 0, 0, True
        for first, last, passable in parts:
            self._link(ends, first)
            begins |= first if empty else 0
            ends = last | (ends if passable else 0)
            empty &= passable
        return begins, ends, empty

    def _either(self, options: tuple[Node, ...]) -> Part:
        texts = [option.text for option in options if isinstance(option, Literal)]
        if len(texts) >= _MANY_WORDS:
            parts = [self._join(*words(texts))]
            parts += (self._add(o) for o in options if not isinstance(o, Literal))
        else:
            parts = [self._add(option) for option in options]
        begins, ends, empty = 0, 0, False
        for first, last, passable in parts:
            begins, ends, empty = begins | first, ends | last, empty or passable
        return begins, ends, empty

    def _repeat(self, node: Node, low: int, high: int | None) -> Part:
        """Each time begins behind the one before: x{0,3} is (x(xx?)?)?."""
        begins = ends = previous = again = 0
        empty = not low
        for number in range(1, 1 + (max(low, 1) if high is None else high)):
            first, last, passable = self._add(node)
            begins = begins or first
            empty = empty or passable
            self._link(previous, first)
            previous = last
            if empty or number >= low:
                ends |= last
            if number == low or not low:
                again = first
        if high is None:
            self._link(previous, again)
        return begins, ends, empty

    def _join(self, edges: Transitions, final: frozenset[int]) -> Part:
        """Add what is deterministic by now: a position for each way from a state to another."""
        ways = [
            [(to, self._position(ranges)) for to, ranges in grouped(state).items()]
            for state in edges
        ]
        leaving = [sum(position for _, position in way) for way in ways]
        ends = 0
        for to, position in (pair for way in ways for pair in way):
            self._follow[position.bit_length() - 1] = leaving[to]
            ends |= position if to in final else 0
        return leaving[0], ends, 0 in final
