"""The rules of one grammar, by name. Knows no notation."""

from itertools import count

from dlm.grammar.rules.nodes import Node, Reference


class Rules:
    """Named rules and the root, where a text begins."""

    def __init__(self, root: str = "root"):
        self.root = root
        self.nodes: dict[str, Node] = {}
        self.inexact: tuple[tuple[str, str], ...] = ()  # where they allow too much, and why
        self.free_keys = False  # an object may hold a key twice
        self._numbers = count()

    def new(self, stem: str = "rule") -> Reference:
        """A name that no rule has, to be defined later."""
        return Reference(next(n for i in self._numbers if (n := f"{stem}_{i}") not in self.nodes))

    def define(self, reference: Reference, node: Node) -> Reference:
        self.nodes[reference.name] = node
        return reference

    def add(self, node: Node, stem: str = "rule") -> Reference:
        return self.define(self.new(stem), node)
