"""A walk over the states of all terminals, which fills caches of masks ahead of the texts."""

from collections import deque

from dlm.grammar.limits import LazyDict, Meter
from dlm.grammar.parse.network import Network
from dlm.grammar.parse.terminal_tokens import TerminalTokens

_BEGUN = 100  # units of work for a new terminal
_EDGES = 64  # edges visited for a unit of work


class Exploration:
    """A breadth-first walk over the states of all terminals except literals, to fill caches."""

    def __init__(self, network: Network, tokens: LazyDict[TerminalTokens], meter: Meter):
        self._tokens, self._meter = tokens, meter
        self._bounded: dict[int, bool] = {}  # by terminal: an edge bounds its length
        for edge in network.reads():
            if not isinstance(network.terminals[edge.terminal], bytes):
                bounded = (edge.low, edge.high) != (0, None)
                self._bounded[edge.terminal] = bounded or self._bounded.get(edge.terminal, False)
        self._todo: deque[tuple[int, int | None]] = deque(
            (terminal, None) for terminal in self._bounded
        )
        self._met: set[tuple[int, int]] = set()
        meter.add(sum(map(len, network.edges)) // _EDGES)

    def __bool__(self) -> bool:
        """Whether states are left to explore."""
        return bool(self._todo)

    def advance(self) -> None:
        """Begin a terminal, or explore one state. Raises `Unfinished`: then call it again."""
        terminal, state = self._todo[0]
        if state is None:
            self._meter.add(_BEGUN)
            onward = [self._tokens[terminal].start]
        else:
            onward = self._tokens[terminal].explore(state, self._bounded[terminal], self._meter)
        self._todo.popleft()
        new = {(terminal, to) for to in onward} - self._met
        self._met |= new
        self._todo.extend(sorted(new))
