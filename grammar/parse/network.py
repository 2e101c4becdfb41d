"""A grammar as a recursive transition network, with the shortest path to each rule's end.

Every rule is a finite automaton (`construction.py`). The states of parts in any order are made when
a text reaches them (`situations.py`). The module knows no text and no vocabulary.
"""

import heapq
from collections.abc import Iterator, Sequence

from dlm.grammar.limits import RESULTS
from dlm.grammar.native import load
from dlm.grammar.parse.construction import (
    Construction,
    Edge,
    EpsilonEdge,
    GroupEdge,
    RuleEdge,
    TerminalEdge,
    TokenEdge,
)
from dlm.grammar.parse.groups import Group, TerminalBounds
from dlm.grammar.parse.scanner import LiteralScanner, Scanner, lengths_of
from dlm.grammar.parse.situations import GROUPED, Situations
from dlm.grammar.regex.automaton import Automaton
from dlm.grammar.regex.nodes import Spelling, Terminal
from dlm.grammar.rules.rules import Rules

NATIVE, _ = load()  # the extension in C, or None
_KINDS = TerminalEdge, TokenEdge, RuleEdge, EpsilonEdge, GroupEdge
# The fewest bytes of a terminal within its bounds; None: no text has such a length.
TerminalBytes = dict[TerminalBounds, int | None]
# The state before an edge, the edge, and its bytes if they depend on no other state's cost.
_EdgeInto = tuple[int, Edge, int | None]
# Likewise an edge that reads a group, and the index of one of its parts; None: its separator.
_PartOf = tuple[int, GroupEdge, int | None]


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
        self.terminals = builder.terminals
        self.groups = builder.groups
        self.cost: dict[int, int] = {}  # a missing key: the rule's end is unreachable
        self._situations = Situations(self.groups, self.start, self.cost)
        self._best: dict[int, Edge] = {}  # the first edge of a shortest path
        self._counted: dict[tuple[RuleEdge, int], int] = {}
        self._rounds: dict[int, tuple[RuleEdge, int]] = {}  # counted states without edges yet
        self._tails: dict[int, bool] = {}
        self._measure()

    def edges_of(self, state: int) -> Sequence[Edge]:
        """Return the edges of `state`. Those that read a group, or a rule not just once, are
        followed with nothing read to their `entry`."""
        if state >= GROUPED:
            return self._situations.edges_of(state)
        if state in self._rounds:
            follow, done = self._rounds.pop(state)
            if follow.high is None or done < follow.high:
                after = self._round(follow, done + 1)
                self.edges[state].append(RuleEdge(follow.rule, after, round=True))
            if done >= follow.low or self.nullable(follow.rule):
                self.edges[state].append(EpsilonEdge(follow.to))
        return self.edges[state]

    def entry(self, edge: RuleEdge | GroupEdge) -> int:
        """Return the state before the first round of a repetition, or the parts of a group."""
        if isinstance(edge, GroupEdge):
            return self._situations.begin(edge.group)
        return self._round(edge, 0)

    def reads(self) -> Iterator[TerminalEdge]:
        """Yield all edges that read a terminal; those of groups lead nowhere."""
        for edges in self.edges:
            yield from (edge for edge in edges if isinstance(edge, TerminalEdge))
        for group in self.groups:
            terminals = [group.separator, *(part.terminal for part in group.parts)]
            for terminal in terminals:
                if isinstance(terminal, tuple):
                    yield _reading(terminal, 0)

    def nullable(self, rule: int) -> bool:
        return self.cost.get(self.start[rule]) == 0

    def tail(self, state: int) -> bool:
        """Whether nothing can be read between `state` and the end of its rule."""
        if state >= GROUPED:
            onward = self._situations.onward(state)
            return onward is not None and self.tail(onward)
        tail = self._tails.get(state)
        if tail is None:
            tail = self._tails[state] = self._only_ends(state)
        return tail

    def _only_ends(self, state: int) -> bool:
        seen, waiting, ends = {state}, [state], False
        for reached in waiting:  # the loop appends to it
            edges = self.edges_of(reached)
            if not edges:
                if reached not in self.final:
                    return False
                ends = True
            for edge in edges:
                if not isinstance(edge, EpsilonEdge):
                    return False
                if edge.to not in seen:
                    seen.add(edge.to)
                    waiting.append(edge.to)
        return ends

    def first_edge(self, state: int) -> Edge | None:
        """Return the first edge of a shortest path to the rule's end; None if it is there."""
        if state >= GROUPED:
            return self._situations.first_edge(state)
        edge = self._best.get(state)
        return EpsilonEdge(self.entry(edge)) if isinstance(edge, GroupEdge) else edge

    def cost_of(self, state: int) -> int | None:
        """Return the fewest bytes to the end of the rule; None if it is unreachable."""
        return self.cost.get(state) if state < GROUPED else self._situations.cost_of(state)

    def shortest_path(self, state: int) -> Iterator[TerminalEdge | int]:
        """Yield a shortest path to the rule's end: terminals, and control tokens by their ids."""
        pending = [(state, 1)]  # with the number of times that each path is walked
        while pending:
            state, times = pending.pop()
            if times > 1:
                pending.append((state, times - 1))
            edge = self.first_edge(state) if times else None
            if edge is None:
                continue
            pending.append((edge.to, 1))
            if isinstance(edge, TerminalEdge):
                yield edge
            elif isinstance(edge, TokenEdge):
                yield min(edge.ids)
            elif isinstance(edge, RuleEdge) and not self.nullable(edge.rule):
                pending.append((self.start[edge.rule], edge.low))

    def _round(self, follow: RuleEdge, done: int) -> int:
        """Return the state after `done` rounds of a repetition. It is built at the first call."""
        if follow.high is None:
            done = min(done, follow.low)
        if (follow, done) not in self._counted:
            state = self._counted[follow, done] = len(self.edges)
            self.edges.append([])
            self._rounds[state] = follow, done
            remaining = RuleEdge(follow.rule, follow.to, max(0, follow.low - done), None)
            cost = self._through(remaining)
            if cost is not None:
                self.cost[state], self._best[state] = cost, remaining
        return self._counted[follow, done]

    def _measure(self) -> None:
        """Set costs by Knuth's generalisation of Dijkstra's algorithm to grammars (1977).

        Raises `InvalidGrammarError` if a terminal is too intricate for its bounds of length.
        """
        reads: TerminalBytes = {}
        if NATIVE is not None:
            if self._measure_in_c(reads):
                return
            self.cost.clear()
            self._best.clear()
            for group in self.groups:
                group.forget()
        into, parts = self._edges_into(reads)
        heap: list[tuple[int, int, int, Edge | None]] = [
            (0, i, state, None) for i, state in enumerate(self.final)
        ]
        heapq.heapify(heap)
        order = len(heap)  # breaks ties: edges have no order
        costs = self.cost
        while heap:
            cost, _, state, edge = heapq.heappop(heap)
            if state in costs:
                continue
            costs[state] = cost
            if edge is not None:
                self._best[state] = edge
            for _, edge, index in parts.get(state, ()):
                self._learn(self.groups[edge.group], index, cost, reads)
            for before, edge, size in into[state]:
                if before not in costs:
                    through = self._through(edge, reads) if size is None else cost + size
                    if through is not None:
                        order += 1
                        heapq.heappush(heap, (through, order, before, edge))
            for before, edge, _ in parts.get(state, ()):
                through = None if before in costs else self._through(edge, reads)
                if through is not None:
                    order += 1
                    heapq.heappush(heap, (through, order, before, edge))

    def _measure_in_c(self, reads: TerminalBytes) -> bool:
        """Do the same in C (`_costs.c`). Returns False if a cost is too large for that."""

        def read(edge: TerminalEdge) -> int | None:
            return self._read((edge.terminal, edge.low, edge.high), reads)

        def parts(edge: GroupEdge) -> list[tuple[int, int | None]]:
            return self._parts_of(self.groups[edge.group], reads)

        def learn(edge: GroupEdge, index: int | None, cost: int) -> None:
            self._learn(self.groups[edge.group], index, cost, reads)

        def cost(edge: GroupEdge) -> int | None:
            return self.groups[edge.group].cost

        calls = read, parts, learn, cost
        edges, final, count = self.edges, [*self.final], len(self.terminals)
        return NATIVE.least_costs(
            edges, self.start, final, count, _KINDS, calls, self.cost, self._best
        )

    def _edges_into(
        self, reads: TerminalBytes
    ) -> tuple[list[list[_EdgeInto]], dict[int, list[_PartOf]]]:
        """Return the edges by the states whose costs they need, and those that read groups by the
        states in which parts and separators begin. Adds all terminals to `reads`."""
        into: list[list[_EdgeInto]] = [[] for _ in self.edges]
        parts: dict[int, list[_PartOf]] = {}
        for state, edges in enumerate(self.edges):
            for edge in edges:
                size: int | None = 0
                if isinstance(edge, TerminalEdge):
                    size = self._read((edge.terminal, edge.low, edge.high), reads)
                    if size is None:
                        continue
                elif isinstance(edge, TokenEdge):
                    size = 1
                elif isinstance(edge, RuleEdge) and edge.low:
                    size = None
                    into[self.start[edge.rule]].append((state, edge, None))
                elif isinstance(edge, GroupEdge):
                    size = None
                    for begin, i in self._parts_of(self.groups[edge.group], reads):
                        parts.setdefault(begin, []).append((state, edge, i))
                into[edge.to].append((state, edge, size))
        return into, parts

    def _parts_of(self, group: Group, reads: TerminalBytes) -> list[tuple[int, int | None]]:
        """Return the states in which the parts of a group begin, each with its index, and that of
        its separator, with None. Adds their terminals to `reads`."""
        parts: list[tuple[int, int | None]] = []
        for i, part in enumerate(group.parts):
            parts.append((self.start[part.rule], i))
            if part.terminal is not None:
                self._read(part.terminal, reads)
        if group.separator is None:
            group.separator_cost = 0
        elif isinstance(group.separator, int):
            parts.append((self.start[group.separator], None))
        else:
            group.separator_cost = self._read(group.separator, reads)
        return parts

    def _read(self, terminal: TerminalBounds, reads: TerminalBytes) -> int | None:
        """Return the fewest bytes of a terminal within its bounds, which are added to `reads`; None
        if it has no such text.

        Raises `InvalidGrammarError` if it is too intricate for these bounds.
        """
        if terminal not in reads:
            number, low, high = terminal
            text = self.terminals[number]
            if isinstance(text, bytes):
                reads[terminal] = len(text)
            elif not low and 0 in text.automaton.final:
                reads[terminal] = 2 * (text.spelling is Spelling.QUOTED)  # no character
            else:
                reads[terminal] = _fewest_within(text.automaton, text.spelling, low, high)
        return reads[terminal]

    def _through(self, edge: Edge, reads: TerminalBytes | None = None) -> int | None:
        """Return the cost of a path that begins with `edge`; None if it is not known yet."""
        after = self.cost.get(edge.to)
        if after is None:
            return None
        match edge:
            case TerminalEdge():
                read = None if reads is None else reads[edge.terminal, edge.low, edge.high]
                return None if read is None else after + read
            case RuleEdge(low=low) if low:
                round_cost = self.cost.get(self.start[edge.rule])
                return None if round_cost is None else after + low * round_cost
            case TokenEdge():
                return after + 1
            case GroupEdge(number):
                read = self.groups[number].cost
                return None if read is None else after + read
        return after

    def _learn(self, group: Group, index: int | None, cost: int, reads: TerminalBytes) -> None:
        """Pass the cost of the rule of a part, or of the separator, on to its group."""
        if index is None:
            group.separator_cost = cost
            return
        terminal = group.parts[index].terminal
        read = 0 if terminal is None else reads[terminal]
        if read is not None:
            group.learn(index, read + cost)


@RESULTS.remembered
def _fewest_within(
    automaton: Automaton, spelling: Spelling, low: int, high: int | None
) -> int | None:
    lengths = lengths_of(automaton, spelling)
    if low:
        lengths.check(low, high)
    inner = lengths.within(0, low, high)
    return None if inner is None else inner + 2 * (spelling is Spelling.QUOTED)


def _reading(terminal: TerminalBounds, to: int) -> TerminalEdge:
    number, low, high = terminal
    return TerminalEdge(number, to, low, high)


def scanner_of(terminal: Terminal | bytes) -> Scanner | LiteralScanner:
    if isinstance(terminal, bytes):
        return LiteralScanner(terminal)
    return Scanner(terminal.automaton, terminal.spelling)
