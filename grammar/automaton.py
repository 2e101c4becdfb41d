"""A regex as a deterministic automaton, and that as rules that read every text in one way only.

Written as it stands, a regex like `(a*)*b` matches a text in very many ways, and a parser follows
them all. Its automaton knows one: each rule reads some characters and hands over to another.
"""

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from dlm.grammar.pattern import Chars, Ranges, union
from dlm.grammar.rules import Either, Node, Repeat, Row, text

MOST_STATES = 4096  # of the automaton; while it is not deterministic yet, a few times as many

_FEW_STATES = 512  # with more, it takes too long to find out which are alike

Edges = dict[int, Ranges]  # characters, by the state that they lead to


class TooLargeError(Exception):
    """An automaton of more states than anybody wants to compile."""


class Automaton:
    """Begins in state 0, whatever it reads next. Every state has a way to a final one."""

    def __init__(self, edges: list[Edges], final: set[int]):
        self.edges, self.final = edges, final

    @classmethod
    def of(cls, node: Node) -> "Automaton":
        """Of a parsed pattern. Raises `TooLargeError`."""
        edges, final = _determined(_Builder(node))
        return _minimal(edges, final) if len(edges) <= _FEW_STATES else cls(edges, final)

    def ebnf(self, name: str) -> str:
        """Rules for the same texts, the first of them called `name`."""
        into = Counter(to for edges in self.edges for to in edges)
        passed = {  # states of one way in and one way on, which need no rule of their own
            state
            for state, edges in enumerate(self.edges)
            if state and len(edges) == into[state] == 1 and state not in self.final
        }
        rules = []
        for state, edges in enumerate(self.edges):
            ends = state in self.final and not edges
            if state not in passed and not (state and ends):
                options = [self._option(name, passed, *edge) for edge in edges.items()]
                options += ['""'] * (state in self.final)
                rules.append(f"{self._named(name, state)} ::= {' | '.join(options)}")
        return "\n".join(rules)

    def _named(self, name: str, state: int) -> str:
        return f"{name}_{state}" if state else name

    def _option(self, name: str, passed: set[int], to: int, ranges: Ranges) -> str:
        """Characters up to a state that has a rule, and that rule."""
        parts = [ranges]
        while to in passed:
            ((to, ranges),) = self.edges[to].items()
            parts.append(ranges)
        written = list(_spelled(parts))
        ends = to in self.final and not self.edges[to]
        return " ".join(written if ends else [*written, self._named(name, to)])


def _spelled(parts: list[Ranges]) -> Iterator[str]:
    """Character classes, and literals where there is no choice."""
    literal = ""
    for ranges in parts:
        low, high = ranges[0]
        if len(ranges) == 1 and low == high:
            literal += chr(low)
            continue
        if literal:
            yield str(text(literal))
        literal = ""
        yield str(Chars(ranges))
    if literal:
        yield str(text(literal))


class _Builder:
    """Thompson's construction: states with edges, some of which read nothing."""

    def __init__(self, node: Node):
        self.moves: list[list[tuple[Ranges, int]]] = [[]]
        self.skips: list[list[int]] = [[]]
        self.end = self._add(node, 0)

    def _new(self) -> int:
        if len(self.moves) >= 4 * MOST_STATES:
            raise TooLargeError
        self.moves.append([])
        self.skips.append([])
        return len(self.moves) - 1

    def _add(self, node: Node, state: int) -> int:
        """Add what `node` matches behind `state`; says where it ends."""
        match node:
            case Chars():
                end = self._new()
                self.moves[state].append((node.ranges, end))
                return end
            case Row():
                for part in node.parts:
                    state = self._add(part, state)
                return state
            case Either():
                end = self._new()
                for option in node.options:
                    begin = self._new()
                    self.skips[state].append(begin)
                    self.skips[self._add(option, begin)].append(end)
                return end
            case Repeat():
                return self._repeat(node, state)
        raise TypeError(f"{node} is no part of a pattern")

    def _repeat(self, node: Repeat, state: int) -> int:
        for _ in range(node.low):
            state = self._add(node.part, state)
        if node.high is None:
            loop, end = self._new(), self._new()
            self.skips[state].append(loop)
            self.skips[self._add(node.part, loop)].append(loop)
            self.skips[loop].append(end)
            return end
        end = self._new()
        for _ in range(node.high - node.low):
            self.skips[state].append(end)
            state = self._add(node.part, state)
        self.skips[state].append(end)
        return end


def _determined(built: _Builder) -> tuple[list[Edges], set[int]]:
    """The subset construction: edges, and the final states."""
    start = _closed(built, {0})
    numbers, work, edges = {start: 0}, [start], []
    for states in work:  # it grows meanwhile
        if len(work) > MOST_STATES:
            raise TooLargeError
        found: dict[frozenset[int], list[tuple[int, int]]] = {}
        moves = [move for state in sorted(states) for move in built.moves[state]]
        for low, high, to in _apart(moves):
            found.setdefault(_closed(built, to), []).append((low, high))
        for reached in found:
            if reached not in numbers:
                numbers[reached] = len(work)
                work.append(reached)
        edges.append({numbers[reached]: union(parts) for reached, parts in found.items()})
    return edges, {number for states, number in numbers.items() if built.end in states}


def _closed(built: _Builder, states: set[int]) -> frozenset[int]:
    """With all that is reached without a character."""
    seen, work = set(states), list(states)
    while work:
        new = set(built.skips[work.pop()]) - seen
        seen |= new
        work += new
    return frozenset(seen)


def _apart(moves: list[tuple[Ranges, int]]) -> Iterator[tuple[int, int, set[int]]]:
    """Ranges that do not overlap, each with all the states that it leads to."""
    begins: dict[int, Counter[int]] = {}
    for ranges, to in moves:
        for low, high in ranges:
            begins.setdefault(low, Counter())[to] += 1
            begins.setdefault(high + 1, Counter())[to] -= 1
    here: Counter[int] = Counter()
    for low, behind in pairwise(sorted(begins)):
        here.update(begins[low])
        if to := {state for state, count in here.items() if count}:
            yield low, behind - 1, to


def _minimal(edges: list[Edges], final: set[int]) -> Automaton:
    """States that nothing can tell apart become one (Moore)."""
    kinds = [int(state in final) for state in range(len(edges))]
    count = 0
    while len(set(kinds)) > count:
        count = len(set(kinds))
        seen: dict[Any, int] = {}
        told = [(kinds[s], frozenset(_merged(edges[s], kinds).items())) for s in range(len(edges))]
        kinds = [seen.setdefault(each, len(seen)) for each in told]
    first = {kind: state for state, kind in reversed(list(enumerate(kinds)))}
    return Automaton(
        [_merged(edges[first[kind]], kinds) for kind in range(len(first))],
        {kinds[state] for state in final},
    )


def _merged(edges: Edges, kinds: list[int]) -> Edges:
    """By the kinds of the states that they lead to."""
    merged: dict[int, list[tuple[int, int]]] = {}
    for to, ranges in edges.items():
        merged.setdefault(kinds[to], []).extend(ranges)
    return {kind: union(parts) for kind, parts in merged.items()}
