"""Rules of one grammar, by name, and the references among them."""

from collections.abc import Iterable, Iterator, Mapping

from dlm.grammar.regex.automaton import Automaton
from dlm.grammar.regex.nodes import (
    EMPTY,
    Alternation,
    AnyOrder,
    Concatenation,
    Literal,
    Node,
    Reference,
    Repetition,
    SpecialToken,
    Terminal,
    mapped,
)

_NODE_BYTES = 100  # of memory, about, with what refers to it


class Rules:
    """Named rules of a grammar; a text matches the rule `root`."""

    def __init__(self, root: str = "root"):
        self.root = root
        self.nodes: dict[str, Node] = {}
        self.inexact: tuple[tuple[str, str], ...] = ()  # where the rules allow too much, and why
        self.free_keys = False  # texts are JSON, and the rules allow an object to repeat a key
        self.few_keys = False  # an object may run out of keys that are not used yet
        self.distinct: set[str] = set()  # rules of JSON arrays whose items have to be distinct
        self._number = 0  # of the next name, if it is unused

    def new(self, stem: str = "rule") -> Reference:
        """Return a reference with an unused name, to be defined later."""
        while True:
            name = f"{stem}_{self._number}"
            self._number += 1
            if name not in self.nodes:
                return Reference(name)

    def define(self, reference: Reference, node: Node) -> Reference:
        self.nodes[reference.name] = node
        return reference

    def add(self, node: Node, stem: str = "rule") -> Reference:
        return self.define(self.new(stem), node)

    def include(self, other: "Rules", tokens: Mapping[int, int] | None = None) -> Reference:
        """Add the rules of another grammar under new names, and return a reference to its root.
        Special tokens are replaced as `tokens` has it."""
        names = {name: self.add(EMPTY, "rule") for name in other.nodes}

        def renamed(node: Node) -> Node:
            if isinstance(node, Reference):
                return names[node.name]
            if tokens and isinstance(node, SpecialToken):
                return SpecialToken(frozenset(tokens.get(token, token) for token in node.ids))
            return mapped(node, renamed)

        for name, node in other.nodes.items():
            self.define(names[name], renamed(node))
        return names[other.root]


def weighed(rules: Rules) -> tuple[int, list[Automaton]]:
    """Return about the bytes of memory of `rules` without automata, and those automata, each once:
    rules of other schemas may have the same ones."""
    nbytes, automata = 0, dict[int, Automaton]()
    for node in nodes_within(rules.nodes.values()):
        nbytes += _NODE_BYTES
        if isinstance(node, Terminal):
            automata[id(node.automaton)] = node.automaton
        elif isinstance(node, Literal):
            nbytes += 4 * len(node.text)  # in UTF-32, at most
    return nbytes, [*automata.values()]


def references(node: Node) -> Iterator[str]:
    """Yield the names of the rules that `node` refers to, with repetitions."""
    return (part.name for part in nodes_within([node]) if isinstance(part, Reference))


def nodes_within(nodes: Iterable[Node]) -> Iterator[Node]:
    """Yield `nodes` and all nodes within them, the last of `nodes` first."""
    waiting = [*nodes]
    while waiting:
        yield (node := waiting.pop())
        match node:
            case Concatenation(parts) | Alternation(parts):
                waiting += reversed(parts)
            case Repetition(part):
                waiting.append(part)
            case AnyOrder(parts, separator):
                waiting += [separator, *(part.node for part in reversed(parts))]


def reachable(rules: Rules) -> dict[str, set[str]]:
    """Return the rules that can be reached from the root, each with the rules it refers to."""
    uses: dict[str, set[str]] = {}
    waiting = [rules.root]
    while waiting:
        if (name := waiting.pop()) not in uses:
            uses[name] = set(references(rules.nodes[name]))
            waiting += uses[name]
    return uses
