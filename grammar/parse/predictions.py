"""Predictions of network states: the terminals, control tokens and rules that may come next.

The predictions of a rule are those of its beginning and of all states that are reached from there
with nothing read. They do not depend on the rule's callers, so parser states share them. The module
knows no text.
"""

from dataclasses import dataclass, field

from dlm.grammar.limits import LazyDict
from dlm.grammar.parse.construction import TerminalEdge
from dlm.grammar.parse.network import Network
from dlm.grammar.parse.scanner import LiteralScanner, Scanner

_MOST_EDGES = 1 << 16  # edges of all predictions that are kept


@dataclass(slots=True)
class Prediction:
    """Edges that may come next in one rule, from one or several of its states."""

    reads: list[TerminalEdge] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)  # states with edges that read control tokens
    calls: list[tuple[int, int]] = field(default_factory=list)  # rules, and the states after them
    onward: list[int] = field(default_factory=list)  # other states, reached with nothing read
    ends: bool = False  # the rule may end here
    size: int = 0  # edges and states


class Predictions:
    """The predictions of one network, made when they are asked for."""

    def __init__(self, network: Network, scanners: LazyDict[Scanner | LiteralScanner]):
        """`scanners` holds those of the network's terminals."""
        self._network = network
        self._may_be_empty = LazyDict(lambda number: scanners[number].final[scanners[number].start])
        self._states: dict[int, Prediction] = {}
        self._rules: dict[int, Prediction] = {}
        self._size = 0  # edges of all of them

    def of_state(self, state: int) -> Prediction:
        """Return the prediction of one state."""
        prediction = self._states.get(state)
        if prediction is None:
            prediction = self._read(state)
            self._keep(self._states, state, prediction)
        return prediction

    def of_rule(self, rule: int) -> Prediction:
        """Return the prediction of a rule's beginning, with all states reached from there."""
        whole = self._rules.get(rule)
        if whole is None:
            whole, seen = Prediction(), {self._network.start[rule]}
            whole.onward += seen
            for state in whole.onward:  # the loop appends to it
                prediction = self.of_state(state)
                whole.reads += prediction.reads
                whole.tokens += prediction.tokens
                whole.calls += prediction.calls
                whole.ends |= prediction.ends
                whole.size += prediction.size
                reached = [to for to in prediction.onward if to not in seen]
                seen.update(reached)
                whole.onward += dict.fromkeys(reached)
            self._keep(self._rules, rule, whole)
        return whole

    def _keep(self, kept: dict[int, Prediction], number: int, prediction: Prediction) -> None:
        if self._size >= _MOST_EDGES:
            self._states.clear()
            self._rules.clear()
            self._size = 0
        kept[number] = prediction
        self._size += 1 + prediction.size

    def _read(self, state: int) -> Prediction:
        network, edges = self._network, self._network.edges_of(state)
        calls, onward, may_be_empty = list[tuple[int, int]](), [*edges.epsilons], self._may_be_empty
        onward += [to for number, to, low, _ in edges.reads if not low and may_be_empty[number]]
        for edge in edges.follows:
            if network.nullable(edge.rule) and not edge.round:
                onward.append(edge.to)
            if network.tail(edge.to):  # a tail call: the rule ends together with its caller
                onward.append(network.start[edge.rule])
            else:
                calls.append((edge.rule, edge.to))
        size = len(edges.reads) + len(calls) + len(onward)
        tokens = [state] if edges.tokens else []
        return Prediction(edges.reads, tokens, calls, onward, state in network.final, size)
