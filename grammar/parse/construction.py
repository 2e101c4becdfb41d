"""Construction of networks from rules, by Thompson's method: the edges, and how nodes become them.

Edges read a terminal, read a control token by its id, follow another rule, read parts in any order,
or read nothing (epsilon). They are tuples, since thousands of them are pickled between processes.
"""

from typing import NamedTuple

from dlm.grammar.errors import InvalidGrammarError
from dlm.grammar.parse.groups import Group, GroupPart, TerminalBounds
from dlm.grammar.regex.automaton import Automaton
from dlm.grammar.regex.build import determinized
from dlm.grammar.regex.nodes import (
    Alternation,
    AnyOrder,
    Characters,
    Concatenation,
    Literal,
    Node,
    Reference,
    Repetition,
    SpecialToken,
    Spelling,
    Terminal,
)
from dlm.grammar.rules.rules import Rules


class TerminalEdge(NamedTuple):
    """An edge that reads a text of a terminal, of `low` to `high` characters."""

    terminal: int
    to: int
    low: int = 0
    high: int | None = None


class TokenEdge(NamedTuple):
    """An edge that reads one control token of `ids`."""

    ids: frozenset[int]
    to: int


class RuleEdge(NamedTuple):
    """An edge that reads a rule `low` to `high` times; `high` is None if there is no bound."""

    rule: int
    to: int
    low: int = 1
    high: int | None = 1
    round: bool = False  # one round of a repetition: an empty text does not count as one

    @property
    def once(self) -> bool:
        return self.low == self.high == 1


class EpsilonEdge(NamedTuple):
    to: int


class GroupEdge(NamedTuple):
    """An edge that reads a group: parts in any order."""

    group: int
    to: int


_Unbounded = tuple[Automaton, Spelling] | bytes  # a terminal without bounds of length, or a literal
Edge = TerminalEdge | TokenEdge | RuleEdge | EpsilonEdge | GroupEdge


MOST_STATES = 500_000
_FEW_WORDS = 8  # literals of an alternation: more of them become one automaton


class Construction:
    """The states and edges built from rules. Each rule `i` begins in state `start[i]`."""

    def __init__(self, rules: Rules):
        self.numbers = {name: i for i, name in enumerate(rules.nodes)}
        self.edges: list[list[Edge]] = [[] for _ in self.numbers]
        self.start, self.final = list(range(len(self.numbers))), set[int]()
        self._terminals: dict[_Unbounded, int] = {}
        self.groups: list[Group] = []
        self.distinct: frozenset[int] = frozenset()  # states of arrays whose items are distinct
        self._waiting = list(zip(self.start, rules.nodes.values(), strict=True))
        arrays = {self.numbers[name] for name in rules.distinct}
        while self._waiting:
            start, node = self._waiting.pop()
            before = len(self.edges)
            self.final.add(self._add(node, start))
            if start in arrays:
                self.distinct |= {start, *range(before, len(self.edges))}

    @property
    def terminals(self) -> list[Terminal | bytes]:
        """Terminals by their numbers, without bounds of length."""
        return [
            part if isinstance(part, bytes) else Terminal(part[0], spelling=part[1])
            for part in self._terminals
        ]

    def _add(self, node: Node, state: int) -> int:
        """Add `node` after `state`. Returns the state in which it ends."""
        if isinstance(node, Concatenation):  # the most frequent nodes come first
            for part in node.parts:
                state = self._add(part, state)
            return state
        if isinstance(node, Terminal):
            return self._read(state, (node.automaton, node.spelling), node.low, node.high)
        if isinstance(node, Reference):
            return self._edge(state, RuleEdge(self.numbers[node.name], self._new()))
        match node:
            case Literal(text):
                return self._read(state, text.encode()) if text else state
            case Characters():
                return self._read(state, (determinized(node), Spelling.RAW))
            case SpecialToken(ids):
                return self._edge(state, TokenEdge(ids, self._new()))
            case Alternation(options):
                return self._alternation(options, state)
            case Repetition(part, low, high):
                return self._repetition(part, low, high, state)
            case AnyOrder():
                return self._group(node, state)
        raise TypeError(f"{node} is no part of a rule")

    def _alternation(self, options: tuple[Node, ...], state: int) -> int:
        end = self._new()
        words = [option.text for option in options if isinstance(option, Literal)]
        if len(words) > _FEW_WORDS:
            read = self._read(state, (Automaton.words(words), Spelling.RAW))
            self._edge(read, EpsilonEdge(end))
            options = tuple(option for option in options if not isinstance(option, Literal))
        for option in options:
            self._edge(self._add(option, state), EpsilonEdge(end))
        return end

    def _repetition(self, part: Node, low: int, high: int | None, state: int) -> int:
        if isinstance(part, Characters):
            whole = determinized(Repetition(part))
            return self._read(state, (whole, Spelling.RAW), low, high)
        if (low, high) == (0, 1):
            end = self._new()
            self._edge(state, EpsilonEdge(end))
            self._edge(self._add(part, state), EpsilonEdge(end))
            return end
        return self._edge(state, RuleEdge(self._rule(part), self._new(), low, high))

    def _rule(self, node: Node) -> int:
        """Return the number of the rule of `node`, which is added if it has no name."""
        if isinstance(node, Reference):
            return self.numbers[node.name]
        self.start.append(self._new())
        self._waiting.append((self.start[-1], node))
        return len(self.start) - 1

    def _group(self, node: AnyOrder, state: int) -> int:
        parts = []
        for i, part in enumerate(node.parts):
            if part.required and part.repeats:
                raise InvalidGrammarError(
                    "grammar", "it must not be required if it repeats", f"part {i} of a group"
                )
            head, *others = _flat(part.node) or [part.node]
            terminal = self._terminal(head)
            rule = self._rule(part.node if terminal is None else Concatenation(tuple(others)))
            flags = part.required, part.ordered, part.last, part.repeats, part.again
            parts.append(GroupPart(terminal, rule, *flags))
        separator = None
        if _flat(node.separator):
            separator = self._terminal(node.separator) or self._rule(node.separator)
        end = self._edge(state, GroupEdge(len(self.groups), self._new()))
        self.groups.append(Group(tuple(parts), separator, node.low, node.high, end))
        return end

    def _terminal(self, node: Node) -> TerminalBounds | None:
        """Return the terminal that reads `node`; None if it takes a rule."""
        match node:
            case Literal(text) if text:
                return self._number(text.encode()), 0, None
            case Terminal(automaton, low, high, spelling):
                return self._number((automaton, spelling)), low, high
        return None

    def _number(self, terminal: _Unbounded) -> int:
        return self._terminals.setdefault(terminal, len(self._terminals))

    def _read(self, state: int, terminal: _Unbounded, low: int = 0, high: int | None = None) -> int:
        number, end = self._number(terminal), self._new()
        # Edges are many, and `TerminalEdge` itself makes them at half the speed.
        self.edges[state].append(tuple.__new__(TerminalEdge, (number, end, low, high)))
        return end

    def _edge(self, state: int, edge: Edge) -> int:
        self.edges[state].append(edge)
        return edge.to

    def _new(self) -> int:
        number = len(self.edges)
        if number >= MOST_STATES:
            raise InvalidGrammarError("grammar", f"it takes over {MOST_STATES} states")
        self.edges.append([])
        return number


def _flat(node: Node) -> list[Node]:
    """Return the parts of nested concatenations."""
    if not isinstance(node, Concatenation):
        return [node]
    flat: list[Node] = []
    for part in node.parts:
        if isinstance(part, Concatenation):
            flat += _flat(part)
        else:
            flat.append(part)
    return flat
