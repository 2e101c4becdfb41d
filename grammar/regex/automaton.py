"""Deterministic automata of characters: minimization, products, complement and words.

The module knows no notation: `build.py` makes automata of nodes, and `patterns.py` of regexes.
"""

from bisect import bisect_right
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import ClassVar, TypeVar

from dlm.grammar.immutable import immutable
from dlm.grammar.limits import RESULTS, spend
from dlm.grammar.regex.characters import EVERY, Ranges, alphabet, inverted, union
from dlm.grammar.regex.refinement import alive_states, equivalent_blocks
from dlm.grammar.regex.words import Transition, edges_of_words

MOST_STATES = 4096
_MOST_PRODUCT = 16 * MOST_STATES
_MOST_EDGES = 300_000  # of one construction: about a second
_MOST_MINIMAL_EDGES = 600_000  # of one result, where a range of characters counts as an edge
_STATE_BYTES, _EDGE_BYTES = 150, 110  # measured: an edge takes 80 to 150 bytes
_ROOMY = 8  # printable characters, without quotes and backslashes
_LONGEST_COUNTED, _MOST_READ = 64, 4096  # characters of counted texts, and edges read for them
_MANY_TEXTS, _MOST_TEXTS = 4096, 1 << 20  # texts that need no longer ones, and those on one way
_DEAD = -1  # the state of an automaton that refuses the text, in a product
Transitions = tuple[tuple[Transition, ...], ...]  # by state: sorted and disjoint
AnyState = TypeVar("AnyState", bound=Hashable)


class TooLargeError(Exception):
    """An automaton with too many states, or one that takes too much work."""

    def __init__(self, reason: str = f"its automaton has over {MOST_STATES:,} states"):
        super().__init__(reason)


@dataclass(frozen=True)
class Automaton:
    """Minimal deterministic automaton; automata of the same texts are equal.

    States are numbered in the order of a breadth-first search from state 0. Edges are sorted by
    character, disjoint and merged. A final state can be reached from every state, except in the
    automaton without texts, which has one state. Characters are Unicode scalar values. Operations
    raise `TooLargeError`.
    """

    edges: Transitions
    final: frozenset[int]

    ANY: ClassVar["Automaton"]
    NONE: ClassVar["Automaton"]

    @staticmethod
    def words(texts: Iterable[str]) -> "Automaton":
        """Return the automaton of `texts`, without those that have a lone surrogate."""
        return Automaton(*edges_of_words(texts))

    @staticmethod
    def other_words(texts: Iterable[str]) -> "Automaton":
        """Return the automaton of all texts that are not among `texts`."""
        return Automaton(*edges_of_words(texts, others=True))

    @staticmethod
    @RESULTS.remembered
    def lengths(low: int, high: int | None) -> "Automaton":
        """Return the automaton of all texts of `low` to `high` characters."""
        last = low if high is None else high
        if last >= MOST_STATES:
            raise TooLargeError
        if last < low:
            return Automaton.NONE
        edges = [tuple((*r, state + 1) for r in EVERY) for state in range(last)]
        edges.append(tuple((*r, last) for r in EVERY) if high is None else ())
        return Automaton(tuple(edges), frozenset(range(low, last + 1)))

    def union(self, other: "Automaton") -> "Automaton":
        if self == other or other.is_empty:
            return self
        return other if self.is_empty else _product(self, other, bool.__or__)

    def intersection(self, other: "Automaton") -> "Automaton":
        if self in (other, Automaton.NONE) or other == Automaton.ANY:
            return self
        return other if self == Automaton.ANY else _product(self, other, bool.__and__)

    def difference(self, other: "Automaton") -> "Automaton":
        return self if other.is_empty else _product(self, other, bool.__gt__)

    @RESULTS.remembered
    def complement(self) -> "Automaton":
        """Return the automaton of all other texts."""
        spend(sum(map(len, self.edges)) // 2)
        if not self.final:
            return Automaton.ANY
        sink = len(self.edges)
        rows: list[dict[int, Ranges]] = []
        for state in self.edges:
            row = grouped(state)
            if unread := inverted((low, high) for low, high, _ in state):
                row[sink] = unread
            rows.append(row)
        rows.append({sink: EVERY})
        useless = next(
            (s for s, row in enumerate(rows) if s in self.final and row == {s: EVERY}), None
        )  # the only state that accepted everything becomes one that accepts nothing
        if useless == 0:
            return Automaton.NONE
        return _numbered(
            [{to: ranges for to, ranges in row.items() if to != useless} for row in rows],
            {state for state in range(len(rows)) if state not in self.final},
        )

    @property
    def is_empty(self) -> bool:
        return not self.final

    @cached_property
    def is_finite(self) -> bool:
        """Whether the number of texts is finite: no state can be reached from itself."""
        waiting = [0] * len(self.edges)
        for number, state in enumerate(self.edges):
            for _, _, to in state:
                if to == number:
                    return False
                waiting[to] += 1
        done = [] if waiting[0] else [0]
        for state in done:  # `done` grows in the loop
            for _, _, to in self.edges[state]:
                waiting[to] -= 1
                if not waiting[to]:
                    done.append(to)
        return len(done) == len(self.edges)

    @property
    def is_roomy(self) -> bool:
        """Whether each text of the automaton is also one after any of eight ASCII characters more.

        Then 64 texts leave another one that is at most two characters longer than any of them.
        """
        return all(map(self._has_room, self.final))

    def _has_room(self, state: int) -> bool:
        """Whether eight ASCII characters or more lead from `state` to a final state."""
        count = 0
        for low, high, to in self.edges[state]:
            if to in self.final:
                if low <= ord("A") and high >= ord("Z"):  # most often
                    return True
                count += _printable(low, high)
                if count >= _ROOMY:
                    return True
        return False

    def variety(self, state: int, least: int = 0, most: int | None = None) -> tuple[int, int]:
        """Return at least how many texts of `least` to `most` characters lead from `state` to
        acceptance (0: they were not counted), and how many edges were read.

        Only texts of printable ASCII without quotes and backslashes count, of at most 64
        characters, and only what a limited number of edges leads to.
        """
        level, count, read = {state: 1}, 0, 0
        longest = _LONGEST_COUNTED if most is None else min(most, _LONGEST_COUNTED)
        for size in range(longest + 1):
            if size >= least:
                count += sum(number for q, number in level.items() if q in self.final)
            if not level or count >= _MANY_TEXTS or read > _MOST_READ:
                break
            longer: dict[int, int] = {}
            for q, number in level.items():
                read += len(self.edges[q])
                if read > _MOST_READ:
                    break
                for low, high, to in self.edges[q]:
                    if width := _printable(low, high):
                        longer[to] = min(longer.get(to, 0) + number * width, _MOST_TEXTS)
            level = longer
        return count, read

    def accepts(self, text: str) -> bool:
        state = 0
        for character in text:
            point = ord(character)
            edges = self.edges[state]
            index = bisect_right(edges, point, key=lambda edge: edge[0]) - 1
            if index < 0 or edges[index][1] < point:
                return False
            state = edges[index][2]
        return state in self.final

    def shortest(self) -> str | None:
        """Return a text of the fewest characters, readable if possible; None if there is none."""
        texts = {0: ""}
        for state in (work := [0]):  # `work` grows in the loop
            if state in self.final:
                return texts[state]
            for low, high, to in sorted(self.edges[state], key=lambda edge: _plain(*edge[:2])[0]):
                if to not in texts:
                    texts[to] = texts[state] + _plain(low, high)[1]
                    work.append(to)
        return None

    def words_up_to(self, limit: int) -> list[str] | None:
        """Return all texts in order; None if they are more than `limit`."""
        if not self.is_finite:
            return None
        words: list[str] = []
        work = [(0, "")]
        while work:
            state, text = work.pop()
            if state in self.final:
                words.append(text)
            if len(words) + len(work) > limit:  # each waiting prefix leads to a text
                return None
            for low, high, to in reversed(self.edges[state]):
                if high - low >= limit:
                    return None
                work += [(to, text + chr(point)) for point in range(high, low - 1, -1)]
        return words

    @cached_property
    def nbytes(self) -> int:
        """Approximate bytes of memory."""
        return _STATE_BYTES * len(self.edges) + _EDGE_BYTES * sum(map(len, self.edges))

    @cached_property
    def _hash(self) -> int:
        return hash((self.edges, self.final))

    def __hash__(self) -> int:
        return self._hash


Automaton.ANY = Automaton((tuple((low, high, 0) for low, high in EVERY),), frozenset({0}))
Automaton.NONE = Automaton(((),), frozenset())


def _printable(low: int, high: int) -> int:
    """Return the number of printable ASCII characters from `#` on, without the backslash."""
    return max(0, min(high, 0x7E) - max(low, 0x23) + 1) - (low <= 0x5C <= high)


def _plain(low: int, high: int) -> tuple[int, str]:
    """Return the most readable character of a range, after its rank: 0 is the most readable."""
    ranked = enumerate("a0A -")
    return next(((rank, c) for rank, c in ranked if low <= ord(c) <= high), (9, chr(low)))


@immutable()
class TransitionTable:
    """A deterministic automaton over classes of characters; it starts in state 0."""

    classes: list[Ranges]
    rows: list[dict[int, int]]  # by state: from the index of a class to the next state
    final: set[int]


def explored(
    start: AnyState,
    follow: Callable[[AnyState], Iterable[tuple[int, AnyState]]],
    accepts: Callable[[AnyState], bool],
    classes: list[Ranges],
    limit: int = MOST_STATES,
) -> TransitionTable:
    """Return the automaton of all states that can be reached from `start`.

    `follow` returns pairs of a class's index and the next state. Raises `TooLargeError`.
    """
    numbers, work = {start: 0}, [start]
    rows: list[dict[int, int]] = []
    edges = 0
    for state in work:  # `work` grows in the loop
        row = {}
        for letter, to in follow(state):
            number = numbers.get(to)
            if number is None:
                number = numbers[to] = len(work)
                work.append(to)
            row[letter] = number
        rows.append(row)
        edges += len(row)
        spend(1 + len(row))
        if len(work) > limit:
            raise TooLargeError(f"its automaton has over {limit:,} states")
        if edges > _MOST_EDGES:
            raise TooLargeError(f"its automaton has over {_MOST_EDGES:,} edges")
    return TransitionTable(
        classes, rows, {number for state, number in numbers.items() if accepts(state)}
    )


def minimal(table: TransitionTable) -> Automaton:
    """Return the minimal automaton of the same texts. Raises `TooLargeError`."""
    inverse: list[list[tuple[int, int]]] = [[] for _ in table.rows]
    for state, row in enumerate(table.rows):
        for letter, to in row.items():
            inverse[to].append((letter, state))
    alive = alive_states(inverse, table.final)
    if 0 not in alive:
        return Automaton.NONE
    rows = [
        {letter: to for letter, to in row.items() if to in alive} if state in alive else {}
        for state, row in enumerate(table.rows)
    ]
    block_of = equivalent_blocks(rows, inverse, alive, table.final)
    state_of: dict[int, int] = {}  # one state of each block
    for state in alive:
        state_of.setdefault(block_of[state], state)
    blocks: list[dict[int, Ranges]] = [{} for _ in range(max(state_of) + 1)]
    together: dict[tuple[int, ...], Ranges] = {}  # the characters of several classes
    edges = 0
    for block, state in state_of.items():
        letters_to: dict[int, list[int]] = {}
        for letter, to in rows[state].items():
            letters_to.setdefault(block_of[to], []).append(letter)
        for to, letters in letters_to.items():
            key = tuple(letters)
            if key not in together:
                together[key] = union(r for letter in letters for r in table.classes[letter])
            blocks[block][to] = together[key]
            edges += len(together[key])
        if edges > _MOST_MINIMAL_EDGES:
            raise TooLargeError(f"its automaton has over {_MOST_MINIMAL_EDGES:,} edges")
    return _numbered(blocks, {block_of[state] for state in table.final}, block_of[0])


def _numbered(rows: list[dict[int, Ranges]], final: Iterable[int], start: int = 0) -> Automaton:
    """Return the automaton with its states in the order of a breadth-first search from `start`."""
    numbers, work = {start: 0}, [start]
    edges: list[tuple[Transition, ...]] = []
    for state in work:  # `work` grows in the loop
        merged: list[Transition] = []
        every = sorted((*r, to) for to, ranges in rows[state].items() for r in ranges)
        spend(len(every) // 3)  # one class of characters may have 700 ranges
        for low, high, to in every:
            number = numbers.setdefault(to, len(work))
            if number == len(work):
                work.append(to)
            if merged and merged[-1][1] + 1 == low and merged[-1][2] == number:
                low = merged.pop()[0]
            merged.append((low, high, number))
        edges.append(tuple(merged))
    return Automaton(tuple(edges), frozenset(numbers[s] for s in final if s in numbers))


def grouped(edges: Iterable[Transition]) -> dict[int, Ranges]:
    """Return the characters that lead to each next state."""
    ranges_to: dict[int, list[tuple[int, int]]] = {}
    for low, high, to in edges:
        ranges_to.setdefault(to, []).append((low, high))
    return {to: tuple(ranges) for to, ranges in ranges_to.items()}


@RESULTS.remembered
def _product(this: Automaton, other: Automaton, accepts: Callable[[bool, bool], bool]) -> Automaton:
    """Return the automaton of the texts with `accepts(this accepts, other accepts)`.

    `accepts(False, False)` must be false. Raises `TooLargeError`.
    """
    spend(sum(map(len, this.edges + other.edges)) // 2)
    groups = [[grouped(edges) for edges in automaton.edges] for automaton in (this, other)]
    classes, members = alphabet(ranges for group in chain(*groups) for ranges in group.values())
    ones, others = (
        [{c: to for to, ranges in group.items() for c in members[ranges]} for group in rows]
        for rows in groups
    )
    one_alone, other_alone = accepts(True, False), accepts(False, True)

    def follow(pair: tuple[int, int]) -> Iterable[tuple[int, tuple[int, int]]]:
        row = ones[pair[0]] if pair[0] != _DEAD else {}
        right = others[pair[1]] if pair[1] != _DEAD else {}
        if not one_alone and not other_alone and len(right) < len(row):
            return [(c, (row[c], to)) for c, to in right.items() if c in row]
        steps = [(c, (to, right.get(c, _DEAD))) for c, to in row.items() if one_alone or c in right]
        if other_alone:
            steps += [(c, (_DEAD, to)) for c, to in right.items() if c not in row]
        return steps

    limit = min(_MOST_PRODUCT, max(MOST_STATES, 2 * (len(ones) + len(others))))
    return minimal(
        explored(
            (0, 0),
            follow,
            lambda pair: accepts(pair[0] in this.final, pair[1] in other.final),
            classes,
            limit,
        )
    )
