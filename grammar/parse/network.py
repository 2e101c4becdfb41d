"""A grammar as a recursive transition network, and the shortest way out of each of its states.

Every rule is a finite automaton over bytes, whose edges may call other rules. xgrammar does not say
how far a state is from its rule's end; this does. Knows no text and no vocabulary.
"""

import heapq
from dataclasses import dataclass

_NICE = b" a0"  # what a witness is spelled with, if there is a choice


@dataclass(frozen=True, slots=True)
class Bytes:
    """One byte of `low` to `high`."""

    low: int
    high: int
    to: int


@dataclass(frozen=True, slots=True)
class Tokens:
    """One token by its id: one of `ids`, or one that is none of them."""

    ids: frozenset[int]
    listed: bool
    to: int

    def takes(self, token: int) -> bool:
        return (token in self.ids) is self.listed


@dataclass(frozen=True, slots=True)
class Call:
    """A whole `rule`, at least `least` times; `most` is None without a bound.

    It is `loose` where the matcher is not told of `most`: it would take a mask for every round.
    """

    rule: int
    to: int
    least: int = 1
    most: int | None = 1
    loose: bool = False

    @property
    def once(self) -> bool:
        return self.least == self.most == 1


@dataclass(frozen=True, slots=True)
class Skip:
    to: int


Edge = Bytes | Tokens | Call | Skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """All edges of one state."""

    bytes: list[Bytes]
    tokens: list[Tokens]
    calls: list[Call]  # of a rule, once
    skips: list[int]


class Network:
    """States are numbered; each belongs to one rule. `cost` counts bytes, a named token as one.

    A byte is at most a token, so a cost in bytes bounds what it takes in tokens.
    """

    def __init__(self, edges: list[list[Edge]], start: list[int], final: set[int], root: int):
        """`start[r]` is where rule `r` begins, `final` where rules end, `root` the first rule."""
        self.edges, self.start, self.final, self.root = edges, start, final, root
        self.cost: dict[int, int] = {}  # to the end of the state's rule; no key: there is no way
        self._way: dict[int, Edge] = {}  # a first edge of such a way
        self._counted: dict[tuple[Call, int], int] = {}
        self._rounds: dict[int, tuple[Call, int]] = {}  # counted states whose edges are not made
        self._rooms: dict[int, int] = {}  # rounds that may follow, of loose repetitions
        self._shapes: dict[int, Shape] = {}
        self._tails: dict[int, bool] = {}
        self._measure()

    @property
    def size(self) -> int:
        """States; there are about as many edges."""
        return len(self.edges)

    def counted(self, call: Call, done: int) -> int:
        """The state after `done` rounds of a repetition; such states are made as they are met."""
        if call.most is None:
            done = min(done, call.least)
        if (call, done) not in self._counted:
            state = self._counted[call, done] = len(self.edges)
            self.edges.append([])
            self._rounds[state] = call, done
            if call.loose and call.most is not None:
                self._rooms[state] = call.most - done
            rounds = max(0, call.least - done)
            rest = self._through(Call(call.rule, call.to, rounds, None))
            if rest is not None:
                self.cost[state] = rest
                self._way[state] = Call(call.rule, call.to, rounds, None)
        return self._counted[call, done]

    def shape(self, state: int) -> "Shape":
        """The edges of a state, by what they are; a repetition is a way into its first round."""
        shape = self._shapes.get(state)
        if shape is None:
            edges = self._out(state)
            calls = [edge for edge in edges if isinstance(edge, Call)]
            shape = self._shapes[state] = Shape(
                bytes=[edge for edge in edges if isinstance(edge, Bytes)],
                tokens=[edge for edge in edges if isinstance(edge, Tokens)],
                calls=[call for call in calls if call.once],
                skips=[edge.to for edge in edges if isinstance(edge, Skip)]
                + [self.counted(call, 0) for call in calls if not call.once],
            )
        return shape

    def _out(self, state: int) -> list[Edge]:
        if state in self._rounds:
            call, done = self._rounds.pop(state)
            if call.most is None or done < call.most:
                self.edges[state].append(Call(call.rule, self.counted(call, done + 1)))
            if done >= call.least:
                self.edges[state].append(Skip(call.to))
        return self.edges[state]

    def nullable(self, rule: int) -> bool:
        return self.cost.get(self.start[rule]) == 0

    def room(self, state: int) -> int | None:
        """How many rounds of a loose repetition may follow; None: the state is not in one."""
        return self._rooms.get(state)

    def tail(self, state: int) -> bool:
        """Nothing is left of the state's rule, not even a bound."""
        if self.room(state) is not None:
            return False
        if state not in self._tails:
            self._tails[state] = False  # where skips go in a circle
            edges = self._out(state)
            skips = all(isinstance(edge, Skip) and self.tail(edge.to) for edge in edges)
            self._tails[state] = skips if edges else state in self.final
        return self._tails[state]

    def way(self, state: int) -> list[bytes | int]:
        """A shortest completion of the state's rule: bytes, and ids of tokens that are named."""
        said: list[bytes | int] = []
        due = [state]
        while due:
            state = due.pop()
            edge = self._nicest(state)
            if edge is None:
                continue
            due.append(edge.to)
            if isinstance(edge, Bytes):
                nice = (byte for byte in _NICE if edge.low <= byte <= edge.high)
                said.append(bytes([next(nice, edge.low)]))
            elif isinstance(edge, Tokens):
                said.append(min(edge.ids))
            elif isinstance(edge, Call):
                due += [self.start[edge.rule]] * edge.least
        return said

    def _nicest(self, state: int) -> Edge | None:
        """The first edge of a shortest way, if possible over a byte that reads well."""
        best = self._way.get(state)
        if isinstance(best, Bytes):
            for byte in _NICE:
                for edge in self.edges[state]:
                    if (
                        isinstance(edge, Bytes)
                        and edge.low <= byte <= edge.high
                        and self.cost.get(edge.to) == self.cost[best.to]
                    ):
                        return edge
        return best

    def _measure(self) -> None:
        """Knuth's generalisation of Dijkstra's algorithm to context-free grammars (1977)."""
        into: dict[int, list[tuple[int, Edge]]] = {}  # edges by the states that they wait for
        for state, edges in enumerate(self.edges):
            for edge in edges:
                into.setdefault(edge.to, []).append((state, edge))
                if isinstance(edge, Call) and edge.least:
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
                self._way[state] = edge
            for before, edge in into.get(state, ()):
                known = None if before in self.cost else self._through(edge)
                if known is not None:
                    order += 1
                    heapq.heappush(heap, (known, order, before, edge))

    def _through(self, edge: Edge) -> int | None:
        """The cost of a way over `edge`, once it is known."""
        rest = self.cost.get(edge.to)
        if rest is None:
            return None
        if isinstance(edge, Call) and edge.least:
            each = self.cost.get(self.start[edge.rule])
            return None if each is None else rest + edge.least * each
        if isinstance(edge, Tokens) and not edge.listed:
            return None  # which token it would be is not known here
        return rest + isinstance(edge, Bytes | Tokens)
