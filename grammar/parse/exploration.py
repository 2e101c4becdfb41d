"""What the terminals of a grammar allow, found ahead of the texts that need it.

Few texts come to a state of the grammar, but all that read a terminal share its states.
"""

from collections import deque

from dlm.grammar.parse.edges import Read
from dlm.grammar.parse.made import Made
from dlm.grammar.parse.meter import Meter
from dlm.grammar.parse.network import Network
from dlm.grammar.parse.within import TerminalTokens

_BEGUN = 100  # units for a terminal that is met for the first time
_EDGES = 64  # that are looked at for a unit


class Exploration:
    """Of all terminals side by side, from their beginnings on. Literals need none."""

    def __init__(self, network: Network, tokens: Made[TerminalTokens], meter: Meter):
        self._tokens, self._meter = tokens, meter
        self._bounded: dict[int, bool] = {}  # by terminal: somebody counts its characters
        for edge in (edge for edges in network.edges for edge in edges if isinstance(edge, Read)):
            if not isinstance(network.terminals[edge.terminal], bytes):
                bounded = (edge.low, edge.high) != (0, None)
                self._bounded[edge.terminal] = bounded or self._bounded.get(edge.terminal, False)
        self._todo: deque[tuple[int, int | None]] = deque((each, None) for each in self._bounded)
        self._met: set[tuple[int, int]] = set()
        meter.add(sum(map(len, network.edges)) // _EDGES)

    def __bool__(self) -> bool:
        """There is more to find."""
        return bool(self._todo)

    def advance(self) -> None:
        """Begin a terminal, or look at one state. What raises `Unfinished` is to be done again."""
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
