"""The parts that grammar rules are made of. Knows no notation, no vocabulary and no schema.

Sets of characters as ranges of code points, and the alphabet that tells several sets apart.

A limit on what automata may take to make, for a caller that cannot wait.

Every construction has limits of its own, of about a second. A limit here is for all that is made
within a block of the program, however many patterns that are.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from enum import Enum, auto
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dlm.grammar.regex.automaton import Automaton


Ranges = tuple[tuple[int, int], ...]  # code points: sorted, apart, both ends included


class Node:
    """A part of a rule: a set of texts, in which control tokens may stand between characters."""


class Spelling(Enum):
    """How the characters of a terminal are written as bytes."""

    RAW = auto()  # UTF-8
    ESCAPED = auto()  # as within a JSON string: UTF-8, or any of JSON's escapes (RFC 8259, 7)
    QUOTED = auto()  # the same, with the quotes around it


@dataclass(frozen=True, slots=True)
class Literal(Node):
    """One text, character for character; the empty one matches nothing but itself."""

    text: str


@dataclass(frozen=True, slots=True)
class Characters(Node):
    """One character out of `ranges`."""

    ranges: Ranges


@dataclass(frozen=True, slots=True)
class SpecialToken(Node):
    """One token by its id: out of `ids`, or, not `listed`, any control token but these."""

    ids: frozenset[int]
    listed: bool = True


@dataclass(frozen=True, slots=True)
class Reference(Node):
    """Another rule, by its name."""

    name: str


@dataclass(frozen=True, slots=True)
class Concatenation(Node):
    """All parts, one behind the other; of none, the empty text."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Alternation(Node):
    """One of the options; of none, nothing matches."""

    options: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Repetition(Node):
    """`low` to `high` times the same part; without a `high`, as often as it likes."""

    part: Node
    low: int = 0
    high: int | None = None


@dataclass(frozen=True, slots=True)
class Lookahead(Node):
    """All that follows, to the end of the pattern's text, has to begin with `part`, or must not.

    Only in patterns: it is gone once they are automata.
    """

    part: Node
    wanted: bool = True


@dataclass(frozen=True, slots=True)
class Lookbehind(Node):
    """All that came before, from the start of the pattern's text, has to end with `part`, or not.

    Only in patterns: it is gone once they are automata.
    """

    part: Node
    wanted: bool = True


@dataclass(frozen=True, slots=True)
class Terminal(Node):
    """Texts of `low` to `high` characters that an automaton accepts, read without a parser stack.

    Its bounds are counted, never unrolled into states.
    """

    automaton: "Automaton"
    low: int = 0
    high: int | None = None
    spelling: Spelling = Spelling.RAW


EMPTY = Concatenation(())
NOTHING = Alternation(())


def optional(node: Node) -> Node:
    return Repetition(node, 0, 1)


def concatenation(*parts: Node | str) -> Node:
    """Parts one behind the other; text stands for a literal."""
    nodes = [Literal(part) if isinstance(part, str) else part for part in parts]
    return nodes[0] if len(nodes) == 1 else Concatenation(tuple(nodes))


def alternation(*options: Node) -> Node:
    return options[0] if len(options) == 1 else Alternation(options)


EVERY: Ranges = ((0, 0xD7FF), (0xE000, 0x10FFFF))  # Unicode scalar values: no surrogates
_FOREIGN = ((0xD800, 0xDFFF), (0x110000, 0x110000))


def union(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Sorted, with those that overlap or touch made one."""
    merged: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = merged[-1][0], max(high, merged[-1][1])
        else:
            merged.append((low, high))
    return tuple(merged)


def inverted(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Every character but these."""
    left, start = [], 0
    for low, high in union((*ranges, *_FOREIGN)):
        if start < low:
            left.append((start, low - 1))
        start = high + 1
    return tuple(left)


def bits(mask: int) -> Iterator[int]:
    """The numbers of the bits that are set."""
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest


def alphabet(sets: Iterable[Ranges]) -> tuple[list[Ranges], dict[Ranges, list[int]]]:
    """Classes of characters that no set tells apart, and by set the numbers of its classes."""
    distinct = list(dict.fromkeys(sets))
    toggles: dict[int, int] = defaultdict(int)
    for number, ranges in enumerate(distinct):
        for low, high in ranges:
            toggles[low] ^= 1 << number
            toggles[high + 1] ^= 1 << number
    classes: dict[int, list[tuple[int, int]]] = {}
    within = 0
    for low, behind in pairwise(sorted(toggles)):
        within ^= toggles[low]
        if within:
            classes.setdefault(within, []).append((low, behind - 1))
    members: list[list[int]] = [[] for _ in distinct]
    for number, mask in enumerate(classes):
        for member in bits(mask):
            members[member].append(number)
    return [tuple(ranges) for ranges in classes.values()], dict(zip(distinct, members, strict=True))


_left: ContextVar[list[int] | None] = ContextVar("left", default=None)


class TooMuchEffortError(Exception):
    """The automata take longer than the caller waits. It says nothing about a pattern."""


@contextmanager
def at_most(steps: int) -> Iterator[None]:
    """Let automata be made in this thread for `steps` steps of about 3 us.

    Then a construction raises `TooMuchEffortError`. What is remembered takes no step.
    """
    token = _left.set([steps])
    try:
        yield
    finally:
        _left.reset(token)


def spend(steps: int) -> None:
    """Count steps of a construction."""
    left = _left.get()
    if left is not None:
        left[0] -= steps
        if left[0] < 0:
            raise TooMuchEffortError
