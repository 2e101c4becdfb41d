"""Predictions of network states: the terminals, control tokens and rules that may come next.

The predictions of a rule are those of its beginning and of all states that are reached from there
with nothing read. They do not depend on the rule's callers, so parser states share them. The module
knows no text.
"""

from typing import NamedTuple

from dlm.grammar.limits import LazyDict
from dlm.grammar.parse.construction import EpsilonEdge, RuleEdge, TerminalEdge, TokenEdge
from dlm.grammar.parse.network import Network
from dlm.grammar.parse.scanner import LiteralScanner, Scanner

_MOST_EDGES = 1 << 16  # edges of all predictions that are kept
_made = tuple.__new__  # of a named tuple, in two thirds of the time


class Prediction(NamedTuple):
    """Edges that may come next in one rule, from one or several of its states."""

    reads: list[TerminalEdge]
    tokens: list[int]  # states with edges that read control tokens
    calls: list[tuple[int, int]]  # rules, and the states after them
    onward: list[int]  # other states, reached with nothing read
    ends: bool  # the rule may end here
    size: int  # edges and states


class Predictions:
    """The predictions of one network, made when they are asked for.

    The extension keeps its own: it calls `read` and `read_rule`.
    """

    def __init__(self, network: Network, scanners: LazyDict[Scanner | LiteralScanner]):
        """`scanners` holds those of the network's terminals."""
        self._network, self._scanners = network, scanners
        self._states: dict[int, Prediction] = {}
        self._rules: dict[int, Prediction] = {}
        self._size = 0  # edges of all of them

    def of_state(self, state: int) -> Prediction:
        """Return the prediction of one state."""
        prediction = self._states.get(state)
        if prediction is None:
            prediction = self.read(state)
            self._keep(self._states, state, prediction)
        return prediction

    def of_rule(self, rule: int) -> Prediction:
        """Return the prediction of a rule's beginning, with all states reached from there."""
        prediction = self._rules.get(rule)
        if prediction is None:
            prediction = self.read_rule(rule)
            self._keep(self._rules, rule, prediction)
        return prediction

    def read_rule(self, rule: int) -> Prediction:
        """Make the prediction of a rule's beginning, which is not kept; its states' are."""
        start = self._network.start[rule]
        prediction = self.of_state(start)
        return self._with_all(start) if prediction.onward else prediction

    def _with_all(self, start: int) -> Prediction:
        """Return the prediction of `start` with all states reached from there."""
        reads: list[TerminalEdge] = []
        tokens: list[int] = []
        calls: list[tuple[int, int]] = []
        states, ends, size = [start], False, 0
        seen = {start}
        for state in states:  # the loop appends to it
            prediction = self.of_state(state)
            reads += prediction.reads
            tokens += prediction.tokens
            calls += prediction.calls
            ends |= prediction.ends
            size += prediction.size
            for to in prediction.onward:
                if to not in seen:
                    seen.add(to)
                    states.append(to)
        return Prediction(reads, tokens, calls, states, ends, size)

    def _keep(self, kept: dict[int, Prediction], number: int, prediction: Prediction) -> None:
        if self._size >= _MOST_EDGES:
            self._states.clear()
            self._rules.clear()
            self._size = 0
        kept[number] = prediction
        self._size += 1 + prediction.size

    def read(self, state: int) -> Prediction:
        """Make the prediction of one state, which is not kept."""
        network, scanners = self._network, self._scanners
        reads: list[TerminalEdge] = []
        tokens: list[int] = []
        calls: list[tuple[int, int]] = []
        onward: list[int] = []
        after_nothing: list[int] = []
        follows: list[RuleEdge] = []
        for edge in network.edges_of(state):
            if isinstance(edge, TerminalEdge):
                terminal, to, low, _ = edge
                reads.append(edge)
                if not low and (scanner := scanners[terminal]).final[scanner.start]:
                    after_nothing.append(to)
            elif isinstance(edge, EpsilonEdge):
                onward.append(edge.to)
            elif isinstance(edge, TokenEdge):
                tokens = [state]
            elif isinstance(edge, RuleEdge) and edge.once:
                follows.append(edge)
            else:
                onward.append(network.entry(edge))
        onward += after_nothing
        for rule, to, _, _, is_round in follows:
            if not is_round and network.nullable(rule):
                onward.append(to)
            if network.tail(to):  # a tail call: the rule ends together with its caller
                onward.append(network.start[rule])
            else:
                calls.append((rule, to))
        size = len(reads) + len(calls) + len(onward)
        return _made(Prediction, (reads, tokens, calls, onward, state in network.final, size))
