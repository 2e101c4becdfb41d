"""Construction of a deterministic automaton from the nodes of a pattern.

Glushkov's construction gives each character of a pattern a position, and each position the set of
positions that may follow it. The states of the automaton are sets of positions, as the bits of an
integer (subset construction). Patterns with assertions are left to `Lookaround`.
"""

from collections.abc import Iterable

from dlm.grammar.limits import spend
from dlm.grammar.regex.automaton import (
    MOST_STATES,
    Automaton,
    TooLargeError,
    explored,
    grouped,
    minimal,
)
from dlm.grammar.regex.characters import EVERY, Ranges, alphabet, bits
from dlm.grammar.regex.dominance import Dominance
from dlm.grammar.regex.lookaround import FollowedBy, Lookaround, PrecededBy
from dlm.grammar.regex.nodes import (
    Alternation,
    Characters,
    Concatenation,
    Literal,
    Lookahead,
    Lookbehind,
    Node,
    Repetition,
    Spelling,
    Terminal,
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

        reduced = Dominance(self._follow, self._ends, masks, self._copies).reduced
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
