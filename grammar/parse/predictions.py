"""What a network state predicts: the terminals, control tokens and rules that may come next.

All paths that read nothing are followed in advance, within the state's rule and from the end of a
rule to that of its caller. So the predictions of a state do not depend on the callers, and a parser
state is made of those of a few network states. The module knows no text.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from dlm.grammar.parse.construction import TerminalEdge
from dlm.grammar.parse.network import Network

_MOST_EDGES = 1 << 16  # edges of all predictions that are kept


@dataclass(slots=True)
class Prediction:
    """What may come next in one rule."""

    reads: list[TerminalEdge] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)  # states with edges that read control tokens
    calls: list[tuple[int, int]] = field(default_factory=list)  # rules, and the states after them
    ends: bool = False  # the rule may end with nothing more
    work: int = 0  # edges followed


class Predictions:
    """The predictions of the states of one network, made when they are asked for."""

    def __init__(self, network: Network, may_be_empty: Callable[[TerminalEdge], bool]):
        """`may_be_empty` is whether an empty text of the edge's terminal is enough."""
        self._network, self._may_be_empty = network, may_be_empty
        self._known: dict[int, Prediction] = {}
        self._edges = 0  # edges of all known predictions

    def after(self, state: int) -> Prediction:
        """Return the prediction of a network state."""
        prediction = self._known.get(state)
        if prediction is None:
            prediction = self._made(state)
            if self._edges >= _MOST_EDGES:
                self._known.clear()
                self._edges = 0
            self._known[state] = prediction
            self._edges += 1 + len(prediction.reads) + len(prediction.calls)
        return prediction

    def of_rule(self, rule: int) -> Prediction:
        """Return the prediction at the beginning of a rule."""
        return self.after(self._network.start[rule])

    def _made(self, state: int) -> Prediction:
        network, prediction = self._network, Prediction()
        reads, calls = prediction.reads, prediction.calls
        pending, seen = [state], {state}
        while pending:
            state = pending.pop()
            edges = network.edges_of(state)
            reached = edges.epsilons
            if edges.tokens:
                prediction.tokens.append(state)
            if state in network.final:
                prediction.ends = True
            if edges.reads:
                reads += edges.reads
                empty = [edge.to for edge in edges.reads if self._may_be_empty(edge)]
                if empty:
                    reached = reached + empty
            for edge in edges.follows:
                if network.nullable(edge.rule) and not edge.round:
                    reached = [*reached, edge.to]
                if network.tail(edge.to):  # a tail call: the rule ends together with its caller
                    reached = [*reached, network.start[edge.rule]]
                else:
                    calls.append((edge.rule, edge.to))
            prediction.work += len(reached) + len(edges.reads)
            for to in reached:
                if to not in seen:
                    seen.add(to)
                    pending.append(to)
        prediction.work += len(calls)
        return prediction
