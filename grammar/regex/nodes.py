"""Nodes of patterns and of grammar rules.

The module knows no notation, no vocabulary and no schema.
"""

from collections.abc import Callable
from dataclasses import replace
from enum import Enum, auto

from dlm.grammar.immutable import immutable
from dlm.grammar.regex.automaton import Automaton
from dlm.grammar.regex.characters import Ranges


class Node:
    """Part of a rule: a set of texts, which may have control tokens between characters."""

    __slots__ = ()  # else those of its subclasses spare no memory


class Spelling(Enum):
    """Encoding of a terminal's characters as bytes."""

    RAW = auto()  # UTF-8
    ESCAPED = auto()  # as within a JSON string: UTF-8, or any of JSON's escapes (RFC 8259, 7)
    QUOTED = auto()  # a whole JSON string: escaped, with quotes

    __hash__ = object.__hash__  # that of `Enum` is a function in Python


@immutable()
class Literal(Node):
    """One text, character for character; it may be empty."""

    text: str


@immutable()
class Characters(Node):
    """One character out of `ranges`."""

    ranges: Ranges


@immutable()
class SpecialToken(Node):
    """One control token out of `ids`, of which none is a stop token."""

    ids: frozenset[int]


@immutable()
class Reference(Node):
    """Reference to a rule by its name."""

    name: str


@immutable()
class Concatenation(Node):
    """Sequence of `parts`; without parts, the empty text."""

    parts: tuple[Node, ...]


@immutable()
class Alternation(Node):
    """Choice of one of `options`; without options, nothing matches."""

    options: tuple[Node, ...]


@immutable()
class Repetition(Node):
    """`part` repeated `low` to `high` times; `high` None is no limit."""

    part: Node
    low: int = 0
    high: int | None = None


@immutable()
class Component:
    """A part of `AnyOrder`."""

    node: Node
    required: bool = False
    ordered: bool = False  # it comes before all later parts that are `ordered`
    last: bool = False  # it comes after all parts that are `ordered`
    repeats: bool = False  # it may come any number of times; then it is not required
    again: bool = False  # likewise, but it counts once


@immutable()
class AnyOrder(Node):
    """One part or more, in any order that the parts allow, with `separator` between them.

    A part comes at most once, unless it repeats or comes again. There are `low` to `high` of them;
    `high` None is no limit. No part matches the empty text.
    """

    parts: tuple[Component, ...]
    separator: Node
    low: int = 0
    high: int | None = None


@immutable()
class Lookahead(Node):
    """Assertion, in patterns only, that the text after it begins with `part`, or does not."""

    part: Node
    positive: bool = True


@immutable()
class Lookbehind(Node):
    """Assertion, in patterns only, that the text before it ends with `part`, or does not."""

    part: Node
    positive: bool = True


@immutable()
class Terminal(Node):
    """Texts of `low` to `high` characters that `automaton` accepts.

    Terminals are read without a parser stack. Characters are counted, not unrolled into states.
    """

    automaton: Automaton
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


def is_nothing(node: Node) -> bool:
    """Whether `node` equals `NOTHING`; comparing dataclasses takes longer."""
    return isinstance(node, Alternation) and not node.options


def alternation_of(options: list[Node]) -> Node:
    """Return the alternation of `options` without repetitions; `NOTHING` if there are none."""
    if len(options) == 1:
        return options[0]
    kept = [option for option in dict.fromkeys(options) if not is_nothing(option)]
    return alternation(*kept) if kept else NOTHING
