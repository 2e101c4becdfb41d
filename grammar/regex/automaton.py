"""A regex as a deterministic automaton, and that as rules that read every text in one way only.

Written as it stands, a regex like `(a*)*b` matches a text in very many ways, and a parser follows
them all. Its automaton knows one: each rule reads some characters and hands over to another.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import groupby, pairwise, product
from typing import Any

from dlm.grammar.regex.pattern import (
    CHARACTERS,
    Ahead,
    Chars,
    Ranges,
    looks_ahead,
    minus,
    union,
    without,
)
from dlm.grammar.rules.ast import Either, Node, Repeat, Row, text

MOST_STATES = 4096  # of the automaton; while it is not deterministic yet, a few times as many

_FEW_STATES = 512  # with more, it takes too long to find out which are alike

Edges = dict[int, Ranges]  # characters, by the state that they lead to


class TooLargeError(Exception):
    """An automaton of more states than anybody wants to compile."""


class Automaton:
    """Begins in state 0. Every state has a way to a final one, but for the first of none."""

    def __init__(self, edges: list[Edges], final: set[int]):
        self.edges, self.final = edges, final

    @classmethod
    def of(cls, node: Node) -> "Automaton":
        """Of a parsed pattern. Raises `TooLargeError`."""
        edges, final = _determined(_Builder(node))
        return _minimal(edges, final)

    @classmethod
    def of_length(cls, low: int, high: int | None) -> "Automaton":
        """Of texts of so many characters; those that are too many to count are too large `both`."""
        low, last = (min(count, MOST_STATES + 1) for count in (low, low if high is None else high))
        edges: list[Edges] = [{state + 1: CHARACTERS} for state in range(last)]
        edges.append({last: CHARACTERS} if high is None else {})
        return cls(edges, set(range(low, last + 1)))

    def both(self, other: "Automaton") -> "Automaton":
        """Of what both match: with no final state, if that is nothing. Raises `TooLargeError`."""
        numbers, work = {(0, 0): 0}, [(0, 0)]
        edges: list[Edges] = []
        for one, two in work:  # it grows meanwhile
            found: Edges = {}
            for (a, ranges), (b, others) in product(
                self.edges[one].items(), other.edges[two].items()
            ):
                if shared := _shared(ranges, others):
                    if (a, b) not in numbers:
                        numbers[a, b] = len(work)
                        work.append((a, b))
                    found[numbers[a, b]] = shared
            edges.append(found)
            if len(work) > MOST_STATES:
                raise TooLargeError
        ends = {n for (a, b), n in numbers.items() if a in self.final and b in other.final}
        return _minimal(*_alive(edges, ends))

    def opposite(self) -> "Automaton":
        """Of all other texts."""
        sink = len(self.edges)
        edges: list[Edges] = []
        for found in [*self.edges, {}]:
            rest = without(part for ranges in found.values() for part in ranges)
            edges.append({**found, sink: rest} if rest else found)
        return _minimal(*_alive(edges, set(range(sink + 1)) - self.final))

    def ebnf(self, name: str, spell: Callable[[str], str] = str) -> str:
        """Rules for the same texts, the first of them called `name`.

        `spell` says how a character is written: all but some ASCII characters as they are.
        """
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
                options = [self._option(name, spell, passed, *edge) for edge in edges.items()]
                options += ['""'] * (state in self.final)
                rules.append(f"{self._named(name, state)} ::= {' | '.join(options)}")
        return "\n".join(rules)

    def _named(self, name: str, state: int) -> str:
        return f"{name}_{state}" if state else name

    def _option(
        self, name: str, spell: Callable[[str], str], passed: set[int], to: int, ranges: Ranges
    ) -> str:
        """Characters up to a state that has a rule, and that rule."""
        parts = [ranges]
        while to in passed:
            ((to, ranges),) = self.edges[to].items()
            parts.append(ranges)
        written = list(_spelled(parts, spell))
        ends = to in self.final and not self.edges[to]
        return " ".join(written if ends else [*written, self._named(name, to)])


def _spelled(parts: list[Ranges], spell: Callable[[str], str]) -> Iterator[str]:
    """Character classes, and literals where there is no choice."""
    for alone, group in groupby(parts, key=lambda ranges: ranges[0][0] == ranges[-1][1]):
        if alone:
            yield str(text("".join(spell(chr(ranges[0][0])) for ranges in group)))
        else:
            yield from (one_of(ranges, spell) for ranges in group)


def one_of(ranges: Ranges, spell: Callable[[str], str]) -> str:
    """Characters, each as it is spelled; no long spelling unless there is no other."""
    ascii_ = [chr(p) for low, high in ranges for p in range(low, min(high, 0x7F) + 1)]
    spelled = {character: spell(character) for character in ascii_ if spell(character) != character}
    plain = minus(ranges, map(ord, spelled))
    options = [Chars(plain)] if plain else []
    shortest = 2 if plain else min(map(len, spelled.values()))
    options += [text(spelling) for spelling in spelled.values() if len(spelling) <= shortest]
    return str(options[0] if len(options) == 1 else Either(tuple(options)))


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
                return self._row(node.parts, state)
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

    def _row(self, parts: tuple[Node, ...], state: int) -> int:
        """What looks ahead looks at all that follows it, also behind the group that it is in."""
        for i, part in enumerate(parts):
            rest = parts[i + 1 :]
            if isinstance(part, Ahead):
                return self._join(_watched(part, Row(rest)), state)
            if isinstance(part, Row | Either) and rest and looks_ahead(part):
                options = part.options if isinstance(part, Either) else (part,)
                unfolded = (Row((*_parts(option), *rest)) for option in options)
                return self._add(Either(tuple(unfolded)), state)
            state = self._add(part, state)
        return state

    def _join(self, automaton: Automaton, state: int) -> int:
        """Add what is deterministic by now."""
        states, end = [self._new() for _ in automaton.edges], self._new()
        self.skips[state].append(states[0])
        for begin, edges in zip(states, automaton.edges, strict=True):
            self.moves[begin] += [(ranges, states[to]) for to, ranges in edges.items()]
        for final in automaton.final:
            self.skips[states[final]].append(end)
        return end

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


def _parts(node: Node) -> tuple[Node, ...]:
    return node.parts if isinstance(node, Row) else (node,)


def _watched(ahead: Ahead, rest: Row) -> Automaton:
    """Of the `rest` of a pattern, as far as `ahead` lets it pass."""
    seen = Automaton.of(ahead.part)
    return Automaton.of(rest).both(seen if ahead.wanted else seen.opposite())


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


def _shared(ones: Ranges, others: Ranges) -> Ranges:
    """The characters of both."""
    pairs = ((max(a, c), min(b, d)) for (a, b), (c, d) in product(ones, others))
    return union((low, high) for low, high in pairs if low <= high)


def _alive(edges: list[Edges], final: set[int]) -> tuple[list[Edges], set[int]]:
    """The states with a way to a final one, and the first."""
    into: dict[int, set[int]] = {}
    for state, found in enumerate(edges):
        for to in found:
            into.setdefault(to, set()).add(state)
    alive, work = set(final), list(final)
    while work:
        new = into.get(work.pop(), set()) - alive
        alive |= new
        work += new
    kept = sorted({0} | alive)
    numbers = {state: number for number, state in enumerate(kept)}
    return [
        {numbers[to]: ranges for to, ranges in edges[state].items() if to in alive}
        for state in kept
    ], {numbers[state] for state in final}


def _minimal(edges: list[Edges], final: set[int]) -> Automaton:
    """States that nothing can tell apart become one (Moore), if they are not too many."""
    if len(edges) > _FEW_STATES:
        return Automaton(edges, final)
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
