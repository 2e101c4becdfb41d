"""The parts that grammar rules are made of. Knows no notation, no vocabulary and no schema."""

from dataclasses import dataclass
from enum import Enum, auto
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
