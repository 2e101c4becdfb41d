"""Construction of a deterministic automaton from the nodes of a pattern.

Glushkov's construction gives each character of a pattern a position, and each position the set of
positions that may follow it. The states of the automaton are sets of positions, as the bits of an
integer (subset construction).

`Lookaround` determinizes patterns with assertions, which are positions that read nothing. Its state
consists of the states of all lookbehinds, each of which reads the text from its start, and a set of
items. An item is a position with its obligations: the lookaheads that began before it and are not
decided yet, each with a set of items of its own. Every character moves all of them.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from dlm.grammar.limits import spend
from dlm.grammar.regex.automaton import (
    MOST_STATES,
    Automaton,
    TooLargeError,
    TransitionTable,
    explored,
    grouped,
    minimal,
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
)

_MOST_LOOKAROUND_STEPS = 150_000  # about half a second

Obligations = frozenset[Any]  # pairs of a lookahead's position and its items
Item = tuple[int, Obligations]
Items = frozenset[Item]
LookbehindStates = tuple[int, ...]
_NONE: Obligations = frozenset()


@dataclass(frozen=True, slots=True)
class FollowedBy:
    """A lookahead: the text that follows matches from the position `start` on, or must not."""

    start: int
    positive: bool


@dataclass(frozen=True, slots=True)
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


MOST_POSITIONS = 4 * MOST_STATES
_MOST_STEPS = 600_000  # of merging sets of positions: about half a second
_STEPS = 4  # such steps take as long as one edge
_ANY = Repetition(Characters(EVERY))
_MANY_WORDS = 16  # an alternation of as many words is made deterministic first

Part = tuple[int, int, bool]  # first positions, last positions, whether the part may be empty


def determinized(node: Node) -> Automaton:
    """Return the automaton of a pattern. The bounds of its terminals become states.

    Raises `TooLargeError`.
    """
    try:
        return _Builder(node).determinized()
    except RecursionError:
        raise TooLargeError("its groups are nested too deeply") from None


def positions(node: Node) -> int:
    """Return how many characters a pattern has if its repetitions are written out."""
    sizes: dict[int, int] = {}  # by id()

    def size_of(node: Node) -> int:
        if (size := sizes.get(id(node))) is not None:
            return size
        match node:
            case Characters():
                size = 1
            case Literal(text):
                size = len(text)
            case Concatenation(parts) | Alternation(parts):
                size = sum(map(size_of, parts))
            case Repetition(part, low, high):
                size = size_of(part) * (max(low, 1) if high is None else high)
            case Terminal(automaton, low, high, Spelling.RAW):
                size = sum(map(len, automaton.edges)) * max(low, high or 1)
            case Lookahead(part) | Lookbehind(part):
                size = size_of(part) + 3
            case _:
                raise TypeError(f"{type(node).__name__} is no part of a pattern")
        sizes[id(node)] = size = max(1, size)  # assertions take time, too
        return size

    return size_of(node)


_MOST_CHAINS = 64  # positions of counted parts whose copies are compared


class _Dominance:
    """Removal of positions whose further texts another position of the same state accepts, too.

    Without it, a count over characters that also follow it multiplies the states. A copy of a
    counted part is as good as any later one. A final position that reads itself again is as good as
    one from which only the same characters can be read. Other cases are not looked for.
    """

    def __init__(
        self,
        follow: list[int],
        ends: int,
        letters: list[int],
        copies: list[tuple[int, int, int]],
    ):
        """`letters` are the positions that read each class of characters.

        `copies` are counted parts after whose copies nothing more is needed: the first position,
        the positions in each copy, and the number of copies.
        """
        chains = sorted(
            (-number, start + offset, size)
            for start, size, number in copies
            for offset in range(min(size, _MOST_CHAINS))
        )
        self._chains = [
            sum(1 << start + copy * size for copy in range(-number))
            for number, start, size in chains[:_MOST_CHAINS]
        ]
        self._chained = 0
        for chain in self._chains:
            self._chained |= chain
        self._free = self._free_positions(follow, ends, letters)

    def reduced(self, state: int) -> int:
        """Return the positions of `state` without those that others make superfluous."""
        for position, superfluous in self._free:
            if state & position:
                state &= ~superfluous
        several = state & self._chained
        if several & (several - 1):
            for chain in self._chains:
                if (copies := state & chain) & (copies - 1):
                    state ^= copies ^ (copies & -copies)
        return state

    @staticmethod
    def _free_positions(follow: list[int], ends: int, letters: list[int]) -> list[tuple[int, int]]:
        """Return final positions that read themselves again, each with those it replaces."""
        loops = [p for p in bits(ends) if follow[p] >> p & 1][:_MOST_CHAINS]
        replaced: list[tuple[int, int]] = []
        for loop in loops:
            own = sum(1 << p for p in loops if p < loop)  # of two that are equal, the first stays
            others = 0  # positions that read a character that `loop` does not read
            for mask in letters:
                others |= 0 if mask >> loop & 1 else mask
            superfluous = ~_reaching(follow, others) & (1 << len(follow)) - 1
            replaced.append((1 << loop, superfluous & ~own & ~(1 << loop)))
        return replaced


def _reaching(follow: list[int], targets: int) -> int:
    """Return the positions from which one of `targets` may follow, at once or later."""
    reaching = 0
    while True:
        before, goals = reaching, targets | reaching
        for position in reversed(range(len(follow))):
            if follow[position] & goals:
                reaching |= 1 << position
                goals |= 1 << position
        if reaching == before:
            return reaching


class _Builder:
    def __init__(self, node: Node, steps: int = 0):
        self._steps = steps
        self._lookbehinds: dict[int, Automaton] = {}  # by id() of the node
        if positions(node) > MOST_POSITIONS:
            raise TooLargeError(f"written out, it has over {MOST_POSITIONS:,} characters")
        self._ranges: list[Ranges] = [()]  # by position; position 0 is the start
        self._follow = [0]
        self._assertions: dict[int, FollowedBy | PrecededBy] = {}
        self._ends = 0
        self._copies: list[tuple[int, int, int]] = []  # first position, length, how many
        self._begin(0, node)

    def _begin(self, start: int, node: Node) -> None:
        self._follow[start], ends, empty = self._add(node)
        self._ends |= ends | empty << start

    def determinized(self) -> Automaton:
        if self._assertions:
            glushkov = self._ranges, self._follow, self._ends, self._assertions
            return minimal(Lookaround(*glushkov).determinized())
        classes, members = alphabet(self._ranges)
        masks = [0] * len(classes)  # the positions that read each class
        for position, ranges in enumerate(self._ranges):
            for letter in members[ranges]:
                masks[letter] |= 1 << position

        reduced = _Dominance(self._follow, self._ends, masks, self._copies).reduced
        self._work(len(self._follow))

        def follow(state: int) -> Iterable[tuple[int, int]]:
            next_ = self._followers(state)
            return [
                (letter, reduced(to)) for letter, mask in enumerate(masks) if (to := next_ & mask)
            ]

        return minimal(explored(1, follow, lambda state: bool(state & self._ends), classes))

    def _followers(self, state: int) -> int:
        self._work(state.bit_count())
        followers = 0
        for position in bits(state):
            followers |= self._follow[position]
        return followers

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
                return self._concatenation(self._add(Characters(((ord(c), ord(c)),))) for c in text)
            case Concatenation(parts):
                return self._concatenation(map(self._add, parts))
            case Alternation(options):
                return self._alternation(options)
            case Repetition(part, low, high):
                return self._repeat(part, low, high)
            case Terminal(automaton, low, high):
                if (low, high) != (0, None):
                    automaton = automaton.intersection(Automaton.lengths(low, high))
                return self._join(automaton)
            case Lookahead(part, positive):
                start = self._position(()).bit_length() - 1
                self._begin(start, Concatenation((part, _ANY)))
                return self._assertion(FollowedBy(start, positive))
            case Lookbehind(part, positive):
                return self._assertion(PrecededBy(self._lookbehind(part), positive))
        raise TypeError(f"{type(node).__name__} is no part of a pattern")

    def _lookbehind(self, part: Node) -> Automaton:
        """Return the automaton of all texts that end with `part`, computed once."""
        if id(part) not in self._lookbehinds:
            builder = _Builder(Concatenation((_ANY, part)), self._steps)
            self._lookbehinds[id(part)] = builder.determinized()
            self._steps = builder._steps
        return self._lookbehinds[id(part)]

    def _assertion(self, assertion: FollowedBy | PrecededBy) -> Part:
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

    def _concatenation(self, parts: Iterable[Part]) -> Part:
        begins, ends, empty = 0, 0, True
        for firsts, lasts, passable in parts:
            self._link(ends, firsts)
            begins |= firsts if empty else 0
            ends = lasts | (ends if passable else 0)
            empty &= passable
        return begins, ends, empty

    def _alternation(self, options: tuple[Node, ...]) -> Part:
        texts = [option.text for option in options if isinstance(option, Literal)]
        if len(texts) >= _MANY_WORDS:
            parts = [self._join(Automaton.words(texts))]
            parts += (self._add(o) for o in options if not isinstance(o, Literal))
        else:
            parts = [self._add(option) for option in options]
        begins, ends, empty = 0, 0, False
        for firsts, lasts, passable in parts:
            begins, ends, empty = begins | firsts, ends | lasts, empty or passable
        return begins, ends, empty

    def _repeat(self, node: Node, low: int, high: int | None) -> Part:
        """Add `low` to `high` copies of `node`, each nested in the one before: `(x(xx?)?)?`."""
        begins = ends = previous = again = 0
        empty = not low
        starts = []
        for number in range(1, 1 + (max(low, 1) if high is None else high)):
            starts.append(len(self._follow))
            firsts, lasts, passable = self._add(node)
            begins = begins or firsts
            empty = empty or passable
            self._link(previous, firsts)
            previous = lasts
            if empty or number >= low:
                ends |= lasts
            if number == low or not low:
                again = firsts
        if high is None:
            self._link(previous, again)
        else:
            alike = starts[max(low - 1, 0) :]  # after any of these copies, the repetition may end
            if len(alike) > 2:
                self._copies.append((alike[0], alike[1] - alike[0], len(alike)))
        return begins, ends, empty

    def _join(self, automaton: Automaton) -> Part:
        """Add an automaton: a position for each pair of connected states."""
        rows = [
            [(to, self._position(ranges)) for to, ranges in grouped(state).items()]
            for state in automaton.edges
        ]
        leaving = [sum(position for _, position in row) for row in rows]
        ends = 0
        for to, position in (pair for row in rows for pair in row):
            self._follow[position.bit_length() - 1] = leaving[to]
            ends |= position if to in automaton.final else 0
        return leaving[0], ends, 0 in automaton.final
