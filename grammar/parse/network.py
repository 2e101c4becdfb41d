"""A grammar as a recursive transition network, with the shortest path to each rule's end.

Every rule is a finite automaton, built by Thompson's construction. Its edges read a terminal, read
a control token by its id, follow another rule, or read nothing (epsilon). Edges are tuples, since
thousands of them are pickled between processes. The module knows no text and no vocabulary.
"""

import heapq
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from dlm.grammar.errors import InvalidGrammarError
from dlm.grammar.parse.scanner import LiteralScanner, Scanner
from dlm.grammar.regex.automaton import Automaton
from dlm.grammar.regex.build import determinized
from dlm.grammar.regex.nodes import (
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


Edge = TerminalEdge | TokenEdge | RuleEdge | EpsilonEdge


MOST_STATES = 500_000
_FEW_WORDS = 8  # literals of an alternation: more of them become one automaton


class Construction:
    """The states and edges built from rules. Each rule `i` begins in state `start[i]`."""

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
        """Add `node` after `state`. Returns the state in which it ends."""
        match node:
            case Literal(text):
                return self._read(state, text.encode()) if text else state
            case Characters(ranges):
                return self._read(state, Terminal(determinized(Characters(ranges))))
            case Terminal(low=low, high=high):
                return self._read(
                    state, Terminal(node.automaton, 0, None, node.spelling), low, high
                )
            case SpecialToken(ids):
                return self._edge(state, TokenEdge(ids, self._new()))
            case Reference(name):
                return self._edge(state, RuleEdge(self.numbers[name], self._new()))
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
            self._edge(read, EpsilonEdge(end))
            options = tuple(option for option in options if not isinstance(option, Literal))
        for option in options:
            begin = self._edge(state, EpsilonEdge(self._new()))
            self._edge(self._add(option, begin), EpsilonEdge(end))
        return end

    def _repetition(self, part: Node, low: int, high: int | None, state: int) -> int:
        if isinstance(part, Characters):
            whole = determinized(Repetition(part))
            return self._read(state, Terminal(whole), low, high)
        if (low, high) == (0, 1):
            end = self._new()
            self._edge(state, EpsilonEdge(end))
            self._edge(self._add(part, state), EpsilonEdge(end))
            return end
        if isinstance(part, Reference):
            rule = self.numbers[part.name]
        else:
            rule = len(self.start)
            self.start.append(self._new())
            self._waiting.append((self.start[rule], part))
        return self._edge(state, RuleEdge(rule, self._new(), low, high))

    def _read(
        self, state: int, terminal: Terminal | bytes, low: int = 0, high: int | None = None
    ) -> int:
        number = self.terminals.setdefault(terminal, len(self.terminals))
        return self._edge(state, TerminalEdge(number, self._new(), low, high))

    def _edge(self, state: int, edge: Edge) -> int:
        self.edges[state].append(edge)
        return edge.to

    def _new(self) -> int:
        if len(self.edges) >= MOST_STATES:
            raise InvalidGrammarError("grammar", f"it takes over {MOST_STATES} states")
        self.edges.append([])
        return len(self.edges) - 1


@dataclass(slots=True)
class Edges:
    """The edges of one state, by kind."""

    reads: list[TerminalEdge] = field(default_factory=list)
    tokens: list[TokenEdge] = field(default_factory=list)
    follows: list[RuleEdge] = field(default_factory=list)  # each reads its rule once
    epsilons: list[int] = field(default_factory=list)


class Network:
    """A network of numbered states, each of which belongs to one rule.

    `cost` maps a state to the fewest bytes to the end of its rule, a control token counted as one.
    It bounds the number of tokens.
    """

    def __init__(self, rules: Rules):
        """Raises `InvalidGrammarError` if the rules take too many states."""
        builder = Construction(rules)
        self.edges, self.start, self.final = builder.edges, builder.start, builder.final
        self.root = builder.numbers[rules.root]
        self.free_keys, self.few_keys = rules.free_keys, rules.few_keys
        self.distinct = builder.distinct
        self.terminals: list[Terminal | bytes] = list(builder.terminals)
        self.cost: dict[int, int] = {}  # a missing key: the rule's end is unreachable
        self._best: dict[int, Edge] = {}  # the first edge of a shortest path
        self._counted: dict[tuple[RuleEdge, int], int] = {}
        self._rounds: dict[int, tuple[RuleEdge, int]] = {}  # counted states without edges yet
        self._by_kind: dict[int, Edges] = {}
        self._tails: dict[int, bool] = {}
        self._measure()

    def edges_of(self, state: int) -> Edges:
        """Return the edges of `state`. A repetition is an epsilon edge into its first round."""
        found = self._by_kind.get(state)
        if found is None:
            found = self._by_kind[state] = Edges()
            for edge in self._out(state):
                match edge:
                    case TerminalEdge():
                        found.reads.append(edge)
                    case TokenEdge():
                        found.tokens.append(edge)
                    case RuleEdge() if edge.once:
                        found.follows.append(edge)
                    case RuleEdge():
                        found.epsilons.append(self._round(edge, 0))
                    case EpsilonEdge(to):
                        found.epsilons.append(to)
        return found

    def nullable(self, rule: int) -> bool:
        return self.cost.get(self.start[rule]) == 0

    def tail(self, state: int) -> bool:
        """Whether nothing can be read between `state` and the end of its rule."""
        if state not in self._tails:
            self._tails[state] = self._only_ends(state)
        return self._tails[state]

    def _only_ends(self, state: int) -> bool:
        seen, waiting, ends = {state}, deque([state]), False
        while waiting:
            state = waiting.popleft()
            edges = self._out(state)
            if not all(isinstance(edge, EpsilonEdge) for edge in edges):
                return False
            if not edges and state not in self.final:
                return False
            ends = ends or not edges
            waiting += {edge.to for edge in edges} - seen
            seen.update(edge.to for edge in edges)
        return ends

    def first_edge(self, state: int) -> Edge | None:
        """Return the first edge of a shortest path to the rule's end; None if it is there."""
        return self._best.get(state)

    def shortest_path(self, state: int) -> Iterator[TerminalEdge | int]:
        """Yield a shortest path to the rule's end: terminals, and control tokens by their ids."""
        pending = [(state, 1)]  # with the number of times that each path is walked
        while pending:
            state, times = pending.pop()
            if times > 1:
                pending.append((state, times - 1))
            edge = self._best.get(state) if times else None
            if edge is None:
                continue
            pending.append((edge.to, 1))
            if isinstance(edge, TerminalEdge):
                yield edge
            elif isinstance(edge, TokenEdge):
                yield min(edge.ids)
            elif isinstance(edge, RuleEdge) and not self.nullable(edge.rule):
                pending.append((self.start[edge.rule], edge.low))

    def _out(self, state: int) -> list[Edge]:
        if state in self._rounds:
            follow, done = self._rounds.pop(state)
            if follow.high is None or done < follow.high:
                after = self._round(follow, done + 1)
                self.edges[state].append(RuleEdge(follow.rule, after, round=True))
            if done >= follow.low or self.nullable(follow.rule):
                self.edges[state].append(EpsilonEdge(follow.to))
        return self.edges[state]

    def _round(self, follow: RuleEdge, done: int) -> int:
        """Return the state after `done` rounds of a repetition. It is built at the first call."""
        if follow.high is None:
            done = min(done, follow.low)
        if (follow, done) not in self._counted:
            state = self._counted[follow, done] = len(self.edges)
            self.edges.append([])
            self._rounds[state] = follow, done
            rest = RuleEdge(follow.rule, follow.to, max(0, follow.low - done), None)
            cost = self._through(rest)
            if cost is not None:
                self.cost[state], self._best[state] = cost, rest
        return self._counted[follow, done]

    def _measure(self) -> None:
        """Set costs by Knuth's generalisation of Dijkstra's algorithm to grammars (1977)."""
        scanners = [scanner_of(terminal) for terminal in self.terminals]
        self._check_bounds(scanners)
        reads: dict[TerminalEdge, int | None] = {}  # bytes, by edge
        into: dict[int, list[tuple[int, Edge]]] = {}  # edges by the states whose costs they need
        for state, edges in enumerate(self.edges):
            for edge in edges:
                into.setdefault(edge.to, []).append((state, edge))
                if isinstance(edge, TerminalEdge):
                    scanner = scanners[edge.terminal]
                    reads[edge] = scanner.cost(scanner.start, edge.low, edge.high)
                elif isinstance(edge, RuleEdge) and edge.low:
                    into.setdefault(self.start[edge.rule], []).append((state, edge))
        heap: list[tuple[int, int, int, Edge | None]] = [
            (0, i, state, None) for i, state in enumerate(self.final)
        ]
        heapq.heapify(heap)
        order = len(heap)  # breaks ties: edges have no order
        while heap:
            cost, _, state, edge = heapq.heappop(heap)
            if state in self.cost:
                continue
            self.cost[state] = cost
            if edge is not None:
                self._best[state] = edge
            for before, edge in into.get(state, ()):
                known = None if before in self.cost else self._through(edge, reads)
                if known is not None:
                    order += 1
                    heapq.heappush(heap, (known, order, before, edge))

    def _check_bounds(self, scanners: list[Scanner | LiteralScanner]) -> None:
        """Raises `InvalidGrammarError` if a terminal is too intricate for its bounds of length."""
        reads = (edge for edges in self.edges for edge in edges if isinstance(edge, TerminalEdge))
        for terminal, low, high in {(edge.terminal, edge.low, edge.high) for edge in reads}:
            scanner = scanners[terminal]
            if low and isinstance(scanner, Scanner):
                scanner.check(low, high)

    def _through(
        self, edge: Edge, reads: dict[TerminalEdge, int | None] | None = None
    ) -> int | None:
        """Return the cost of a path that begins with `edge`; None if it is not known yet."""
        rest = self.cost.get(edge.to)
        if rest is None:
            return None
        match edge:
            case TerminalEdge():
                read = None if reads is None else reads[edge]
                return None if read is None else rest + read
            case RuleEdge(low=low) if low:
                each = self.cost.get(self.start[edge.rule])
                return None if each is None else rest + low * each
            case TokenEdge():
                return rest + 1
        return rest


def scanner_of(terminal: Terminal | bytes) -> Scanner | LiteralScanner:
    if isinstance(terminal, bytes):
        return LiteralScanner(terminal)
    return Scanner(terminal.automaton, terminal.spelling)
