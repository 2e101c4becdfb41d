"""From rules to the states and edges of a network: Thompson's construction, rule by rule."""

from dlm.grammar.errors import InvalidGrammarError
from dlm.grammar.parse.edges import Edge, Epsilon, Follow, Read, ReadToken
from dlm.grammar.regex.automaton import Automaton
from dlm.grammar.rules.nodes import (
    Alternation,
    Characters,
    Concatenation,
    Literal,
    Node,
    Reference,
    Repetition,
    SpecialToken,
    Terminal,
)
from dlm.grammar.rules.rules import Rules

MOST_STATES = 500_000
_FEW_WORDS = 8  # more literals than that, side by side, are one automaton


class Construction:
    """States are numbered; each rule has one that it begins in."""

    def __init__(self, rules: Rules):
        self.numbers = {name: i for i, name in enumerate(rules.nodes)}
        self.edges: list[list[Edge]] = [[] for _ in self.numbers]
        self.start, self.final = list(range(len(self.numbers))), set[int]()
        self.terminals: dict[Terminal | bytes, int] = {}
        self.distinct: frozenset[int] = frozenset()  # states of arrays whose items are distinct
        self._waiting = list(zip(self.start, rules.nodes.values(), strict=True))
        arrays = {self.numbers[name] for name in rules.distinct}
        while self._waiting:
            start, node = self._waiting.pop()
            before = len(self.edges)
            self.final.add(self._add(node, start))
            if start in arrays:
                self.distinct |= {start, *range(before, len(self.edges))}

    def _add(self, node: Node, state: int) -> int:
        """Add `node` behind `state`; says where it ends."""
        match node:
            case Literal(text):
                return self._read(state, text.encode()) if text else state
            case Characters(ranges):
                return self._read(state, Terminal(Automaton.of(Characters(ranges))))
            case Terminal(low=low, high=high):
                return self._read(
                    state, Terminal(node.automaton, 0, None, node.spelling), low, high
                )
            case SpecialToken(ids, listed):
                return self._edge(state, ReadToken(ids, listed, self._new()))
            case Reference(name):
                return self._edge(state, Follow(self.numbers[name], self._new()))
            case Concatenation(parts):
                for part in parts:
                    state = self._add(part, state)
                return state
            case Alternation(options):
                return self._alternation(options, state)
            case Repetition(part, low, high):
                return self._repetition(part, low, high, state)
        raise TypeError(f"{node} is no part of a rule")

    def _alternation(self, options: tuple[Node, ...], state: int) -> int:
        end = self._new()
        words = [option.text for option in options if isinstance(option, Literal)]
        if len(words) > _FEW_WORDS:
            read = self._read(state, Terminal(Automaton.words(words)))
            self._edge(read, Epsilon(end))
            options = tuple(option for option in options if not isinstance(option, Literal))
        for option in options:
            begin = self._edge(state, Epsilon(self._new()))
            self._edge(self._add(option, begin), Epsilon(end))
        return end

    def _repetition(self, part: Node, low: int, high: int | None, state: int) -> int:
        if isinstance(part, Characters):
            whole = Automaton.of(Repetition(part))
            return self._read(state, Terminal(whole), low, high)
        if (low, high) == (0, 1):
            end = self._new()
            self._edge(state, Epsilon(end))
            self._edge(self._add(part, state), Epsilon(end))
            return end
        if isinstance(part, Reference):
            rule = self.numbers[part.name]
        else:
            rule = len(self.start)
            self.start.append(self._new())
            self._waiting.append((self.start[rule], part))
        return self._edge(state, Follow(rule, self._new(), low, high))

    def _read(
        self, state: int, terminal: Terminal | bytes, low: int = 0, high: int | None = None
    ) -> int:
        number = self.terminals.setdefault(terminal, len(self.terminals))
        return self._edge(state, Read(number, self._new(), low, high))

    def _edge(self, state: int, edge: Edge) -> int:
        self.edges[state].append(edge)
        return edge.to

    def _new(self) -> int:
        if len(self.edges) >= MOST_STATES:
            raise InvalidGrammarError("grammar", f"it takes over {MOST_STATES} states")
        self.edges.append([])
        return len(self.edges) - 1
