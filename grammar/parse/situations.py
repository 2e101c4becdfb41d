"""States of a network within its groups: their numbers, their edges, and the costs to the end.

A state's number tells the group and its situation, so nothing has to be kept. The module knows
other states only by the costs that it is given.
"""

from dlm.grammar.parse.construction import Edge, EpsilonEdge, RuleEdge, TerminalEdge
from dlm.grammar.parse.groups import AFTER, AT, WITHIN, Group
from dlm.grammar.regex.characters import bits

GROUPED = 1 << 40  # states from this number on are situations of groups
_COSTS = 1 << 16  # situations whose costs are cached
_made = tuple.__new__  # of a named tuple, in two thirds of the time


class Situations:
    """The situations of a network's groups."""

    def __init__(self, groups: list[Group], start: list[int], cost: dict[int, int]):
        """`start` holds the first state of each rule. `cost` maps states to the fewest bytes to the
        end of their rule; it may be filled later."""
        self._groups, self._start, self._cost = groups, start, cost
        self._costs: dict[int, int | None] = {}  # of situations

    def begin(self, number: int) -> int:
        """Return the state before all parts of a group."""
        return GROUPED + number + AT * len(self._groups)

    def edges_of(self, state: int) -> list[Edge]:
        """Return the edges of a situation."""
        number, phase, used, count = self._situation(state)
        group = self._groups[number]
        if phase == AT:
            return self._part_edges(number, used, count, group.following(used, count))
        if phase >= WITHIN:
            return [self._rest_edge(state, number, phase)]
        edges: list[Edge] = [EpsilonEdge(group.onward)] if group.ends(used, count) else []
        if group.following(used, count):
            edges.append(self._separator_edge(state, number))
        return edges

    def onward(self, state: int) -> int | None:
        """Return the state after the group if nothing more of it can be read; None if not."""
        number, phase, used, count = self._situation(state)
        group = self._groups[number]
        if phase != AFTER or group.following(used, count) or not group.ends(used, count):
            return None
        return group.onward

    def _situation(self, state: int) -> tuple[int, int, int, int]:
        """Return the number of the group, and the situation, of a state."""
        code, number = divmod(state - GROUPED, len(self._groups))
        group = self._groups[number]
        code, phase = divmod(code, WITHIN + len(group.parts))
        used, count = divmod(code, group.counts)
        return number, phase, used, count

    def _part_edges(self, number: int, used: int, count: int, indices: int) -> list[Edge]:
        """Return the edges that read one of the parts, or the terminal that it begins with."""
        group, by_phase = self._groups[number], len(self._groups)
        by_count = by_phase * (WITHIN + len(group.parts))
        by_used = by_count * group.counts
        again, lowest = used & group.again, GROUPED + number
        counted = lowest + by_count * group.counted(count)
        edges: list[Edge] = []
        for i in bits(indices):
            if again >> i & 1:
                to = lowest + by_used * used + by_count * count
            else:
                to = counted + by_used * (used | group.adds[i])
            part = group.parts[i]
            if part.terminal is None:
                edges.append(RuleEdge(part.rule, to + by_phase * AFTER))
            else:
                terminal, low, high = part.terminal
                to += by_phase * (WITHIN + i)
                edges.append(_made(TerminalEdge, (terminal, to, low, high)))
        return edges

    def _rest_edge(self, state: int, number: int, phase: int) -> RuleEdge:
        """Return the edge that reads what follows the terminal of a part."""
        to = state + (AFTER - phase) * len(self._groups)
        return RuleEdge(self._groups[number].parts[phase - WITHIN].rule, to)

    def _separator_edge(self, state: int, number: int) -> Edge:
        to, separator = state + (AT - AFTER) * len(self._groups), self._groups[number].separator
        if separator is None:
            return EpsilonEdge(to)
        if isinstance(separator, int):
            return RuleEdge(separator, to)
        terminal, low, high = separator
        return TerminalEdge(terminal, to, low, high)

    def cost_of(self, state: int) -> int | None:
        """Return the fewest bytes to the end of the rule; None if it is unreachable."""
        if state not in self._costs:
            if len(self._costs) >= _COSTS:
                self._costs.clear()
            self._costs[state] = self._measured(state)
        return self._costs[state]

    def first_edge(self, state: int) -> Edge | None:
        """Return the first edge of a shortest path to the rule's end; None if there is none."""
        number, phase, used, count = self._situation(state)
        group = self._groups[number]
        if phase >= WITHIN:
            return self._rest_edge(state, number, phase)
        shortest = group.shortest(used, count, phase == AT)
        if shortest is None:
            return None
        if phase == AT:
            return self._part_edges(number, used, count, 1 << shortest.first)[0]
        if shortest.number:
            return self._separator_edge(state, number)
        return EpsilonEdge(group.onward)

    def _measured(self, state: int) -> int | None:
        number, phase, used, count = self._situation(state)
        group = self._groups[number]
        rule = group.parts[phase - WITHIN].rule if phase >= WITHIN else None
        inner = 0 if rule is None else self._cost.get(self._start[rule])
        shortest, end = group.shortest(used, count, phase == AT), self._cost.get(group.onward)
        if shortest is None or inner is None or end is None:
            return None
        cost = group.with_separators(shortest, shortest.number - (phase == AT))
        return None if cost is None else inner + cost + end
