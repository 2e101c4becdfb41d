"""Nodes of patterns and of grammar rules, and sets of characters.

Sets of characters are ranges of code points. Knows no notation, no vocabulary and no schema.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from enum import Enum, auto
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dlm.grammar.regex.automaton import Automaton


Ranges = tuple[tuple[int, int], ...]  # code points: sorted, disjoint, both ends included


class Node:
    """Part of a rule: a set of texts, which may have control tokens between characters."""


class Spelling(Enum):
    """Encoding of a terminal's characters as bytes."""

    RAW = auto()  # UTF-8
    ESCAPED = auto()  # as within a JSON string: UTF-8, or any of JSON's escapes (RFC 8259, 7)
    QUOTED = auto()  # a whole JSON string: escaped, with quotes


@dataclass(frozen=True, slots=True)
class Literal(Node):
    """One text, character for character; it may be empty."""

    text: str


@dataclass(frozen=True, slots=True)
class Characters(Node):
    """One character out of `ranges`."""

    ranges: Ranges


@dataclass(frozen=True, slots=True)
class SpecialToken(Node):
    """One control token out of `ids`, of which none is a stop token."""

    ids: frozenset[int]


@dataclass(frozen=True, slots=True)
class Reference(Node):
    """Reference to a rule by its name."""

    name: str


@dataclass(frozen=True, slots=True)
class Concatenation(Node):
    """Sequence of `parts`; without parts, the empty text."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Alternation(Node):
    """Choice of one of `options`; without options, nothing matches."""

    options: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Repetition(Node):
    """`part` repeated `low` to `high` times; `high` None is no limit."""

    part: Node
    low: int = 0
    high: int | None = None


@dataclass(frozen=True, slots=True)
class Component:
    """A part of `AnyOrder`."""

    node: Node
    required: bool = False
    ordered: bool = False  # it comes before all later parts that are `ordered`
    last: bool = False  # it comes after all parts that are `ordered`
    repeats: bool = False  # it may come any number of times
    again: bool = False  # likewise, but it counts once


@dataclass(frozen=True, slots=True)
class AnyOrder(Node):
    """One part or more, in any order that the parts allow, with `separator` between them.

    A part comes at most once, unless it repeats or comes again. There are `low` to `high` of them;
    `high` None is no limit. No part matches the empty text.
    """

    parts: tuple[Component, ...]
    separator: Node
    low: int = 0
    high: int | None = None


@dataclass(frozen=True, slots=True)
class Lookahead(Node):
    """Assertion, in patterns only, that the text after it begins with `part`, or does not."""

    part: Node
    positive: bool = True


@dataclass(frozen=True, slots=True)
class Lookbehind(Node):
    """Assertion, in patterns only, that the text before it ends with `part`, or does not."""

    part: Node
    positive: bool = True


@dataclass(frozen=True, slots=True)
class Terminal(Node):
    """Texts of `low` to `high` characters that `automaton` accepts.

    Terminals are read without a parser stack. Characters are counted, not unrolled into states.
    """

    automaton: "Automaton"
    low: int = 0
    high: int | None = None
    spelling: Spelling = Spelling.RAW


EMPTY = Concatenation(())
NOTHING = Alternation(())


def mapped(node: Node, change: Callable[[Node], Node]) -> Node:
    """Return `node` with `change` applied to its parts; a node without parts is returned as is."""
    match node:
        case Concatenation(parts):
            return Concatenation(tuple(map(change, parts)))
        case Alternation(options):
            return Alternation(tuple(map(change, options)))
        case Repetition(part, low, high):
            return Repetition(change(part), low, high)
        case AnyOrder(parts, separator):
            changed = tuple(replace(part, node=change(part.node)) for part in parts)
            return replace(node, parts=changed, separator=change(separator))
    return node


def optional(node: Node) -> Node:
    return Repetition(node, 0, 1)


def concatenation(*parts: Node | str) -> Node:
    """Return the concatenation of `parts`, where a string stands for a literal."""
    nodes = [Literal(part) if isinstance(part, str) else part for part in parts]
    return nodes[0] if len(nodes) == 1 else Concatenation(tuple(nodes))


def alternation(*options: Node) -> Node:
    return options[0] if len(options) == 1 else Alternation(options)


def parts_of(node: Node) -> tuple[Node, ...]:
    """Return the parts of a concatenation, else the node alone."""
    return node.parts if isinstance(node, Concatenation) else (node,)


def alternation_of(options: list[Node]) -> Node:
    """Return the alternation of `options` without repetitions; `NOTHING` if there are none."""
    kept = [option for option in dict.fromkeys(options) if option != NOTHING]
    return alternation(*kept) if kept else NOTHING


EVERY: Ranges = ((0, 0xD7FF), (0xE000, 0x10FFFF))  # Unicode scalar values: no surrogates
_FOREIGN = ((0xD800, 0xDFFF), (0x110000, 0x110000))
SURROGATES = re.compile("[\ud800-\udfff]")  # lone ones are not text


def union(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Return `ranges` sorted, merging those that overlap or touch."""
    merged: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = merged[-1][0], max(high, merged[-1][1])
        else:
            merged.append((low, high))
    return tuple(merged)


def inverted(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Return all characters that are not in `ranges`."""
    gaps, start = [], 0
    for low, high in union((*ranges, *_FOREIGN)):
        if start < low:
            gaps.append((start, low - 1))
        start = high + 1
    return tuple(gaps)


def bits(mask: int) -> Iterator[int]:
    """Yield the indices of the set bits of `mask`, the lowest first."""
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest


def alphabet(sets: Iterable[Ranges]) -> tuple[list[Ranges], dict[Ranges, list[int]]]:
    """Return classes of characters that no set divides, and by set the indices of its classes."""
    distinct = list(dict.fromkeys(sets))
    toggles: dict[int, int] = defaultdict(int)
    for number, ranges in enumerate(distinct):
        for low, high in ranges:
            toggles[low] ^= 1 << number
            toggles[high + 1] ^= 1 << number
    classes: dict[int, list[tuple[int, int]]] = {}
    within = 0
    for low, end in pairwise(sorted(toggles)):
        within ^= toggles[low]
        if within:
            classes.setdefault(within, []).append((low, end - 1))
    members: list[list[int]] = [[] for _ in distinct]
    for number, mask in enumerate(classes):
        for member in bits(mask):
            members[member].append(number)
    return [tuple(ranges) for ranges in classes.values()], dict(zip(distinct, members, strict=True))
