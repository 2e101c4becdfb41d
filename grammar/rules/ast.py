"""Grammar rules as they are put together, and what can be wrong with them as a whole."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from itertools import count


class Node(ABC):
    """A part of a rule. Matches more than the empty text where `heads` matters: at the front."""

    @abstractmethod
    def __str__(self) -> str:
        """As xgrammar's EBNF."""

    def finite(self, done: Collection[str]) -> bool:
        """Some match needs no rule but those in `done`."""
        return True

    def heads(self) -> frozenset[str]:
        """The rules that a match may begin with."""
        return frozenset()


@dataclass(frozen=True, slots=True)
class Term(Node):
    """EBNF as it is: it names no rule that is put together here."""

    ebnf: str

    def __str__(self) -> str:
        return self.ebnf


@dataclass(frozen=True, slots=True)
class Ref(Node):
    """Another rule."""

    name: str

    def __str__(self) -> str:
        return self.name

    def finite(self, done: Collection[str]) -> bool:
        return self.name in done

    def heads(self) -> frozenset[str]:
        return frozenset({self.name})


@dataclass(frozen=True, slots=True)
class Row(Node):
    """One part behind the other."""

    parts: tuple[Node, ...]

    def __str__(self) -> str:
        return f"({' '.join(str(part) for part in self.parts)})" if self.parts else '""'

    def finite(self, done: Collection[str]) -> bool:
        return all(part.finite(done) for part in self.parts)

    def heads(self) -> frozenset[str]:
        return self.parts[0].heads() if self.parts else frozenset()


@dataclass(frozen=True, slots=True)
class Either(Node):
    """One of several."""

    options: tuple[Node, ...]

    def __str__(self) -> str:
        return f"({' | '.join(str(option) for option in self.options)})"

    def finite(self, done: Collection[str]) -> bool:
        return any(option.finite(done) for option in self.options)

    def heads(self) -> frozenset[str]:
        return frozenset().union(*(option.heads() for option in self.options))


@dataclass(frozen=True, slots=True)
class Repeat(Node):
    """The same again and again; without a `high`, as often as it likes."""

    part: Node
    low: int = 0
    high: int | None = None

    def __str__(self) -> str:
        return f"({self.part}){{{self.low},{'' if self.high is None else self.high}}}"

    def finite(self, done: Collection[str]) -> bool:
        return self.low == 0 or self.part.finite(done)

    def heads(self) -> frozenset[str]:
        return self.part.heads()


def text(content: str) -> Term:
    """`content`, word for word."""
    escaped = content.replace("\\", "\\\\").replace('"', '\\"')
    return Term('"' + "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in escaped) + '"')


class Rules:
    """Named rules of one grammar."""

    def __init__(self):
        self._names = count()
        self._nodes: dict[str, Node] = {}
        self._written: dict[str, str] = {}  # rules that came as EBNF, by the first one's name

    def new(self) -> Ref:
        """A name, to be defined later."""
        return Ref(f"r{next(self._names)}")

    def define(self, ref: Ref, node: Node) -> Ref:
        self._nodes[ref.name] = node
        return ref

    def add(self, node: Node) -> Ref:
        return self.define(self.new(), node)

    def write(self, name: str, rules: str) -> Term:
        """Takes EBNF, the first rule of which is `name`; the same name means the same rules."""
        self._written[name] = rules
        return Term(name)

    def endless(self) -> set[str]:
        """The names of rules that no finite text matches."""
        done: set[str] = set()
        while True:
            found = {n for n, node in self._nodes.items() if n not in done and node.finite(done)}
            if not found:
                return self._nodes.keys() - done
            done |= found

    def circular(self) -> set[str]:
        """The names of some rules that begin with themselves."""
        try:
            TopologicalSorter({n: node.heads() for n, node in self._nodes.items()}).prepare()
        except CycleError as error:
            return set(error.args[1])
        return set()

    def __str__(self) -> str:
        return "\n".join(
            [*(f"{n} ::= {node}" for n, node in self._nodes.items()), *self._written.values()]
        )


def listed(rules: Rules, members: Sequence[tuple[Node, bool]], others: Node | None = None) -> Node:
    """Members with commas between them, in their order; with each, whether it has to be there.

    `others` may follow, any number of them.
    """
    comma = text(",")
    behind: Node = Row(()) if others is None else Repeat(Row((comma, others)))
    first: list[Node] = [Row(())] if others is None else [Row(()), Row((others, behind))]
    for member, needed in reversed(members):
        begun = Row((member, behind))
        first = [begun] if needed else [*first, begun]
        item = Row((comma, member))
        behind = rules.add(Row((item if needed else Repeat(item, 0, 1), behind)))
    return Either(tuple(first))
