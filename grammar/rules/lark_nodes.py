"""What a Lark grammar says, before it is known what its names mean."""

from dataclasses import dataclass, field

from dlm.grammar.rules.nodes import Node


@dataclass(frozen=True, slots=True)
class Regex(Node):
    """What stands between slashes, and the flags behind it."""

    pattern: str
    flags: str
    at: int


@dataclass(frozen=True, slots=True)
class Both(Node):
    """Texts that all parts match."""

    parts: tuple[Node, ...]
    at: int


@dataclass(frozen=True, slots=True)
class Not(Node):
    """Texts that the part does not match."""

    part: Node
    at: int


@dataclass(frozen=True, slots=True)
class Use(Node):
    """A template with what stands for its parameters."""

    name: str
    arguments: tuple[Node, ...]
    at: int


@dataclass(frozen=True, slots=True)
class Data(Node):
    """`%json` or `%regex`, by `name`, and the JSON behind it, as text."""

    name: str
    text: str
    at: int


@dataclass(frozen=True, slots=True)
class Item:
    """The definition of a rule or a terminal."""

    body: Node
    at: int
    priority: int = 0
    params: tuple[str, ...] = ()
    options: dict[str, Node | None] = field(default_factory=dict)
    names: frozenset[str] = frozenset()  # of rules and terminals that it is made of


@dataclass(slots=True)
class Parsed:
    """A whole grammar. `used` says where each name is used first."""

    items: dict[str, Item] = field(default_factory=dict)
    imported: dict[str, tuple[str, int]] = field(default_factory=dict)  # from common, by new name
    ignored: list[Node] = field(default_factory=list)
    used: dict[str, int] = field(default_factory=dict)


def is_terminal(name: str) -> bool:
    return name.lstrip("_")[0].isupper()
