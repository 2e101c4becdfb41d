"""Products of patterns in pieces with an automaton: the texts that both accept, in pieces as well.

Each piece is read from one state of the automaton to others, and what follows it from there on is a
rule for each of these states. Knows no assertions.
"""

from collections.abc import Callable, Iterable

from dlm.grammar.regex.automaton import Automaton, TooLargeError, explored, grouped, minimal
from dlm.grammar.regex.build import determinized
from dlm.grammar.regex.characters import Ranges, alphabet
from dlm.grammar.regex.lengths import any_of_length
from dlm.grammar.regex.nodes import (
    EMPTY,
    NOTHING,
    Alternation,
    Concatenation,
    Node,
    Repetition,
    Terminal,
    alternation_of,
    concatenation,
)

_MOST_PIECES = 1_000  # of one product
_MOST_ROUNDS = 64  # of a repetition that is no piece itself
MOST_STEPS = 400_000  # edges of the automata that are explored: about a second

Follow = Callable[[int], Node]  # what comes after a state of the automaton


def product(
    node: Node, automaton: Automaton, add: Callable[[Node], Node], count: Callable[[int], None]
) -> Node:
    """Return the texts of a pattern that `automaton` accepts; `NOTHING` if there are none.

    `add` makes a rule of a node and returns the reference to it. `count` counts edges that are
    explored, at most `MOST_STEPS`. Raises `TooLargeError`.
    """
    return _Product(automaton, add, count).write(node)


class _Product:
    def __init__(
        self, automaton: Automaton, add: Callable[[Node], Node], count: Callable[[int], None]
    ):
        self._automaton, self._add, self._report = automaton, add, count
        self._pieces_left, self._steps = _MOST_PIECES, MOST_STEPS
        self._pairs: dict[tuple[Node, int], _Pairs] = {}

    def write(self, node: Node) -> Node:
        final = self._automaton.final
        return self._read(node, 0, lambda state: EMPTY if state in final else NOTHING)

    def _before(self, node: Node, follow: Follow) -> Follow:
        """Return what comes after a state if `node` and then `follow` do."""
        nodes: dict[int, Node] = {}

        def begin(state: int) -> Node:
            if state not in nodes:
                read = self._read(node, state, follow)
                nodes[state] = read if read == NOTHING else self._add(read)
            return nodes[state]

        return begin

    def _read(self, node: Node, state: int, follow: Follow) -> Node:
        """Return the texts of `node` from `state` on, and of what follows each."""
        match node:
            case Concatenation(parts):
                for part in reversed(parts):
                    follow = self._before(part, follow)
                return follow(state)
            case Alternation(options):
                return alternation_of([self._read(option, state, follow) for option in options])
            case Repetition(part, low, high):
                return self._repeated(part, low, high, follow)(state)
        return self._piece(node, state, follow)

    def _repeated(self, part: Node, low: int, high: int | None, follow: Follow) -> Follow:
        if high is None or high > _MOST_ROUNDS:
            raise TooLargeError(f"it repeats a part over {_MOST_ROUNDS} times")
        after = follow
        for number in range(high, 0, -1):
            rounds = self._before(part, after)
            after = rounds if number <= low else _either(rounds, follow)
        return after

    def _count(self, steps: int) -> None:
        self._report(steps)
        self._steps -= steps
        if self._steps < 0:
            raise TooLargeError(f"the other conditions take over {MOST_STEPS:,} steps")

    def _piece(self, node: Node, state: int, follow: Follow) -> Node:
        terminal = node if isinstance(node, Terminal) else Terminal(determinized(node))
        key = terminal, state
        if key not in self._pairs:
            self._pairs[key] = _Pairs(terminal.automaton, self._automaton, state, self._count)
        pairs = self._pairs[key]
        ends: dict[Node, set[int]] = {}
        for end in pairs.ends:
            if (then := follow(end)) != NOTHING:
                ends.setdefault(then, set()).add(end)
        self._pieces_left -= len(ends)
        if self._pieces_left < 0:
            raise TooLargeError(f"with the other conditions it has over {_MOST_PIECES:,} pieces")
        options: list[Node] = []
        for then, states in ends.items():
            texts = pairs.leading_to(states)
            if any_of_length(texts, terminal.low, terminal.high):
                options.append(concatenation(Terminal(texts, terminal.low, terminal.high), then))
        return alternation_of(options)


def _either(follow: Follow, other: Follow) -> Follow:
    return lambda state: alternation_of([follow(state), other(state)])


class _Pairs:
    """Texts of one automaton that another reads from a state of its own on."""

    def __init__(
        self, automaton: Automaton, other: Automaton, state: int, count: Callable[[int], None]
    ):
        """`count` counts edges. Raises `TooLargeError`."""
        self._count = count
        count(sum(map(len, other.edges)) // 8)
        rows = [[grouped(edges) for edges in states.edges] for states in (automaton, other)]
        ranges = (r for groups in rows for group in groups for r in group.values())
        self._classes, members = alphabet(ranges)
        self._rows = [_by_class(groups, members) for groups in rows]
        self._final, self._start = automaton.final, (0, state)
        self.ends: dict[int, None] = {}  # states of the other where a text may end
        self._explore(self._note)

    def leading_to(self, states: set[int]) -> Automaton:
        """Return the texts after which the other automaton is in one of `states`."""
        return self._explore(lambda pair: pair[0] in self._final and pair[1] in states)

    def _note(self, pair: tuple[int, int]) -> bool:
        if pair[0] in self._final:
            self.ends[pair[1]] = None
        return pair[0] in self._final

    def _explore(self, accepts: Callable[[tuple[int, int]], bool]) -> Automaton:
        self._explored = 0
        table = explored(self._start, self._following, accepts, self._classes)
        self._count(self._explored)
        return minimal(table)

    def _following(self, pair: tuple[int, int]) -> Iterable[tuple[int, tuple[int, int]]]:
        row, other = (rows[state] for rows, state in zip(self._rows, pair, strict=True))
        self._explored += 1 + len(row)
        return [(letter, (to, other[letter])) for letter, to in row.items() if letter in other]


def _by_class(
    groups: list[dict[int, Ranges]], members: dict[Ranges, list[int]]
) -> list[dict[int, int]]:
    return [
        {letter: to for to, ranges in group.items() for letter in members[ranges]}
        for group in groups
    ]
