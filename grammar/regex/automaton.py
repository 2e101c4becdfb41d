"""Deterministic automata of characters, and those of patterns and of words.

A pattern matches whole texts, or, as in JSON Schema, all texts that contain a match. Knows no
notation: `reader.py` reads patterns. `dispatch` makes nodes of free text in which words lead to
other nodes: xgrammar's TagDispatch, and triggered tags in structural tags.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from dlm.grammar.errors import InvalidGrammarError
from dlm.grammar.limits import RESULTS
from dlm.grammar.regex import algebra
from dlm.grammar.regex.algebra import (
    MOST_STATES,
    TooLargeError,
    Transitions,
    TransitionTable,
    minimal,
)
from dlm.grammar.regex.build import built
from dlm.grammar.regex.nodes import (
    EMPTY,
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
    Terminal,
    alternation,
    concatenation,
    inverted,
)
from dlm.grammar.regex.reader import END, START, read

__all__ = ["MOST_STATES", "Automaton", "TooLargeError"]

_STATE_BYTES, _EDGE_BYTES = 150, 110  # measured: an edge takes 80 to 150 bytes


@dataclass(frozen=True)
class Automaton:
    """Minimal deterministic automaton; automata of the same texts are equal.

    States are numbered in the order of a breadth-first search from state 0. Edges are sorted by
    character, disjoint and merged. A final state can be reached from every state, except in the
    automaton without texts, which has one state. Characters are Unicode scalar values. Operations
    raise `TooLargeError`.
    """

    edges: Transitions  # by state: first and last character, next state
    final: frozenset[int]

    ANY: ClassVar["Automaton"]
    NONE: ClassVar["Automaton"]

    @staticmethod
    def of(node: Node) -> "Automaton":
        """Return the automaton of a pattern. The bounds of its terminals become states."""
        return Automaton(*built(node))

    @staticmethod
    def words(texts: Iterable[str]) -> "Automaton":
        """Return the automaton of `texts`; tens of thousands of them are fast."""
        return Automaton(*algebra.words(texts))

    @staticmethod
    @RESULTS.remembered
    def lengths(low: int, high: int | None) -> "Automaton":
        """Return the automaton of all texts of `low` to `high` characters."""
        return Automaton(*algebra.lengths(low, high))

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

    def complement(self) -> "Automaton":
        return _complement(self)

    @property
    def is_empty(self) -> bool:
        return not self.final

    @cached_property
    def is_finite(self) -> bool:
        """Whether the number of texts is finite: no state can be reached from itself."""
        waiting = [0] * len(self.edges)
        for state in self.edges:
            for _, _, to in state:
                waiting[to] += 1
        done = [] if waiting[0] else [0]
        for state in done:  # `done` grows in the loop
            for _, _, to in self.edges[state]:
                waiting[to] -= 1
                if not waiting[to]:
                    done.append(to)
        return len(done) == len(self.edges)

    @property
    def has_dead_ends(self) -> bool:
        """Whether some text cannot be continued: a state has no edges."""
        return not all(self.edges)

    def accepts(self, text: str) -> bool:
        state = 0
        for character in text:
            point = ord(character)
            edges = self.edges[state]
            found = bisect_right(edges, point, key=lambda edge: edge[0]) - 1
            if found < 0 or edges[found][1] < point:
                return False
            state = edges[found][2]
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
        found: list[str] = []
        work = [(0, "")]
        while work:
            state, text = work.pop()
            if state in self.final:
                found.append(text)
            if len(found) + len(work) > limit:  # each waiting prefix leads to a text
                return None
            for low, high, to in reversed(self.edges[state]):
                if high - low >= limit:
                    return None
                work += [(to, text + chr(point)) for point in range(high, low - 1, -1)]
        return found

    @cached_property
    def nbytes(self) -> int:
        """Approximate bytes of memory."""
        return _STATE_BYTES * len(self.edges) + _EDGE_BYTES * sum(map(len, self.edges))

    @cached_property
    def _hash(self) -> int:
        return hash((self.edges, self.final))

    def __hash__(self) -> int:
        return self._hash


Automaton.ANY = Automaton(*algebra.ANYTHING)
Automaton.NONE = Automaton(((),), frozenset())


def _plain(low: int, high: int) -> tuple[int, str]:
    """Return the most readable character of a range, after its rank: 0 is the most readable."""
    ranked = enumerate("a0A -")
    return next(((rank, c) for rank, c in ranked if low <= ord(c) <= high), (9, chr(low)))


@RESULTS.remembered
def _product(one: Automaton, other: Automaton, wanted: Callable[[bool, bool], bool]) -> Automaton:
    machines = (one.edges, one.final), (other.edges, other.final)
    return Automaton(*algebra.product(*machines, wanted))


@RESULTS.remembered
def _complement(automaton: Automaton) -> Automaton:
    return Automaton(*algebra.complement((automaton.edges, automaton.final)))


_ANYTHING = Repetition(Characters(EVERY))
_FEW = 32  # repetitions that are unrolled; more are counted

BoundedTexts = tuple[Automaton, int, int | None]  # with the minimum and maximum of characters


@RESULTS.remembered
def parse(pattern: str, whole: bool, wide: bool = False) -> Node:
    """Return the nodes of a pattern that matches the `whole` text, or any part of the text.

    It matches what all regex engines match, or, if `wide`, what any of them does. Raises
    `InvalidGrammarError`.
    """
    try:
        return _opened(_opened(read(pattern, wide), START, not whole), END, not whole)
    except RecursionError as error:
        raise InvalidGrammarError("pattern", "nested too deeply") from error


@RESULTS.remembered
def automaton_of(pattern: str, whole: bool) -> Automaton:
    """Return the automaton of a pattern. Raises `InvalidGrammarError`, also if it is too large."""
    return _automaton(parse(pattern, whole))


@RESULTS.remembered
def bounded(pattern: str, whole: bool, wide: bool = False) -> BoundedTexts:
    """Return the automaton of a pattern, with one long repetition expressed as bounds of length.

    `^[A-Z][a-z]{0,4999}$` becomes `^[A-Z][a-z]*$` of 1 to 5,000 characters. This is possible if
    all other parts of the pattern have a fixed length. Raises `InvalidGrammarError`.
    """
    return _counted(_parts(parse(pattern, whole, wide)))


def _counted(parts: tuple[Node, ...]) -> BoundedTexts:
    match parts:
        case Lookahead(Concatenation((Repetition(Characters(), low, high) as all_, end)), True), *_:
            if end == END:  # `(?=.{1,255}$)` limits the length of all that follows
                automaton, least, most = _counted(parts[1:])
                bounds = [bound for bound in (high, most) if bound is not None]
                within = automaton.intersection(_automaton(Repetition(all_.part)))
                return within, max(low, least), min(bounds, default=None)
    counted = [
        part
        for part in parts
        if isinstance(part, Repetition) and max(part.low, part.high or 0) > _FEW
    ]
    if len(counted) == 1:
        (repetition,) = counted
        size = _length(repetition.part)
        others = [_length(part) for part in parts if part is not repetition]
        if size and None not in others:
            fixed = sum(length for length in others if length)
            low, high = repetition.low, repetition.high
            free = [Repetition(repetition.part) if p is repetition else p for p in parts]
            return (
                _automaton(Concatenation(tuple(free))),
                fixed + size * low,
                None if high is None else fixed + size * high,
            )
    return _automaton(Concatenation(parts)), 0, None


def _automaton(node: Node) -> Automaton:
    try:
        return Automaton.of(node)
    except TooLargeError as error:
        raise InvalidGrammarError("pattern", f"too large: {error}") from error


def _parts(node: Node) -> tuple[Node, ...]:
    """Return the parts of `node` in order, including those of nested concatenations."""
    if not isinstance(node, Concatenation):
        return (node,)
    return tuple(inner for part in node.parts for inner in _parts(part))


def _length(node: Node) -> int | None:
    """Return the number of characters of all texts of `node`; None if it differs or is unknown."""
    match node:
        case Characters():
            return 1
        case Literal(text):
            return len(text)
        case Lookahead() | Lookbehind():
            return 0
        case Concatenation(parts):
            lengths = [_length(part) for part in parts]
            return sum(n for n in lengths if n) if None not in lengths else None
        case Alternation(options):
            lengths = {_length(option) for option in options}
            return lengths.pop() if len(lengths) == 1 else None
        case Repetition(part, low, high) if low == high:
            length = _length(part)
            return length if length is None else length * low
    return None


def _opened(node: Node, anchor: Node, is_open: bool) -> Node:
    """Return `node` with any text added at the end that `anchor` stands for.

    Nothing is added if the anchor is there or if not `is_open`. Anchors further inside stay as
    assertions.
    """
    parts, front = _parts(node), anchor is START
    if not parts:
        return _ANYTHING if is_open else EMPTY
    edge, others = (parts[0], parts[1:]) if front else (parts[-1], parts[:-1])
    if edge == anchor:
        return _opened(Concatenation(others), anchor, False)
    if is_open and isinstance(edge, Repetition) and edge.low < 2:  # any text includes more of it
        once = (edge.part,) if edge.low else ()
        return _opened(Concatenation((*once, *others) if front else (*others, *once)), anchor, True)
    ends: tuple[Node, ...] = (edge,)
    if isinstance(edge, Alternation) and _is_anchored(edge, anchor):
        ends = (Alternation(tuple(_opened(o, anchor, is_open) for o in edge.options)),)
    elif is_open:
        if isinstance(edge, Repetition):
            edge = Repetition(edge.part, edge.low, edge.low)
        ends = (_ANYTHING, edge) if front else (edge, _ANYTHING)
    return Concatenation((*ends, *others) if front else (*others, *ends))


def _is_anchored(node: Node, anchor: Node) -> bool:
    """Whether some alternative of `node` begins, or ends, with the anchor."""
    if isinstance(node, Alternation):
        return any(_is_anchored(option, anchor) for option in node.options)
    parts = _parts(node)
    if len(parts) == 1:
        return parts[0] == anchor
    return bool(parts) and _is_anchored(parts[0 if anchor is START else -1], anchor)


_MOST_SETS = 4096  # sets of states that are examined


def any_of_length(automaton: Automaton, low: int, high: int | None) -> bool:
    """Whether a text of `low` to `high` characters is accepted; True if that takes too long.

    The set of states after all texts of a length follows from the set for one character less. Once
    a set recurs, whole cycles are skipped.
    """
    if automaton.is_empty or (high is not None and high < low):
        return False
    if automaton == Automaton.ANY or (not low and high is None):
        return True
    states, length, seen = frozenset((0,)), 0, dict[frozenset[int], int]()
    for _ in range(_MOST_SETS):
        if states in seen and length < low:
            length += (low - length) // (length - seen[states]) * (length - seen[states])
        if not states or (high is not None and length > high) or seen.get(states, -1) >= low:
            return False
        if length >= low and not states.isdisjoint(automaton.final):
            return True
        seen[states] = length
        states = frozenset(to for state in states for _, _, to in automaton.edges[state])
        length += 1
    return True


_MOST_CHARACTERS = 4096  # of all words together
_MOST_OVERLAPPING = 16  # words, which take an automaton each


def dispatch(branches: Sequence[tuple[str, Node]], excludes: Sequence[str], loop: bool) -> Node:
    """Return a node of free text up to the first word of `branches`, and then the word's node.

    With `loop` this repeats. Free text contains neither words of `branches` nor `excludes`. If
    several words end at the same character, the longest counts. The text may end wherever it is
    free. Raises `TooLargeError`.
    """
    options: dict[str, list[Node]] = {}
    for word, node in branches:
        options.setdefault(word, []).append(node)
    table = _Words(tuple(options), tuple(excludes))
    free = Terminal(table.free())
    if not options:
        return free
    if table.overlap():
        if len(options) > _MOST_OVERLAPPING:
            raise TooLargeError(f"over {_MOST_OVERLAPPING} words overlap each other")
        heads = [
            Concatenation((Terminal(head), alternation(*nodes)))
            for word, nodes in options.items()
            if not (head := table.up_to(word)).is_empty
        ]
        tagged = alternation(*heads)
    else:
        heads = [concatenation(word, alternation(*nodes)) for word, nodes in options.items()]
        tagged = Concatenation((free, alternation(*heads)))
    if loop:
        return Concatenation((Repetition(tagged), free))
    return alternation(free, tagged)


def free_of(words: Sequence[str]) -> Automaton:
    """Return the automaton of the texts that contain none of `words`. Raises `TooLargeError`."""
    return _Words((), tuple(words)).free()


class _Words:
    """Automaton of all words, whose state is the longest matching suffix (Aho and Corasick)."""

    def __init__(self, words: tuple[str, ...], excludes: tuple[str, ...]):
        self._words, self._excludes = words, tuple(word for word in excludes if word)
        if sum(map(len, (*words, *self._excludes))) > _MOST_CHARACTERS:
            raise TooLargeError(f"its words have over {_MOST_CHARACTERS:,} characters")
        letters = sorted(set("".join((*words, *self._excludes))))
        self._classes: list[Ranges] = [((ord(c), ord(c)),) for c in letters]
        self._classes.append(inverted(r for ranges in self._classes for r in ranges))
        self._ends: dict[int, str] = {}  # by state: the longest word that ends there
        self._excluded: set[int] = set()
        self._rows = self._build({c: i for i, c in enumerate(letters)})

    def _build(self, number: dict[str, int]) -> list[dict[int, int]]:
        children: list[dict[int, int]] = [{}]
        for word in (*self._words, *self._excludes):
            state = 0
            for character in word:
                state = children[state].setdefault(number[character], len(children))
                if state == len(children):
                    children.append({})
            if word in self._words:
                self._ends[state] = word
            if word in self._excludes:
                self._excluded.add(state)
        rows: list[dict[int, int]] = [{} for _ in children]
        rows[0] = dict.fromkeys(range(len(number) + 1), 0) | children[0]
        waiting = [(state, 0) for state in children[0].values()]
        for state, suffix in waiting:  # `waiting` grows in the loop
            if suffix in self._excluded:
                self._excluded.add(state)
            if suffix in self._ends:
                self._ends.setdefault(state, self._ends[suffix])
            rows[state] = rows[suffix] | children[state]
            waiting += [(to, rows[suffix][letter]) for letter, to in children[state].items()]
        return rows

    def free(self) -> Automaton:
        """Return the automaton of the texts that contain no word."""
        return self._automaton({*range(len(self._rows))} - self._ends.keys() - self._excluded)

    def up_to(self, word: str) -> Automaton:
        """Return the automaton of the texts that end with `word` and contain no other word."""
        ends = {state for state, other in self._ends.items() if other == word} - self._excluded
        return self._automaton(ends)

    def _automaton(self, final: set[int]) -> Automaton:
        stopped = self._ends.keys() | self._excluded
        rows = [{} if state in stopped else row for state, row in enumerate(self._rows)]
        return Automaton(*minimal(TransitionTable(self._classes, rows, final)))

    def overlap(self) -> bool:
        """Whether a word contains another word, or begins with the end of one."""
        return any(
            (other in word and not itself)
            or any(other.endswith(word[:n]) for n in range(1, len(word) + (not itself)))
            for word in self._words
            for other, itself in (
                *((other, other == word) for other in self._words),
                *((other, False) for other in self._excludes),
            )
        )
