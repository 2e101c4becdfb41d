"""The rules of one grammar, by name. Knows no notation."""

from itertools import count

from dlm.grammar.rules.nodes import (
    EMPTY,
    Alternation,
    Concatenation,
    Node,
    Reference,
    Repetition,
)


class Rules:
    """Named rules and the root, where a text begins."""

    def __init__(self, root: str = "root"):
        self.root = root
        self.nodes: dict[str, Node] = {}
        self.inexact: tuple[tuple[str, str], ...] = ()  # where they allow too much, and why
        self.free_keys = False  # a text is JSON, whose objects might hold a key twice
        self.few_keys = False  # and might run out of others
        self.distinct: set[str] = set()  # rules of JSON arrays whose items have to be distinct
        self._numbers = count()

    def new(self, stem: str = "rule") -> Reference:
        """A name that no rule has, to be defined later."""
        return Reference(next(n for i in self._numbers if (n := f"{stem}_{i}") not in self.nodes))

    def define(self, reference: Reference, node: Node) -> Reference:
        self.nodes[reference.name] = node
        return reference

    def add(self, node: Node, stem: str = "rule") -> Reference:
        return self.define(self.new(stem), node)

    def include(self, other: "Rules") -> Reference:
        """Adds the rules of another grammar, under new names; its root is what is returned."""
        names = {name: self.add(EMPTY, "rule") for name in other.nodes}
        for name, node in other.nodes.items():
            self.define(names[name], _renamed(node, names))
        return names[other.root]


def _renamed(node: Node, names: dict[str, Reference]) -> Node:
    match node:
        case Reference(name):
            return names[name]
        case Concatenation(parts):
            return Concatenation(tuple(_renamed(part, names) for part in parts))
        case Alternation(options):
            return Alternation(tuple(_renamed(option, names) for option in options))
        case Repetition(part, low, high):
            return Repetition(_renamed(part, names), low, high)
    return node
